"""Runs the code of a guide: ``python -m tests.docs.guides FILE`` runs the blocks of one file.

The Python blocks of a page run in order in one namespace. A block of text that follows a Python
block is what rank 0 prints; ``...`` stands for anything. A page with the comment ``<!-- ranks -->``
also runs under ``mpirun``.
"""

import contextlib
import doctest
import io
import itertools
import os
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
GUIDES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/guides").glob("*.md")])
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(text):
    """Yields for each Python block: its line, its code, and the output that the page shows, or
    None."""
    found = [*FENCE.finditer(text), None]
    for block, following in itertools.pairwise(found):
        if block[1] == "python":
            shows = following and following[1] == "text"
            shows = shows and not text[block.end() : following.start()].strip()
            line = text[: block.start(2)].count("\n")
            yield line, block[2], following[2] if shows else None


def runs_on_ranks(path):
    """Returns whether a page requests to run under ``mpirun``, too."""
    return "<!-- ranks -->" in path.read_text("utf-8")


def run(path, rank=0):
    """Runs the Python blocks of a page in the current folder; raises an error if an output of rank
    0 differs from the page."""
    names = {"__name__": "__main__"}
    for line, code, shown in blocks(path.read_text("utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, str(path), "exec"), names)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        if shown is not None and rank == 0:
            if not doctest.OutputChecker().check_output(shown, printed.getvalue(), flags):
                raise AssertionError(
                    f"{path.name}, line {line}: the page shows\n{shown}\nbut it printed\n"
                    + printed.getvalue()
                )


if __name__ == "__main__":
    page = pathlib.Path(sys.argv[1]).resolve()
    own_rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
    # All ranks run in one folder, so that files that they write together are in one place.
    with contextlib.ExitStack() as stack:
        folder = os.environ.get("MPCHAIN_GUIDE_FOLDER")
        os.chdir(folder or stack.enter_context(tempfile.TemporaryDirectory()))
        run(page, own_rank)
        os.chdir("/")
