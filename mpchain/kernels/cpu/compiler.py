"""Compiles loops with numba, and caches the machine code on disk if possible.

The compilation of a loop takes a second or two for each dtype.
"""

import contextlib
import functools
import hashlib
import os
import pathlib
import tempfile
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from mpchain.formulas.text import compile_text
from mpchain.kernels import thresholds
from mpchain.kernels.cpu import loop_cache, wide_vectors


@functools.cache
def load_numba() -> Any:
    """Returns the module numba; None if numba is not installed, or if its compilation is turned
    off.

    Example:
        >>> numba = load_numba()  # None where numba is not installed
    """
    try:
        import numba
    except ImportError:
        return None
    module: Any = numba
    return None if module.config.DISABLE_JIT else module


def why_not_compiled() -> str | None:
    """Returns the reason why loops are not compiled; None if they are compiled.

    Example:
        >>> reason = why_not_compiled()  # such as 'numba is not installed ...'
    """
    return (
        None
        if load_numba()
        else "numba is not installed (pip install 'mpchain[cpu]') or NUMBA_DISABLE_JIT is set"
    )


class Switch:
    """Decides when a compiled loop replaces a computation by NumPy that gives the same bits.

    This is the case when NumPy has taken about as long as the compilation would take. If the
    machine code is in the cache, the loop replaces NumPy much earlier, when NumPy has taken about
    as long as loading the code. numba itself must be imported first, so the first of these loops
    waits until all computations that loops may replace have taken about as long as the import.

    Attributes:
        n_elements: the number of elements that NumPy has computed.

    Example:
        >>> Switch().is_due(1 << 10, lambda: None)
        False
    """

    def __init__(self):
        self.n_elements = 0
        self._is_stored = None

    def is_due(self, n: int, find: Callable[[], Any], least: int | None = None) -> bool:
        """Returns whether the loop should compute ``n`` elements; otherwise, they are counted.

        Args:
            n: the number of elements.
            find: a function that returns the loop, the result of :func:`compile_loop`.
            least: the number of elements for which NumPy takes as long as the compilation; None
                means ``thresholds.compiled_loop``.
        """
        least = thresholds.compiled_loop if least is None else least
        if self.n_elements <= least:
            self.n_elements += n
            _running.n_elements += n
        if self.n_elements > least:
            return True
        pays = _running.has_begun or _running.n_elements > thresholds.compiled_loop
        if not pays or self.n_elements * thresholds.loaded <= least:
            return False
        if self._is_stored is None:
            self._is_stored = loop_cache.is_stored(find())
        return self._is_stored


class _Running:
    has_begun = False  # whether the process has compiled a loop, or loaded one from the cache
    n_elements = 0  # the number of elements that NumPy has computed where a loop may replace it


_running = _Running()


def compile_loop(function: Callable, is_wide: bool = False, **options: Any) -> Callable:
    """Compiles a function with numba and caches the result on disk, if possible.

    Every process compiles the loops anew if no folder can be written (as in read-only containers),
    if other users may write into the folder, or if the disk is full.

    Args:
        function: the function, which writes into its arguments and returns None.
        is_wide: whether the loop mostly computes, so that vectors of 512 bits are faster.
        options: options of ``numba.njit``.

    Returns:
        The compiled function. It accepts read-only arrays, into which the function must not write.

    Example:
        >>> def double(x):
        ...     for i in range(x.size):
        ...         x[i] *= 2
        >>> loop = compile_loop(double) if load_numba() else double
        >>> x = np.ones(2)
        >>> loop(x)
        >>> x
        array([2., 2.])
    """
    options |= {"nogil": True, "error_model": "numpy"}
    if is_wide and (pipeline := wide_vectors.pipeline()) is not None:
        options["pipeline_class"] = pipeline
    compiled = load_numba().njit(**options)(function)
    # RuntimeError means that there is no folder for the cache.
    with contextlib.suppress(RuntimeError):
        loop_cache.cache(compiled, is_wide)
    compile_for = compiled._compile_for_args

    def compile_or_adapt(*args):
        """Returns the function to call, when numba meets arguments of new types."""
        _running.has_begun = True
        writable = [*map(as_writable, args)]
        if any(x is not y for x, y in zip(writable, args)):
            return lambda *args: compiled(*writable)
        try:
            return compile_for(*args)
        # If the cache caused the error, the loop is compiled without it; another error is raised by
        # the second call.
        except Exception:
            loop_cache.remove(compiled)
            return compile_for(*args)

    # A check of the arguments in each call takes longer than a loop over a small array.
    compiled._compile_for_args = compile_or_adapt
    return compiled


