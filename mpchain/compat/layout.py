"""Reads a table of the modules of Chainer 7.8.1 and ChainerMN and of their public names."""

import functools
import pathlib


@functools.cache
def layout() -> dict[str, tuple[bool, tuple[str, ...]]]:
    """Returns, for each module of Chainer, whether it is a package, and its public names."""
    text = pathlib.Path(__file__).with_suffix(".txt").read_text("utf-8")
    found = {}
    for line in text.splitlines()[1:]:
        module, _, public = line.partition(":")
        found[module.rstrip(".")] = module.endswith("."), tuple(public.split())
    return found
