"""Makes the pictures of the site again: ``python docs/make_pictures.py [NAME]``.

It needs Chromium, and the extras mpi, page and plot. Both pictures are of real runs on this
machine: the live page of three ranks, one of which is killed, and a step of two ranks.
"""

import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.page.browser import Browser, wait_for  # noqa: E402

PICTURES = ROOT / "docs/_static"
MNIST = ROOT / "examples/mnist/train_mnist.py"
DONE = "Number(document.getElementById('bar').getAttribute('aria-valuenow'))"
COLORS = {
    "forward": "#2f6fde",
    "backward": "#8a4fd0",
    "communication": "#d9730d",
    "optimizer": "#178a50",
    "input": "#0b8a99",
    "extensions": "#c93a7c",
}
HEIGHT = 1100
"""Pixels of the picture of the page."""


def launch(folder: pathlib.Path, *arguments: str) -> subprocess.Popen:
    """Starts the launcher in a folder; its standard error is written to the file ``errors``."""
    with (folder / "errors").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "launch", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )


def process_of_rank(rank: int, folder: pathlib.Path) -> int:
    """Returns the process ID of a rank's program: the latest process of the rank in this folder."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            is_program = "mpi4py" in (path / "cmdline").read_text()
            ours = is_program and (path / "cwd").readlink() == folder
            if ours and f"OMPI_COMM_WORLD_RANK={rank}\0" in (path / "environ").read_text():
                found.append(int(path.name))
        except (OSError, UnicodeDecodeError):
            continue
    return max(found)


def live_page(folder: pathlib.Path) -> None:
    """Photographs the page of a run that has lost a rank."""
    training = ["train_mnist.py", "--model", "conv", "--epoch", "20"]
    (folder / "train_mnist.py").write_text(MNIST.read_text("utf-8"), "utf-8")
    job = launch(folder, "-n", "3", "--elastic", "--page", *training)
    errors = folder / "errors"
    found = wait_for(lambda: re.search(r"its address is in (.+)\n", errors.read_text()))
    (folder / "browser").mkdir()
    browser = Browser(folder / "browser", 1280, HEIGHT)
    try:
        browser.open(pathlib.Path(found[1]).read_text("utf-8").strip())
        browser.wait(f"{DONE} >= 40")
        os.kill(process_of_rank(2, folder), signal.SIGKILL)
        browser.wait(f"!!document.querySelector('#marks li.lost') && {DONE} >= 75")
        browser.photograph(PICTURES / "live-page.png", HEIGHT)
    finally:
        browser.close()
        job.send_signal(signal.SIGTERM)
        job.wait(60)


def timeline(folder: pathlib.Path) -> None:
    """Draws a step of two ranks from the trace that ``mpchain-launch --trace`` writes."""
    job = launch(
        folder, "-n", "2", "--trace", "trace", str(MNIST), "--model", "conv", "--epoch", "3"
    )
    assert job.wait(300) == 0, (folder / "errors").read_text()
    trace = json.loads((folder / "trace/trace.json").read_text("utf-8"))
    draw_step(trace["traceEvents"], PICTURES / "timeline.png")


def draw_step(events: list[dict], path: pathlib.Path) -> None:
    """Draws the shortest step of all ranks: phases above their functions, arrows between ranks."""
    import matplotlib.pyplot as plt

    lengths = collections.Counter()
    for event in events:
        if event.get("cat") == "step" and event["args"]["step"] > 1:
            lengths[event["args"]["step"]] += event["dur"]
    step = min(lengths, key=lengths.get)  # other programs disturbed it least
    steps = {e["pid"]: e for e in events if e.get("cat") == "step" and e["args"]["step"] == step}
    begin = min(e["ts"] for e in steps.values())
    figure, axes = plt.subplots(figsize=(11, 1.1 + 1.3 * len(steps)), layout="constrained")
    for rank, own in steps.items():
        for event in events:
            is_in = own["ts"] <= event.get("ts", -1) < own["ts"] + own["dur"]
            if event["ph"] == "X" and event["pid"] == rank and is_in:
                draw_slice(axes, event, begin, rank)
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    for event in events:
        first = steps[event["pid"]] if event["ph"] == "s" else None
        if first and first["ts"] <= event["ts"] < first["ts"] + first["dur"]:
            end = ends[event["id"]]
            places = [((e["ts"] - begin) / 1000, e["pid"] + 0.28) for e in (event, end)]
            arrow = {"arrowstyle": "->", "color": "#d1293d"}
            axes.annotate("", places[1], places[0], arrowprops=arrow)
    axes.set_yticks([rank + 0.25 for rank in steps], [f"rank {rank}" for rank in steps])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.spines[["top", "right", "left"]].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    axes.legend(handles, COLORS, ncols=len(COLORS), loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.savefig(path, dpi=110)


def draw_slice(axes, event: dict, begin: float, rank: int) -> None:
    """Draws a phase in the upper half of a rank's row, a function or a sum in the lower one."""
    start, length = (event["ts"] - begin) / 1000, event["dur"] / 1000
    if event["cat"] in COLORS and event["cat"] != "communication":
        axes.barh(rank, length, 0.42, start, color=COLORS[event["cat"]])
    elif event["cat"] == "function":
        axes.barh(rank + 0.42, length, 0.32, start, color="#b8c4d6", edgecolor="w", linewidth=0.4)
    elif event["cat"] == "communication":
        axes.barh(rank + 0.42, length, 0.32, start, color=COLORS["communication"])


def main() -> None:
    """Makes the pictures that the arguments name; without arguments, all pictures."""
    wanted = sys.argv[1:] or ["live_page", "timeline"]
    for make in (each for each in (live_page, timeline) if each.__name__ in wanted):
        with tempfile.TemporaryDirectory() as folder:
            make(pathlib.Path(folder))
            print(f"made the picture of {make.__name__}")


if __name__ == "__main__":
    main()
