"""Hooks that time, print and profile functions."""

from mpchain.function_hooks.cuda_profile import CUDAProfileHook
from mpchain.function_hooks.cupy_memory_profile import CupyMemoryProfileHook
from mpchain.function_hooks.debug_print import PrintHook
from mpchain.function_hooks.timer import TimerHook
