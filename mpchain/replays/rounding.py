"""Measures how much the order of sums affects steps, by computing them in another order."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from mpchain.replays import comparison
from mpchain.replays.history import History, unpack
from mpchain.replays.recording import pack
from mpchain.replays.replay import Replay


def measure(arguments: Sequence[str], replay: Replay) -> dict[tuple[int, str], float]:
    """Returns the effect of another order of sums on a replay's results, by update and place.

    The steps are computed again in a separate process, which divides batches differently.

    Args:
        arguments: the command of the replay.
        replay: the replay.

    Returns:
        The argument ``measured`` of :func:`mpchain.replays.comparison.beyond_rounding`; empty if
        the process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "updates.jsonl")
        command = [sys.executable, "-m", "mpchain.replays", *arguments, "--measure", path]
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        others = _read(path)
    found, largest = {}, {}
    for _, own in replay.updates:
        other, model = others.get((own.model, own.t)), replay.history.models[own.model]
        if other is None:
            continue
        for d in comparison.differences(own, other, model.pieces(), model.shape):
            largest[d.place] = max(d.size, largest.get(d.place, 0.0))
            found[d.t, d.place] = largest[d.place]
    return found


def _read(path):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    updates = [unpack(line["update"], line["names"]) for line in lines]
    return {(update.model, update.t): update for update in updates}


def write(history: History, step: int, path: str) -> None:
    """Computes steps with another order of sums than on the ranks, and writes the updates.

    Args:
        history: the record.
        step: the last step to compute.
        path: the path of the file to write."""
    n_ranks = max(update.n_ranks for update in history.main.updates.values())
    replay = Replay(history, step, n_parts=1 if n_ranks > 1 else 2)
    replay.run()
    with open(path, "w", encoding="utf-8") as file:
        for _, own in replay.updates:
            line = {"names": list(own.values), "update": pack(own)}
            file.write(json.dumps(line) + "\n")
