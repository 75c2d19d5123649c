"""Draws which rooms import which, and finds circles; imports for type checkers count.

``python -m tests.tools.imports [FOLDER]`` prints, for the source in a folder, the numbers of rooms
(the modules and packages in ``mpchain/``, and the launcher), of arrows between them and of circles
of files. The circles and a drawing follow: rooms that import each other share a box, and an arrow
is omitted if other arrows lead to the same box.
"""

import ast
import pathlib
import sys
from collections.abc import Iterator

from tests.tools.syntax import trees

ROOT = pathlib.Path(__file__).parents[2]


def imported(path: str, tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Yields the modules in ``known`` that a file imports."""
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from known.intersection(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            inner = {f"{base}.{alias.name}" for alias in node.names}
            yield from known & inner or known & {base}


def graph(root: pathlib.Path = ROOT) -> dict[str, set[str]]:
    """Returns, for each module, the modules that it imports."""
    files = trees(root, "mpchain") | trees(root, "launch")
    names = {p: p.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for p in files}
    known = set(names.values())
    return {names[p]: {*imported(p, tree, known)} - {names[p]} for p, tree in files.items()}


def reach(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Returns, for each node, all nodes that its arrows reach."""
    found = {}
    for node in arrows:
        found[node], waiting = set(), [node]
        while waiting:
            new = arrows[waiting.pop()] - found[node]
            found[node] |= new
            waiting += new
    return found


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Returns the sets of nodes that reach each other; sets of one node are omitted."""
    to = reach(arrows)
    sets = {frozenset(y for y in to[x] if x in to[y]) for x in arrows}
    return sorted(
        (sorted(each) for each in sets if len(each) > 1), key=lambda each: (len(each), each)
    )


def rooms(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Returns, for each room of ``mpchain/`` and for the launcher, the rooms that it imports; the
    top-level module is omitted."""
    room = lambda name: name.split(".")[name.startswith("mpchain")]
    found = {room(name): set() for name in arrows if name != "mpchain"}
    for name in arrows.keys() - {"mpchain"}:
        found[room(name)] |= {room(other) for other in arrows[name] - {"mpchain"}} - {room(name)}
    return found


def drawing(arrows: dict[str, set[str]]) -> str:
    """Returns the drawing, as text for Mermaid."""
    box = {name: name for name in arrows}
    for circle in circles(arrows):
        box |= dict.fromkeys(circle, " ".join(circle))
    boxes = {name: set() for name in box.values()}
    for name, others in arrows.items():
        boxes[box[name]] |= {box[other] for other in others} - {box[name]}
    to = reach(boxes)
    lines = []
    for name, others in sorted(boxes.items(), key=lambda item: (len(to[item[0]]), item[0])):
        direct = {other for other in others if not any(other in to[each] for each in others)}
        targets = " & ".join(sorted(other.split(" ")[0] for other in direct))
        arrow = f" --> {targets}" if targets else ""
        lines.append(f'    {name.split(" ")[0]}["{name}"]{arrow}')
    return "\n".join(["graph TD", *lines])


def main() -> None:
    """Prints numbers, circles and the drawing."""
    arrows = graph(pathlib.Path(sys.argv[1]) if sys.argv[1:] else ROOT)
    of_rooms = rooms(arrows)
    found = circles(arrows)
    print(f"{len(of_rooms)} rooms, {sum(map(len, of_rooms.values()))} arrows, {len(found)} circles")
    for circle in found:
        print(f"{len(circle)} files: {' '.join(circle)}")
    print(drawing(of_rooms))


if __name__ == "__main__":
    main()