def as_writable(x):
    """Returns the array, or a writable view of a read-only array, because numba would compile again
    for a read-only array."""
    if not isinstance(x, np.ndarray) or x.flags.writeable:
        return x
    view = x.view()
    try:
        view.flags.writeable = True
        return view
    except ValueError:  # the memory itself is read-only
        interface = x.__array_interface__
    data = interface["data"][0], False
    return np.asarray(types.SimpleNamespace(__array_interface__={**interface, "data": data}))


def compile_written_loop(
    name: str, text: str, known: dict[str, Any] | None = None, **options: Any
) -> Callable:
    """Compiles the text of a function, as :func:`compile_loop` compiles a function.

    The text is stored in a file, beside which numba caches the machine code.

    Args:
        name: the file name in tracebacks if the text cannot be stored.
        text: a ``def`` statement, which may use ``np``.
        known: other objects that the text may use, by name. A different object needs a different
            text, because caches are keyed by the text.
        options: options of :func:`compile_loop`.

    Example:
        >>> text = "def double(x):\\n    for i in range(x.size):\\n        x[i] *= 2"
        >>> loop = compile_written_loop("example", text) if load_numba() else None
    """
    # numba's cache is keyed by the file, so other options need another file.
    said = [(key, sorted(v) if isinstance(v, set) else v) for key, v in sorted(options.items())]
    return compile_loop(kept(name, text, known, str(said) if said else ""), **options)


def compile_called(
    name: str, text: str, known: dict[str, Any], digest: int, **options: Any
) -> Callable:
    """Compiles the text of a function that loops call.

    Args:
        name, text, known: see :func:`compile_written_loop`.
        digest: a hash of the texts of all functions that loops call together with this one. Code
            from the cache finds a function that it calls by its name, which includes the hash.
        options: options of ``numba.njit``.

    Example:
        >>> text = "def one():\\n    return 1"
        >>> one = compile_called("one", text, {}, 7) if load_numba() else lambda: 1
        >>> one()
        1
    """
    function = compile_text(name, text, known)
    function.__qualname__ = f"{name}_{digest}"
    return load_numba().njit(**options)(function)


def kept(name: str, text: str, known: dict[str, Any] | None = None, options: str = "") -> Callable:
    """Returns the function of a text, which is stored in a file if one can be written.

    Args:
        name, text, known: see :func:`compile_written_loop`.
        options: a text that makes the file differ from those of the same text with other options.

    Example:
        >>> kept("example", "def one():\\n    return 1")() if load_numba() else 1
        1
    """
    digest = hashlib.sha256((text.strip() + options).encode()).hexdigest()[:24]
    path = _path_of(text.strip(), f"loop_{digest}.txt")
    function = compile_text(name, text, {"np": np, **(known or {})}, path)
    # numba names machine code by this name and the number of functions that the process has
    # compiled. Code of the same name from the cache would replace that of another text, which
    # threads look up by name.
    function.__qualname__ = f"{function.__name__}_{digest}"
    return function


def _path_of(text, name):
    """Returns the path of a file of a given name that holds the text; None if no file can be
    written."""
    folders = [pathlib.Path(__file__).parent / "__pycache__", "~/.cache/mpchain"]
    # the environment variable NUMBA_CACHE_DIR sets this folder
    if chosen := load_numba().config.CACHE_DIR:
        folders.insert(0, chosen)
    for folder in map(pathlib.Path, map(os.path.expanduser, folders)):
        path = folder / name
        if not loop_cache.is_safe(folder):
            continue
        try:
            if path.read_text() == text:
                return str(path)
        except (OSError, ValueError):  # these errors mean that the file is missing or damaged
            pass
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as own:
                (pathlib.Path(own) / name).write_text(text)
                # The file is renamed when it is complete, so that other processes see either the
                # whole file or no file.
                os.replace(pathlib.Path(own) / name, path)
            return str(path)
        except OSError:
            continue
    return None


@functools.cache
def compiled(function: Callable) -> Callable:
    """Returns a function, compiled once, that may reorder sums.

    Example:
        >>> def fill(x):
        ...     x[:] = 1
        >>> loop = compiled(fill) if load_numba() else fill
    """
    # These options allow numba to reorder sums, for instructions that add eight elements at a time;
    # infinities and NaN are preserved.
    return compile_loop(function, fastmath={"reassoc", "nsz", "contract"})
