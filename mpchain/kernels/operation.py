"""Operations on arrays, each with a reference kernel and possibly faster kernels.

An operation's *contract* is the precondition of its other kernels: arrays of one library, with
matching shapes and, usually, the same dtype. The contract is declared with the reference, and is
checked once before another kernel computes. Arguments that break the contract go to the reference,
which broadcasts and promotes as NumPy does, or raises an error.

A kernel declares the dtypes that it accepts. Its *refusal* rejects other arguments that its library
cannot compute, or for which it would not be faster. A refusal may look at the dtypes, shapes and
strides of arrays, at the addresses of GPU arrays, at the other arguments (a window, axes), at
``config``, at :mod:`mpchain.kernels.thresholds`, at installed libraries and at the number of
threads. It never reads the values of an array: two calls that agree in all of these get the same
kernel. An operation can therefore remember which kernel it chose for NumPy arrays, keyed by their
dtypes, shapes and strides and by the other arguments. It remembers at most :data:`MOST` choices,
until a threshold, the number of threads, or the list of kernels changes, or a kernel with the bits
of the reference replaces it (:mod:`mpchain.kernels.cpu.small_arrays`). If ``config.kernels`` or
``config.autotune`` is set, nothing is remembered.
"""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

import numpy as np

from mpchain import observers
from mpchain.backends import cuda
from mpchain.configuration import config
from mpchain.formulas.text import compile_text
from mpchain.kernels import thresholds
from mpchain.observers import current
from mpchain.typing import Array

_LIBRARIES = "pointwise", "winograd", "onednn", "blas", "cudnn", "cublas", "numba_cpu", "numpy_cpu"
_LIBRARIES += ("numba_small",)
_LIBRARIES += "cuda_joining", "cuda_random", "cuda_reductions", "cuda_rows", "cuda_windows"
_ORDER = {name: i for i, name in enumerate(_LIBRARIES)}
SINGLE, SINGLE_OR_DOUBLE = ("float32",), ("float32", "float64")
MOST = 1024
"""The maximum number of choices that an operation remembers."""
SINGLE_OR_BFLOAT16 = ("float32", "bfloat16")
HALF, HALF_TO_DOUBLE = ("float16", "bfloat16"), ("float16", "float32", "float64")


def are_alike(first: Array, *others: Array) -> bool:
    """Returns whether all arrays are of the same library and have the same dtype.

    Example:
        >>> are_alike(np.ones(2), np.ones(3)), are_alike(np.ones(2), np.ones(2, int))
        (True, False)
    """
    kind, dtype = first.__class__, first.dtype
    for x in others:
        if x.__class__ is not kind or x.dtype != dtype:
            return False
    return True


class Kernel(NamedTuple):
    """A kernel of an operation.

    Attributes:
        operation: the name of the operation.
        library: the name that selects the kernel in ``config.kernels``; ``reference`` is the
            specification.
        compute: the function of arrays.
        refuse: a function of the same arguments that returns the reason why the kernel refuses
            them, or None if it accepts them. If ``refuse`` is None, the kernel accepts all
            arguments.

    Example:
        >>> mpchain.kernels.linear.kernels[-1].library
        'reference'
    """

    operation: str
    library: str
    compute: Callable
    refuse: Callable[..., str | None] | None


P = ParamSpec("P")
R = TypeVar("R")


