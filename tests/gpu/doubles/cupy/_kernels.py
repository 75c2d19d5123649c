"""Kernels of CUDA C text, which g++ compiles, and which run over the host memory of the arrays."""

import ctypes
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import numpy as np

from cupy import _simt
from cupy._array import SCALARS, finish, ndarray
from cupy._graphs import in_use
from cupy._machine import check_current_device, check_dtype, grain_of, launch, ledger, pool

CACHE = pathlib.Path(tempfile.gettempdir()) / f"cupy_double_{os.getuid()}"
ARRAYS = pathlib.Path(__file__).with_name("kernels.hpp").read_text()
SIMT = pathlib.Path(__file__).with_name("simt.hpp").read_text()
THREADS = pathlib.Path(__file__).with_name("threads.hpp").read_text()
IN_DOUBLE = re.compile(r"typedef double [TW];|\bdouble\s*\*")
C_TYPES = {
    "bool": "bool",
    "float16": "float16",
    "float32": "float",
    "float64": "double",
    "complex64": "std::complex<float>",
    "complex128": "std::complex<double>",
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
}


@functools.cache
def compile_text(text, options="-std=c++14 -O0 -nostdlib"):
    """Compiles C++ text once for all processes; returns its library.

    The default options compile kernels of little text and little work in a third of the time.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError("the double of CuPy needs g++ to compile kernels")
    CACHE.mkdir(mode=0o700, exist_ok=True)
    library = CACHE / (hashlib.sha256(f"{options} {text}".encode()).hexdigest() + ".so")
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            source, made = pathlib.Path(folder, "kernel.cpp"), pathlib.Path(folder, "kernel.so")
            source.write_text(text)
            command = [compiler, *options.split(), "-w", "-shared", "-fPIC", "-ffp-contract=off"]
            command += ["-o", made, source, "-lgcc"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                raise RuntimeError(f"the kernel does not compile:\n{done.stderr[:4000]}\n{text}")
            made.replace(library)
    return ctypes.CDLL(str(library))


class _Parameter:
    """A parameter of an elementwise or reduction kernel: 'T x', 'raw T x', 'float32 x'."""

    def __init__(self, text):
        *words, kind, self.name = text.split()
        for word in words:
            if word not in ("raw", "_non_const"):
                raise ValueError(f"Unknown keyword {word!r} in parameter {text!r}")
        self.is_raw = "raw" in words
        self.letter = kind if len(kind) == 1 else None
        self.dtype = None if self.letter else check_dtype(kind)


def _parameters(text):
    return tuple(_Parameter(word) for word in text.split(",") if word.strip())


def _decide_types(parameters, args):
    """Returns the dtype of each parameter and of each letter, by CuPy's rules; raises TypeError if
    dtypes contradict, or leave a letter undecided."""
    letters = {}
    for parameter, arg in zip(parameters, args):
        if not isinstance(arg, ndarray):
            continue
        expected = parameter.dtype or letters.setdefault(parameter.letter, arg.dtype)
        if arg.dtype != expected:
            raise TypeError(f"Type is mismatched. {parameter.name} {arg.dtype} {expected}")
    for parameter, arg in zip(parameters, args):
        if parameter.letter and isinstance(arg, np.generic):
            letters.setdefault(parameter.letter, arg.dtype)
    for parameter in parameters:
        if parameter.letter and parameter.letter not in letters:
            raise TypeError(f"the type {parameter.letter} of {parameter.name} is undecided")
    return [parameter.dtype or letters[parameter.letter] for parameter in parameters], letters


def _check_arguments(name, args):
    for arg in args:
        if not isinstance(arg, (*SCALARS, ndarray)):
            raise TypeError(f"Unsupported type {type(arg)} (kernel {name})")
    check_current_device(name, [arg for arg in args if isinstance(arg, ndarray)])


class _Kernel:
    """Base of elementwise and reduction kernels: parameters, types and the call."""

    def __init__(self, in_params, out_params, name, preamble):
        self.in_params, self.out_params = _parameters(in_params), _parameters(out_params)
        self.params = self.in_params + self.out_params
        self.nin, self.nout = len(self.in_params), len(self.out_params)
        self.nargs = self.nin + self.nout
        self.name, self.preamble = name, preamble
        self._compiled = {}

    def _run(self, ins, outs, shape, letters, dtypes, body):
        """Compiles the body for these types, and runs it over the elements of a shape; only counts
        the kernel if the ledger does not compute."""
        read, outs = [x for x in ins if isinstance(x, ndarray)], list(outs)
        if not ledger.computes:
            launch(self.name, read, outs, grain=grain_of(read, outs))
            return
        arrays = [
            (x._host if isinstance(x, ndarray) else np.array(x, dtype))
            for x, dtype in zip([*ins, *outs], dtypes)
        ]
        views = [
            x if parameter.is_raw or x.shape == shape else np.broadcast_to(x, shape)
            for x, parameter in zip(arrays, self.params)
        ]
        key = body, *dtypes, *letters.items()
        if key not in self._compiled:
            self._compiled[key] = self._text(letters, dtypes, body)
        text = self._compiled[key]
        ledger.compiles(self.name, tuple(letters.values()), text)
        run = compile_text(text).run_elements
        described = [
            np.array(
                [view.__array_interface__["data"][0], view.ndim, *view.shape, *view.strides],
                np.int64,
            )
            for view in views
        ]
        pointers = np.array(
            [(sizes[0], sizes.__array_interface__["data"][0] + 8) for sizes in described], np.int64
        )
        dims = np.array([len(shape), *shape], np.int64)
        used = [*read, *outs]
        finish(used)
        if (capture := in_use()) is not None:
            capture.keep(used)

        def again(_keep=(views, described)):
            run(ctypes.c_void_p(pointers.ctypes.data), ctypes.c_void_p(dims.ctypes.data))

        again()
        launch(self.name, read, outs, again, grain=grain_of(read, outs))

    def _text(self, letters, dtypes, body):
        aliases = "".join(f"typedef {C_TYPES[t.name]} {c};\n" for c, t in letters.items())
        declared = "".join(
            f"CArray<{C_TYPES[dtype.name]}> {'' if parameter.is_raw else '_raw_'}{parameter.name}"
            f"(_args, {k});\n"
            for k, (parameter, dtype) in enumerate(zip(self.params, dtypes))
        )
        headers = ARRAYS + "#include <complex>\n" * any(dtype.kind == "c" for dtype in dtypes)
        if any(dtype.name in ("float64", "complex128") for dtype in dtypes):
            headers = f"#define IN_DOUBLE\n{headers}"
        text = f"{headers}{aliases}{self.preamble}\n"
        text += 'extern "C" void run_elements(void** _args, Dims _dims) {\n'
        return text + "FLUSH\n" + declared + body + "}\n"


class ElementwiseKernel(_Kernel):
    """A kernel whose text computes one element."""

    def __init__(
        self,
        in_params,
        out_params,
        operation,
        name="kernel",
        reduce_dims=True,
        preamble="",
        no_return=False,
        return_tuple=False,
        *,
        doc="",
        loop_prep="",
        after_loop="",
        options=(),
    ):
        super().__init__(in_params, out_params, name, preamble)
        self.operation, self.no_return, self.return_tuple = operation, no_return, return_tuple
        self._around = loop_prep, after_loop

    def __call__(self, *args, size=None, stream=None, block_size=128):
        if len(args) not in (self.nin, self.nargs):
            raise TypeError(f"Wrong number of arguments for {self.name!r}: {len(args)}")
        _check_arguments(self.name, args)
        dtypes, letters = _decide_types(self.params, args)
        inputs, outputs = (
            [x.shape for x, p in part if isinstance(x, ndarray) and not p.is_raw]
            for part in (
                list(zip(args, self.in_params)),
                list(zip(args[self.nin :], self.out_params)),
            )
        )
        if size is None and not inputs and not outputs:
            raise ValueError("Loop size is undecided")
        shape = (size,) if size is not None else np.broadcast_shapes(*inputs or outputs)
        outs = list(args[self.nin :])
        for out, parameter in zip(outs, self.out_params):
            if not isinstance(out, ndarray):
                raise TypeError("Output arguments must be cupy.ndarray")
            if size is None and not parameter.is_raw and out.shape != shape:
                raise ValueError(f"Out shape is mismatched: {out.shape} instead of {shape}")
        outs = outs or [ndarray(shape, dtype) for dtype in dtypes[self.nin :]]
        elements = "".join(
            f"auto&& {parameter.name} = _raw_{parameter.name}[_ind];\n"
            for parameter in self.params
            if not parameter.is_raw
        )
        before, after = self._around
        body = (
            f"{before};\nCIndexer _ind(_dims);\nfor (ptrdiff_t i = 0; i < _ind.size(); i++) {{\n"
            f"_ind.set(i);\n{elements}{self.operation};\n}}\n{after};\n"
        )
        self._run(args[: self.nin], outs, shape, letters, dtypes, body)
        if self.no_return:
            return None
        return outs[0] if self.nout == 1 and not self.return_tuple else tuple(outs)


class ReductionKernel(_Kernel):
    """A kernel that reduces axes: maps each element, joins a and b, and finishes a."""

    def __init__(
        self,
        in_params,
        out_params,
        map_expr,
        reduce_expr,
        post_map_expr,
        identity,
        name="reduce_kernel",
        reduce_type=None,
        reduce_dims=True,
        preamble="",
        options=(),
    ):
        super().__init__(in_params, out_params, name, preamble)
        self.map_expr, self.reduce_expr = map_expr, reduce_expr
        self.post_map_expr, self.identity = post_map_expr, identity
        self.reduce_type = reduce_type

    def __call__(self, *args, out=None, axis=None, keepdims=False, stream=None):
        if len(args) != self.nin or self.nout != 1:
            raise TypeError(f"Wrong number of arguments for {self.name!r}: {len(args)}")
        _check_arguments(self.name, args)
        dtypes, letters = _decide_types(self.params, [*args, *([out] if out is not None else [])])
        shape = np.broadcast_shapes(
            *(
                np.shape(arg._host if isinstance(arg, ndarray) else arg)
                for arg, parameter in zip(args, self.in_params)
                if not parameter.is_raw
            )
        )
        axes = range(len(shape)) if axis is None else np.atleast_1d(axis) % max(len(shape), 1)
        kept = [k for k in range(len(shape)) if k not in axes]
        reduced = tuple(1 if k in axes else n for k, n in enumerate(shape))
        out_shape = reduced if keepdims else tuple(shape[k] for k in kept)
        if self.identity in (None, "") and 0 in shape and 0 not in out_shape:
            raise ValueError(f"zero-size array to reduction operation {self.name}")
        if out is None:
            out = ndarray(out_shape, dtypes[-1])
        elif out.shape != out_shape:
            raise ValueError(f"Out shape is mismatched: {out.shape} instead of {out_shape}")
        total = ndarray._of(out._host.reshape(reduced), out._memory)
        # The elements of one result are adjacent, in the order of the array.
        ins = [
            x if not isinstance(x, ndarray) or parameter.is_raw else self._ordered(x, shape, axes)
            for x, parameter in zip(args, self.in_params)
        ]
        order = [*kept, *(k for k in range(len(shape)) if k in axes)]
        n = int(np.prod([shape[k] for k in axes], dtype=np.int64))
        elements = "".join(
            f"auto&& {parameter.name} = _raw_{parameter.name}[_ind];\n"
            for parameter in self.in_params
            if not parameter.is_raw
        )
        name = self.out_params[0].name
        reduce_type = self.reduce_type or C_TYPES[dtypes[-1].name]
        first = f"_a = {self.identity};" if self.identity not in (None, "") else "_is_first = true;"
        body = (
            f"CIndexer _ind(_dims);\nptrdiff_t _n = {n};\ntypedef {reduce_type} _type_reduce;\n"
            f"for (ptrdiff_t _o = 0; _o < {total.size}; _o++) {{\n"
            f"_type_reduce _a; bool _is_first = false; {first}\n"
            f"for (ptrdiff_t _j = 0; _j < _n; _j++) {{\n_ind.set(_o * _n + _j);\n{elements}"
            f"_type_reduce _b = static_cast<_type_reduce>({self.map_expr});\n"
            f"if (_is_first) {{ _a = _b; _is_first = false; }}\n"
            f"else {{ _type_reduce a = _a, b = _b; _a = ({self.reduce_expr}); }}\n}}\n"
            f"_ind.set(_o * max<ptrdiff_t>(_n, 1));\nauto&& {name} = _raw_{name}[_ind];\n"
            f"_type_reduce a = _a; {self.post_map_expr};\n}}\n"
        )
        written = self._ordered(total, shape, axes)
        shape = tuple(shape[k] for k in order)
        self._run(ins, [written], shape, letters, dtypes, body)
        return out

    @staticmethod
    def _ordered(x, shape, axes):
        """Returns a view whose reduced axes are the last; axes that NumPy broadcasts have stride
        0."""
        host = np.lib.stride_tricks.as_strided(
            x._host,
            shape,
            [
                0 if x._host.shape[k] == 1 and shape[k] != 1 else stride
                for k, stride in enumerate(x._host.strides)
            ],
        )
        return ndarray._of(np.moveaxis(host, list(axes), range(-len(axes), 0)), x._memory)


class RawKernel:
    """A kernel in CUDA C. The threads of a block run one after another, or in turns if they wait
    for each other by ``__syncthreads``."""

    def __init__(self, code, name, options=(), backend="nvrtc", **kwargs):
        self.code, self.name, self.options, self.backend = code, name, options, backend
        found = re.search(rf"__global__\s+void\s+{re.escape(name)}\s*\(([^)]*)\)", code)
        if found is None:
            raise ValueError(f"RawKernel: the code has no __global__ void {name}(...)")
        self._types = [
            re.sub(r"\b__restrict__\b|\brestrict\b", "", re.sub(r"\w+\s*$", "", word)).strip()
            for word in found[1].split(",")
            if word.strip()
        ]

    def __call__(self, grid, block, args, *, shared_mem=0):
        if len(args) != len(self._types):
            raise TypeError(f"{self.name} takes {len(self._types)} arguments, not {len(args)}")
        arrays = [arg for arg in args if isinstance(arg, ndarray)]
        values, writes = [], []
        for arg, kind in zip(args, self._types):
            if isinstance(arg, ndarray) != kind.endswith("*"):
                raise TypeError(f"{self.name}: {type(arg).__name__} given for {kind}")
            if isinstance(arg, ndarray):
                self._check_element(arg, kind)
                values.append(np.array(arg.data.ptr, np.int64))
                if not kind.startswith("const"):
                    writes.append(arg)
            elif isinstance(arg, np.ndarray) and arg.size == 1 and arg.dtype.names:
                values.append(arg)
                found = self._pointed_to(arg)
                arrays += [array for _, array in found]
                writes += [array for is_const, array in found if not is_const]
            elif isinstance(arg, SCALARS):
                # CuPy passes an int as 8 bytes and a float as a double.
                values.append(np.array(arg))
            else:
                raise TypeError(f"Unsupported type {type(arg)} (kernel {self.name})")
        check_current_device(self.name, arrays)
        if not ledger.computes:
            launch(self.name, arrays, writes)
            return
        sizes = [value.itemsize for value in values]
        library, arrays_of = self._loaded()
        finish(arrays)
        pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        dims = [*grid, *[1] * (3 - len(grid)), *block, *[1] * (3 - len(block)), shared_mem]
        noted = self._noted(arrays_of, arrays, dims)
        if (capture := in_use()) is not None:
            capture.keep(arrays)
        hosts = [array._memory.host for array in arrays]

        def again(_keep=(values, hosts)):
            return library.run_threads(pointers, (ctypes.c_long * 7)(*map(int, dims)))

        wrong = library.check_sizes((ctypes.c_long * len(sizes))(*sizes))
        if wrong:
            kind, size = self._types[wrong - 1], sizes[wrong - 1]
            raise TypeError(f"{self.name}: {size} bytes given for the {kind} (argument {wrong})")
        if noted is not None:
            written = list({id(x._memory): x._memory.host for x in writes}.values())
            _simt.run(noted[0], self.name, pointers, dims, noted[1], written)
        else:
            again()
        launch(self.name, arrays, writes, again)

    def compile(self, log_stream=None):
        """Compiles the kernel before its first call."""
        self._loaded()

    def _code(self):
        return re.sub("#include <cupy/.*>", "", self.code)

    def _loaded(self):
        """Returns the compiled library, and the text about arrays that precedes the kernel's
        code."""
        names = ", ".join(f"*({kind}*)_args[{k}]" for k, kind in enumerate(self._types))
        checks = " ".join(
            f"if (sizeof({kind}) != _sizes[{k}]) return {k + 1};"
            for k, kind in enumerate(self._types)
        )
        at_once = "__syncthreads" in self.code
        arrays_of = f"#define IN_DOUBLE\n{ARRAYS}" if IN_DOUBLE.search(self.code) else ARRAYS
        headers = f"#define AT_ONCE\n{arrays_of}{THREADS}" if at_once else arrays_of + THREADS
        text = (
            f'{headers}{self._code()}\nextern "C" int check_sizes(const long* _sizes) {{\n'
            f'{checks}\nreturn 0;\n}}\nextern "C" int run_threads(void** _args, long* _dims) {{\n'
            f"FLUSH\nrun_blocks(_dims, [&] {{ {self.name}({names}); }});\nreturn 0;\n}}\n"
        )
        ledger.compiles(self.name, (), text)
        library = compile_text(text, "-std=c++14 -O1 -nostdlib") if at_once else compile_text(text)
        return library, arrays_of

    def _noted(self, arrays_of, arrays, dims):
        """Returns the library of the text that records accesses, and the ranges of the arrays.
        Returns None for launches that ``_simt.takes`` refuses, and for texts that cannot be changed
        in this way, which the ledger lists."""
        ranges = _simt.ranges_of(array._host for array in arrays)
        if not _simt.takes(dims, ranges):
            return None
        try:
            text = _simt.text_of(arrays_of + SIMT, self._code(), self.name, self._types)
            return compile_text(text, "-std=c++17 -O1 -fno-strict-aliasing"), ranges
        except RuntimeError as error:
            ledger.not_noted[self.name] = str(error)
            return None

    def _pointed_to(self, struct):
        """Returns pairs (whether it is const, array) for the arrays to which a struct of arguments
        points."""
        blocks = {block.ptr: block for block in list(pool.blocks)}
        found = []
        for name in struct.dtype.names:
            if struct.dtype[name].base != np.uint64:
                continue
            is_const = re.search(rf"const\s+\w+\s*\*\s*{name}\b", self.code) is not None
            for pointer in filter(None, np.ravel(struct[name]).tolist()):
                block = blocks.get(pointer) or pool.block_of(pointer)
                if block is None:
                    raise ValueError(f"{self.name}: {pointer:#x} is not in an array's memory")
                found.append((is_const, ndarray._of(block.host, block)))
        return found

    def _check_element(self, array, kind):
        expected = C_TYPES[array.dtype.name]
        element = kind.removeprefix("const").removesuffix("*").strip()
        plain = {"int": "int32_t", "unsigned int": "uint32_t", "long long": "int64_t"}
        if plain.get(element, element) != expected and element in {*plain, *C_TYPES.values()}:
            raise TypeError(f"{self.name}: an array of {array.dtype} given for {kind}")


class RawModule:
    """Several kernels in one text."""

    def __init__(self, *, code=None, path=None, options=(), backend="nvrtc", **kwargs):
        if code is None:
            raise NotImplementedError("the double of CuPy compiles RawModules of code only")
        self.code, self._rest = code, (options, backend)

    def get_function(self, name):
        """Returns the kernel of that name."""
        return RawKernel(self.code, name, *self._rest)
