"""Counts code lines: lines with tokens other than docstrings, comments and blanks.

python -m tests.tools.code_lines [ROOT] prints the numbers by room, the largest first. With --spine
it prints the numbers of the files in ARCHITECTURE.md's reading tour, in the order of the tour.
"""

import ast
import collections
import io
import pathlib
import re
import sys
import tokenize

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = "mpchain", "launch"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str, tree: ast.Module | None = None) -> set[int]:
    """Returns the numbers of the lines of a source text that contain code.

    Args:
        text: the source.
        tree: the syntax of the text, where it was parsed before.

    >>> sorted(code_lines('"Says what it is."\\n\\n# why\\nx = [  # here\\n\\n    1]\\n'))
    [4, 6]
    """
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree or ast.parse(text)):
        # The text below an attribute is also a docstring.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                found.difference_update(range(node.lineno, node.end_lineno + 1))
    return found


def _room(path):
    parts = path.parts[:-1]
    depth = 3 if parts[1:2] == ("distributed",) else 2
    return "/".join(parts[:depth]) + ("/*.py" if len(parts) == 1 else "")


def spine(root: pathlib.Path = ROOT) -> dict[str, int]:
    """Returns the code lines of each file of the reading tour.

    >>> next(iter(spine()))
    'mpchain/functions/activation.py'
    """
    tour = (root / "ARCHITECTURE.md").read_text("utf-8").partition("## A reading tour")[2]
    paths = re.findall(r"^\| `(mpchain/\S+)` \|", tour.partition("\n### ")[0], re.MULTILINE)
    return {path: len(code_lines((root / path).read_text("utf-8"))) for path in paths}


def main(root: pathlib.Path = ROOT) -> None:
    """Prints the code lines of each room, and their sum.

    Args:
        root: a checkout.
    """
    rooms, n_files = collections.Counter(), 0
    for path in (path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        rooms[_room(path.relative_to(root))] += len(code_lines(path.read_text("utf-8")))
        n_files += 1
    for room, n in rooms.most_common():
        print(f"{n:6}  {room}")
    print(f"{rooms.total():6}  in {n_files} files")


if __name__ == "__main__":
    if sys.argv[1:] == ["--spine"]:
        counted = spine()
        print(*(f"{n:6}  {path}" for path, n in counted.items()), sep="\n")
        print(f"{sum(counted.values()):6}  in {len(counted)} files")
    else:
        main(*map(pathlib.Path, sys.argv[1:]))
