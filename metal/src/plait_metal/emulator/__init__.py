"""Runs kernel texts on the CPU of a Linux machine, checked: for tests.

Every GPU thread is a fiber; every load and store is examined before it happens; lanes of a SIMD group must come to the
same operations together. A defect ends the launch with a `KernelDefectError`, never the process.
"""

from __future__ import annotations

from plait_metal.emulator.backend import EmulatorBackend
from plait_metal.emulator.compiler import unavailable_reason
from plait_metal.emulator.errors import KernelDefectError
from plait_metal.emulator.options import EmulatorOptions

__all__ = ["EmulatorBackend", "EmulatorOptions", "KernelDefectError", "unavailable_reason"]
