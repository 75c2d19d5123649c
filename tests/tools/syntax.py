"""The syntax of source files, which several tests read: it is parsed once in a process."""

import ast
import functools
import gc
import pathlib


@functools.cache
def trees(root: pathlib.Path, folder: str) -> dict[str, ast.Module]:
    """Returns the syntax tree of each Python file below a folder, by its path from the root on."""
    paths = sorted((root / folder).rglob("*.py"))
    # The nodes stay, so searches for garbage among them would be in vain, now and later.
    enabled = gc.isenabled()
    gc.disable()
    found = {p.relative_to(root).as_posix(): ast.parse(p.read_text("utf-8")) for p in paths}
    if enabled:
        gc.enable()
    gc.freeze()
    return found
