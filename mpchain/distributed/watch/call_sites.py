"""Call sites, for reports: the user's line, and the line of mpchain that it called."""

import os
import sys
import sysconfig
import threading
from types import FrameType


class FileNames(dict):
    """Cache of whether a file name starts with one of several prefixes.

    Example:
        >>> FileNames("/a/", "/b")["/a/c.py"]
        True
    """

    most_remembered = 4096  # interactive programs give each input a new file name

    def __init__(self, *beginnings: str):
        super().__init__()
        self._beginnings = beginnings

    def __missing__(self, name: str) -> bool:
        if len(self) >= self.most_remembered:
            self.clear()
        found = self[name] = name.startswith(self._beginnings)
        return found


_WATCH = os.path.dirname(os.path.abspath(__file__)) + os.sep
_COMMUNICATORS = os.path.join(os.path.dirname(os.path.dirname(_WATCH)), "communicators") + os.sep
PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(_COMMUNICATORS))) + os.sep
_OBSERVERS = os.path.join(PACKAGE, "observers.py")  # profiler spans wrap calls
# The generated source of declared functions belongs to mpchain, too.
_OURS = FileNames(PACKAGE, "<mpchain: ")
_BELOW = FileNames(_WATCH, _COMMUNICATORS, _OBSERVERS)
_LIBRARIES = FileNames(
    "<frozen ",
    *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")),
)


def calling_frames(
    frame: FrameType, below: FileNames = _BELOW
) -> tuple[FrameType, FrameType | None]:
    """Returns the innermost frame outside some files, and the innermost frame outside mpchain.

    The second frame is None in a thread of mpchain.

    Args:
        frame: the frame where the search begins.
        below: the files to skip, by default those of the communicators, the watchdog and the
            observers.
    """
    while (back := frame.f_back) is not None and below[frame.f_code.co_filename]:
        frame = back
    outer: FrameType | None = frame
    while outer is not None and _OURS[outer.f_code.co_filename]:
        outer = outer.f_back
    return frame, outer


def is_of_library(frame: FrameType) -> bool:
    """Returns whether a frame belongs to mpchain or another library.

    >>> is_of_library(sys._getframe())
    False
    """
    name = frame.f_code.co_filename
    return _OURS[name] or _LIBRARIES[name]


def describe(inner: FrameType, outer: FrameType | None) -> str:
    """Returns a description of two frames; the outer frame is in the user's program.

    >>> describe(sys._getframe(), None)
    '<doctest ...>:1 in <module>'
    """
    if outer is None or outer is inner:
        return _line(inner)
    return f"{_line(outer)}, by {_line(inner)}"


def _line(frame):
    code = frame.f_code
    name = code.co_filename
    shown = os.path.join("mpchain", name[len(PACKAGE) :]) if name.startswith(PACKAGE) else name
    return f"{shown}:{frame.f_lineno} in {code.co_name}"


def of_main_thread() -> str:
    """Returns the location of the main thread: the program's line, and the library's line.

    If the main thread has ended, returns the locations of the threads that keep the program alive.
    """
    main, frames = threading.main_thread(), sys._current_frames()
    inner = frames.get(main.ident or 0)
    if inner is None:
        return "its end"
    if _is_called_by(vars(threading)["_shutdown"].__code__, inner):
        others = [t for t in threading.enumerate() if t is not main and not t.daemon]
        places = [f"thread {t.name!r} at {_place(frames[t.ident])}" for t in others if t.ident]
        return "; ".join(["the end of its main thread", *places])
    return _place(inner)


def _is_called_by(code, frame):
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _place(inner):
    outer = inner
    while outer is not None and is_of_library(outer):
        outer = outer.f_back
    return describe(inner, outer)
