"""Runs RawKernels on simt.hpp: their texts get pointers that record every access."""

import ctypes
import itertools
import os
import re
import threading

import numpy as np

MOST_BYTES, MOST_THREADS = 1 << 18, 1 << 15
"""Larger launches run without records; other orders of their threads would not find more."""
N_ORDERS = 2
IS_ON = os.environ.get("CUPY_DOUBLE_SIMT", "1") != "0"

_seeds = itertools.count(1)
_one_at_a_time = threading.Lock()  # the library records the accesses of one launch at a time


def noting(code, name, types):
    """Returns the text with recording pointers, and the types of its parameters."""
    code = re.sub(
        r"__shared__\s+(\w+)\s+(\w+)\[(\w+)\];", r"Shared<\1> \2(\3, _shared_memory);", code
    )
    code = re.sub(r"\bSums\*\s*mine", "G<Sums> mine", code)
    head = re.search(rf"__global__\s+void\s+{re.escape(name)}\s*\(([^)]*)\)", code)
    words = [re.fullmatch(r"\s*(.*?)\s*(\w+)\s*", word, re.S) for word in head[1].split(",")]
    parameters = ", ".join(f"{_noting(word[1])} {word[2]}" for word in words)
    code = code[: head.start(1)] + parameters + code[head.end(1) :]
    member = r"^\s*(const )?(\w+)\* (\w+)\[(\d+)\];"
    code = re.sub(member, r"  G<\1\2> \3[\4];", code, flags=re.MULTILINE)
    return code, [_noting(kind) for kind in types]


def _noting(kind):
    found = re.fullmatch(r"(const\s+)?(\w[\w ]*?)\s*\*", kind)
    return f"G<{found[1] or ''}{found[2]}>" if found else kind


def text_of(headers, code, name, types):
    """Returns C++ text with the function ``run_noting``."""
    code, types = noting(code, name, types)
    given = ", ".join(f"*({kind}*)_args[{k}]" for k, kind in enumerate(types))
    return (
        f'{headers}{code}\nextern "C" int run_noting(void** _args, const long* _dims, long _seed, '
        f"long _n, const long* _ranges, char* _message) {{\n"
        f"FLUSH\nauto body = [&] {{ {name}({given}); }};\n"
        "return run_noted(_dims, _seed, _n, _ranges, _message, body);\n}\n"
    )


def ranges_of(arrays):
    """Returns the beginnings and ends of arrays of the host."""
    return sorted({np.lib.array_utils.byte_bounds(host) for host in arrays if host.size})


def takes(dims, ranges):
    """Returns whether a launch is recorded: it is small enough, and recording is not off."""
    n_bytes = sum(end - begin for begin, end in ranges)
    return IS_ON and n_bytes <= MOST_BYTES and np.prod(dims[:6]) <= MOST_THREADS


def run(library, name, pointers, dims, ranges, written):
    """Runs a kernel in several orders; raises RuntimeError for faults, or if results depend on the
    order.

    Args:
        library: the compiled library of the text.
        name: the name of the kernel.
        pointers: the pointers to the arguments.
        dims: the grid, the block and the number of bytes of shared memory.
        ranges: see :func:`ranges_of`.
        written: the host arrays that the kernel may write.
    """
    flat = (ctypes.c_long * (2 * len(ranges)))(*(int(x) for pair in ranges for x in pair))
    before = [host.copy() for host in written]
    results = []
    for _ in range(N_ORDERS):
        seed = next(_seeds)
        for host, copy in zip(written, before):
            host[...] = copy
        message = ctypes.create_string_buffer(4096)
        sizes = (ctypes.c_long * 7)(*map(int, dims))
        with _one_at_a_time:
            arguments = pointers, sizes, ctypes.c_long(seed), len(ranges), flat, message
            is_wrong = library.run_noting(*arguments)
        if is_wrong:
            raise RuntimeError(f"{name}, in order {seed}: {message.value.decode()}")
        results.append([host.tobytes() for host in written])
    if any(result != results[0] for result in results):
        raise RuntimeError(f"{name}: its results depend on the order of threads and blocks")
