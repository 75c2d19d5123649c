"""Captured steps, which are recorded once and then replayed as a list of calls with planned
memory."""

from mpchain.captured.captured import Captured as Captured
from mpchain.captured.captured import capture as capture