class Operation(Generic[P, R]):
    """A callable operation, which runs the first kernel that does not refuse the arguments.

    Args:
        reference: the kernel that runs anywhere; it gives the operation its name and docstring.
        rule: the contract in words.
        is_kept: a function of the arguments that returns whether they satisfy the contract; None if
            all arguments satisfy it.
        first: the index of the first array among the arguments.

    Example:
        >>> from mpchain.kernels.operation import Operation
        >>> @Operation.given("x that is a vector", lambda x: x.ndim == 1)
        ... def total(x):
        ...     return x.sum()
        ...
        >>> @total.kernel("numpy_cpu", lambda x: None if x.size > 9 else "too small")
        ... def total_of_many(x):
        ...     return np.add.reduce(x, axis=None)
        ...
        >>> print(total.explain(np.arange(3)))
        total: numpy_cpu: no: too small
        total: reference: runs
    """

    def __init__(
        self,
        reference: Callable[P, R],
        rule: str = "",
        is_kept: Callable[..., bool] | None = None,
        first: int = 0,
    ):
        functools.update_wrapper(self, reference)
        self.name = reference.__name__
        self._reference, self._rule, self._is_kept, self._first = reference, rule, is_kept, first
        self._fastest: dict = {}
        self._kernels = [Kernel(self.name, "reference", reference, None)]
        # For each type and dtype of the first array, this holds the functions and their refusals.
        self._asked: dict = {}
        # This maps everything on which a choice may depend to the chosen function.
        self._chosen: dict = {}
        self._plans: dict = {}  # This maps functions of kernels to functions that plan calls.
        # These functions return keys of ``_chosen``, by the number of arguments.
        self._keys: dict = {}
        # This is True if there are kernels for NumPy arrays besides the reference.
        self._has_choice = False
        self._replacement: Any = None
        thresholds.forgets(self._chosen)

    @classmethod
    def given(
        cls, rule: str, is_kept: Callable[..., bool], first: int = 0
    ) -> "Callable[[Callable[P, R]], Operation[P, R]]":
        """Decorator: makes an operation from its reference kernel and a contract. The arguments are
        those of the class."""
        return lambda reference: cls(reference, rule, is_kept, first)

    def kernel(
        self,
        library: str,
        refuse: Callable[..., str | None] | None = None,
        dtypes: Sequence[str] | None = None,
        plan: Callable[..., Callable | None] | None = None,
    ) -> Callable[[Callable], Callable]:
        """Decorator: adds a kernel.

        Args:
            library: see :class:`Kernel`; names of GPU libraries begin with "cu".
            refuse: see :class:`Kernel`. The function need not check dtypes or the contract; the
                module's docstring lists what it may look at.
            dtypes: the names of the dtypes that the first array, of NumPy or CuPy, may have; () for
                any dtype, None for arguments of any kind.
            plan: a function of the same arguments that returns a function to remember with the
                choice of the kernel: it computes the same for NumPy arrays of the same layouts and
                equal other arguments, in less time. None means that there is none.
        """

        def add(compute):
            why_not = functools.partial(self._why_not, library, dtypes, refuse)
            self._kernels.append(Kernel(self.name, library, compute, why_not))
            self._kernels.sort(key=lambda k: _ORDER.get(k.library, len(_ORDER)))
            self._asked.clear()
            self._chosen.clear()
            self._has_choice = self._has_choice or not library.startswith("cu")
            self._plans[compute] = plan
            return compute

        return add

    def replace_reference(self, replacement: object) -> None:
        """Sets the object that decides when a kernel with the same bits replaces the reference; see
        :func:`mpchain.kernels.cpu.small_arrays.replaces`."""
        self._replacement = replacement
        self._plans[self._reference] = self._replacement.plan

    def _why_not(self, library, dtypes, refuse, *args):
        """Returns the reason why a kernel refuses arguments; None if the kernel accepts them."""
        reason = _refuse_kind(args[self._first], library, dtypes)
        if reason is None and self._is_kept is not None and not self._is_kept(*args):
            reason = f"not {self._rule}"
        return reason or (refuse(*args) if refuse is not None else None)

    @property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels in the order in which they are tried."""
        preferred = config.kernels
        if not preferred:
            return self._kernels
        named = [k for name in preferred for k in self._kernels if k.library == name]
        return named + [k for k in self._kernels if k not in named]

    def select(self, *args: Any) -> Kernel:
        """Returns the kernel that computes the operation for these arguments."""
        if config.autotune and isinstance(args[0], np.ndarray):
            return self._select_fastest(args)
        for kernel in self.kernels:
            if kernel.refuse is None or kernel.refuse(*args) is None:
                if self._replacement is None or config.kernels:
                    return kernel
                return self._replacement.steady(kernel, args)
        raise AssertionError("the reference accepts all arguments")

    def _select_fastest(self, args):
        key = tuple([(x.shape, x.dtype.char) if isinstance(x, np.ndarray) else x for x in args])
        if key not in self._fastest:
            taking = [k for k in self.kernels if k.refuse is None or not k.refuse(*args)]
            fastest = min(taking, key=lambda k: _seconds(k, args)) if taking[1:] else taking[0]
            self._fastest[key] = fastest
        return self._fastest[key]

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...

    else:

        def __call__(self, *args: Any) -> Any:
            if current.of_operations is not None:
                return observers.compute(self, args)
            if config.autotune or config.kernels:
                return self.select(*args).compute(*args)
            if not self._has_choice:
                return self._choose(args)(*args)
            key_of = self._keys.get(len(args))
            if key_of is None:
                are_arrays = tuple([x.__class__ is np.ndarray for x in args])
                key_of = self._keys[len(args)] = _key_function(are_arrays)
            key = key_of(*args)
            try:
                compute = self._chosen[key]
            except KeyError:
                if len(self._chosen) >= MOST:
                    self._chosen.clear()
                compute = self._choose(args)
                plan = self._plans.get(compute)
                compute = self._chosen[key] = (plan and plan(*args)) or compute
            # TypeError means that an argument has no hash, such as an array of another kind
            except TypeError:
                compute = self._choose(args)
            return compute(*args)

    def _choose(self, args):
        """Returns the function of the first kernel that accepts the arguments; :meth:`select`
        returns the kernel."""
        first = args[self._first]
        try:
            asked = self._asked[first.__class__, first.dtype]
        except (AttributeError, KeyError):
            asked = self._ask(first)
        for compute, refuse in asked:
            if refuse is None or refuse(*args) is None:
                if self._is_kept is None or self._is_kept(*args):
                    return compute
                break
        return self._reference

    def _ask(self, first):
        """Finds the kernels that accept arrays like the given first array."""
        asked = []
        for kernel in self._kernels[:-1]:
            why_not: Any = kernel.refuse  # kernel.refuse is a partial call of _why_not
            library, dtypes, refuse = why_not.args
            if _refuse_kind(first, library, dtypes) is None:
                asked.append((kernel.compute, refuse))
        if hasattr(first, "dtype"):
            self._asked[first.__class__, first.dtype] = asked
        return asked

    def explain(self, *args: Any) -> str:
        """Returns one line per kernel: which kernel runs, and why each kernel before it does
        not."""
        lines, chosen = [], False
        for kernel in self.kernels:
            _explained.by = []
            reason = kernel.refuse and kernel.refuse(*args)
            by = "".join(f" by {what}" for what in _explained.by)
            verdict = f"no: {reason}" if reason else "not needed" if chosen else f"runs{by}"
            chosen = chosen or not reason
            lines.append(f"{self.name}: {kernel.library}: {verdict}")
        _explained.by = None
        return "\n".join(lines)


class _Explained(threading.local):
    by: list[str] | None = None


_explained = _Explained()


def explain_by(what: str) -> None:
    """Sets the text after "by" in the line that :meth:`Operation.explain` is writing for a kernel,
    if any.

    Example:
        >>> explain_by("plan eng0")
    """
    if _explained.by is not None:
        _explained.by = [what]


@functools.cache
def _key_function(are_arrays):
    """Returns a function of arguments that returns a key of all that a choice may depend on.

    It is fastest for arguments that are arrays where ``are_arrays`` is True; other arguments get
    the same keys.
    """
    names = [f"a{i}" for i in range(len(are_arrays))]
    tests = [f"{x}.__class__ is {'' if a else 'not '}ndarray" for x, a in zip(names, are_arrays)]
    parts = [
        f"{x}.shape, {x}.strides, {x}.dtype" if is_array else f"{x}.__class__, {x}"
        for x, is_array in zip(names, are_arrays)
    ]
    listed = ", ".join(names)
    text = f"def key({listed}):\n    if {' and '.join(tests)}:\n        return {', '.join(parts)}\n"
    text += f"    return key_of_any({listed})"
    known = {"ndarray": np.ndarray, "key_of_any": _key_of_any}
    return compile_text("key of arguments", text, known)


def _key_of_any(*args):
    # The key of an array begins with a tuple; the key of another argument begins with a class.
    key = []
    for x in args:
        if x.__class__ is np.ndarray:
            key += x.shape, x.strides, x.dtype
        else:
            key += x.__class__, x
    return tuple(key)


def _refuse_kind(x, library, dtypes):
    if dtypes is None:
        return None
    is_gpu = library.startswith("cu")
    is_array = cuda.is_gpu_array(x) if is_gpu else isinstance(x, np.ndarray)
    if is_array and (not dtypes or (x.dtype.name in dtypes and x.dtype.isnative)):
        return None
    of = f" of {' or '.join(dtypes)}" if dtypes else ""
    return f"not {'CuPy' if is_gpu else 'NumPy'} arrays{of}"


def _seconds(kernel, args):
    kernel.compute(*args)  # the first call, which is not timed, makes what later calls reuse
    begin = time.perf_counter()
    kernel.compute(*args)
    return time.perf_counter() - begin
