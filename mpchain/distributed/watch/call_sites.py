"""Places in a program, for reports: the user's line, and the line of mpchain that it called."""

import os
import sys
import sysconfig
import threading
from types import FrameType

_WATCH = os.path.dirname(os.path.abspath(__file__)) + os.sep
_COMMUNICATORS = os.path.join(os.path.dirname(os.path.dirname(_WATCH)), "communicators") + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(_COMMUNICATORS))) + os.sep
_PROFILING = os.path.join(_PACKAGE, "profiling", "")  # calls communicators in place of others
_OURS = (_PACKAGE, "<mpchain: ")  # also text that declared functions are written out as
_BELOW = (_WATCH, _COMMUNICATORS, _PROFILING)
_LIBRARIES = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib")
)


def calling_frames(frame: FrameType) -> tuple[FrameType, FrameType | None]:
    """Returns the innermost frame outside the communicators, and the innermost outside mpchain.

    The latter is None in a thread of mpchain.
    """
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BELOW):
        frame = frame.f_back
    inner = frame
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return inner, frame


def describe(inner: FrameType, outer: FrameType | None) -> str:
    """Returns the place of two frames, the outer of which is the user's.

    >>> describe(sys._getframe(), None)
    '<doctest ...>:1 in <module>'
    """
    if outer is None or outer is inner:
        return _line(inner)
    return f"{_line(outer)}, by {_line(inner)}"


def _line(frame):
    code = frame.f_code
    name = code.co_filename
    shown = os.path.join("mpchain", name[len(_PACKAGE) :]) if name.startswith(_PACKAGE) else name
    return f"{shown}:{frame.f_lineno} in {code.co_name}"


def of_main_thread() -> str:
    """Returns the place of the program's main thread: its own line, and that of a library.

    If it has ended, returns the places of the threads that keep the program from ending.
    """
    main, frames = threading.main_thread(), sys._current_frames()
    inner = frames.get(main.ident)
    if inner is None:
        return "its end"
    if _is_called_by(threading._shutdown.__code__, inner):
        others = [t for t in threading.enumerate() if t is not main and not t.daemon]
        places = [f"thread {t.name!r} at {_place(frames[t.ident])}" for t in others]
        return "; ".join(["the end of its main thread", *places])
    return _place(inner)


def _is_called_by(code, frame):
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _place(inner):
    outer = inner
    while outer is not None and outer.f_code.co_filename.startswith(
        (*_OURS, "<frozen ", *_LIBRARIES)
    ):
        outer = outer.f_back
    return describe(inner, outer)
