"""Captured steps, which are recorded once and then replayed: as a list of calls with planned
memory, or as a CUDA graph on GPUs."""

from mpchain.captured.captured import Captured as Captured
from mpchain.captured.captured import capture as capture
