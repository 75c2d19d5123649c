"""Lets numba compile loops with vectors of 512 bits.

LLVM prefers vectors of 256 bits on Intel's processors, because the first of these processors with
AVX-512 reduced their clock for wider vectors. Later processors do not, and exponentials and
polynomials take a third less time with wide vectors.
"""

import functools
from typing import Any


@functools.cache
def pipeline() -> Any:
    """Returns the class of numba's compiler for functions with wide vectors; None for processors on
    which the usual compiler is better.

    Example:
        >>> from mpchain.kernels.cpu.compiler import load_numba
        >>> compiler = pipeline() if load_numba() else None
    """
    from numba.core import codegen, compiler, lowering, typed_passes
    from numba.core.compiler_machinery import register_pass

    # the extension vbmi2 is as old as the processors that keep their clock
    if "+avx512vbmi2" not in codegen.get_host_cpu_features().split(","):
        return None

    class Lower(lowering.Lower):
        def setup_function(self, fndesc):
            super().setup_function(fndesc)
            # llvmlite's own method accepts only attributes without a value
            set.add(self.function.attributes, '"prefer-vector-width"="512"')

    @register_pass(mutates_CFG=True, analysis_only=False)
    class Lowering(typed_passes.NativeLowering):
        _name = "native_lowering_with_wide_vectors"
        lowering_class: Any = Lower

    class Compiler(compiler.Compiler):
        def define_pipelines(self):
            managers = super().define_pipelines()
            for manager in managers:
                manager.passes = [
                    (Lowering if step is typed_passes.NativeLowering else step, text)
                    for step, text in manager.passes
                ]
                manager.finalize()
            return managers

    return Compiler
