"""Tests the machine code of sums: how many loads a thread begins before it waits for one.

A thread that uses each value before it loads the next one waits for the memory each time; such sums
ran at a twentieth of the bandwidth. A division may be a call, across which the compiler moves no
load.
"""

import pytest

from mpchain.kernels.gpu import cuda_losses, cuda_reductions
from tests.gpu import nvrtc, sass

_KERNELS = {
    kernel.name: kernel
    for sums in (*vars(cuda_reductions).values(), *vars(cuda_losses).values())
    if isinstance(sums, cuda_reductions.SumKernel)
    for kernel in (sums, *(cuda_reductions._stages(sums) if sums.has_parts else ()))
}
_DIVIDES = {"statistics_from_parts"}
"""Kernels that divide to join means, each thread for only a few parts."""
_LONG = {"statistics_of_parts", "parameter_gradients_of_parts", "column_sums_of_parts"}
_DTYPES = "ef"
_THREADS = 256  # the number of threads in a block
_LOADS = 4  # the number of loads before the first use of a value

needs_tools = pytest.mark.skipif(
    nvrtc.load() is None or sass.load() is None,
    reason=nvrtc.REASON if nvrtc.load() is None else sass.REASON,
)


def _code(kernel, dtype, architecture):
    reads, writes, _ = (names.split() for names in kernel.parameters)
    kinds = {"t": "i", **{name: "f" for name in (*reads, *writes) if name.startswith("of_")}}
    dtypes = "".join(kinds.get(name, dtype) for name in (*reads, *writes))
    log, binary = nvrtc.compiled(kernel.text(dtypes, "f", _THREADS), architecture)
    assert log == "" and binary
    return sass.disassembled(binary)


def _cases():
    """Yields the long sums of a training step; in nightly tests, all sums for all GPUs."""
    for architecture in ("sm_80", "sm_90", "sm_100"):
        for name in _KERNELS:
            for dtype in _DTYPES:
                is_usual = architecture == "sm_90" and name in _LONG
                marks = () if is_usual else (pytest.mark.nightly,)
                values = name, dtype, architecture
                yield pytest.param(*values, marks=marks, id="-".join((name, dtype, architecture)))


@needs_tools
@pytest.mark.parametrize("name, dtype, architecture", [*_cases()])
def test_sums_load_ahead(name, dtype, architecture):
    code = _code(_KERNELS[name], dtype, architecture)
    loops = [loop for loop in code.loops() if any(x.is_load for x in loop)]
    # Each kernel has a second loop for the last few elements.
    main = [loop for loop in loops if sum(x.is_load for x in loop) >= _LOADS]
    assert main and len(loops) >= 2
    for loop in main:
        assert sass.loads_before_use(loop) >= _LOADS
        assert name in _DIVIDES or not any(x.is_call for x in loop)
    assert code.n_registers() <= 64 and code.n_spills() == 0


@needs_tools
def test_a_sum_that_uses_each_value_at_once_is_found():
    text = _KERNELS["statistics"].text("efff", "f", _THREADS)
    begin, end = text.index("  for (; j + 3"), text.index("  for (; j < end")
    _, binary = nvrtc.compiled(text[:begin] + text[end:], "sm_90")
    loops = [loop for loop in sass.disassembled(binary).loops() if any(x.is_load for x in loop)]
    assert loops and all(sass.loads_before_use(loop) == 1 for loop in loops)


@needs_tools
def test_texts_are_compiled_as_by_cupy():
    """Numbers below 1.2e-38 are zero, even if a caller asks for another thing."""
    text = 'extern "C" __global__ void own(float* x) { *x = *x * 3.0f; }'
    _, binary = nvrtc.compiled(text, "sm_90", ["-ftz=false"])
    assert "FMUL.FTZ" in [x.name for x in sass.disassembled(binary).instructions]


LISTING = """
.text.own:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E R2, desc[UR4][R8.64] ;
        /*0020*/              @!P0 LDG.E.64 R4, desc[UR4][R10.64] ;
.L_x_2:
        /*0030*/                   CALL.REL.NOINC `($__internal_0) ;
        /*0040*/               @P1 BRA `(.L_x_2) ;
        /*0050*/                   FADD R6, R5, R2 ;
        /*0060*/                   STL [R1], R6 ;
        /*0070*/               @P0 BRA `(.L_x_1) ;
        /*0080*/                   BRA `(.L_x_3) ;
.L_x_3:
        /*0090*/                   EXIT ;
"""


def test_what_is_read_of_a_listing():
    code = sass.parsed(LISTING)
    calls = [x.is_call for x in code.instructions]
    assert sum(calls) == 1 and not sass.Instruction("CALL.REL", "`(.L_x_16)").is_call
    assert len(code.instructions) == 10 and code.n_registers() == 11 and code.n_spills() == 1
    (inner,) = code.loops()
    assert [x.name for x in inner] == ["CALL.REL.NOINC", "BRA"]
    outer = code.instructions[1:8]
    assert sass.loads_before_use(outer) == 2
    assert outer[1].written() == {4, 5} and outer[4].read() == {5, 2}
    assert sass.loads_before_use([outer[0], outer[4], outer[1]]) == 1
