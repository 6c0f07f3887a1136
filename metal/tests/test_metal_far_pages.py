"""Pages beyond 2^32 words: addresses are 64-bit. The arena is sparse, so only touched pages cost."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from plait.kernel import BuiltKernel, Kernel, Launch, RunWindow, TokenWindow
from plait_metal.emulator import EmulatorBackend
from plait_metal.emulator.arrays import RawArray, as_input, new_output, to_mlx
from plait_metal.emulator.compiler import compile_kernel
from plait_metal.emulator.launcher import run
from plait_metal.emulator.options import EmulatorOptions
from plait_metal.emulator.source import kernel_text

WORDS = 1024
PAGES = (1 << 22) + 8  # more than 2^32 words
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux


class FarBackend(EmulatorBackend):
    """The emulator with one arena that no MLX array could hold here."""

    def __init__(self, arena: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.arena = arena

    def build(self, kernel: Kernel) -> BuiltKernel:
        def built(inputs: Sequence[mx.array], launch: Launch) -> Sequence[mx.array]:
            raw = [RawArray("arena", mx.uint32, self.arena)]
            raw += [as_input(name, array) for name, array in zip(kernel.inputs[1:], inputs[1:], strict=True)]
            fence = new_output("fence", (1,), mx.int32)
            run(
                compile_kernel(kernel_text(kernel, raw, launch), kernel.name, EmulatorOptions()),
                kernel,
                raw,
                [fence],
                launch,
                EmulatorOptions(),
            )
            return [to_mlx(fence)]

        return built


def test_far_pages(emulator: EmulatorBackend) -> None:
    try:
        memory = mmap.mmap(-1, PAGES * WORDS * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    except OSError as error:
        pytest.skip(f"this machine grants no {PAGES * WORDS * 4 >> 30} GiB of address space: {error}")
    arena = np.frombuffer(memory, np.uint32).reshape(PAGES, WORDS)
    backend = FarBackend(arena)
    stand_in: Any = SimpleNamespace(dtype=mx.uint32, ndim=2, shape=arena.shape, size=arena.size)
    last = PAGES - 1

    rows = mx.arange(1, 15, dtype=mx.uint16).reshape(1, 2, 7)
    window = TokenWindow(2 * WORDS, 1, 16, 2, 7, 2)  # odd, so in units of 16 bits
    backend.write_tokens(stand_in, rows, mx.array([last]), mx.array([3]), window, [])
    halves = arena[last].view(np.uint16)
    assert halves[1 + 3 * 7 :][:7].tolist() == list(range(1, 8))
    assert halves[1 + (16 + 3) * 7 :][:7].tolist() == list(range(8, 15))

    run_rows = mx.arange(100, 100 + 1500, dtype=mx.uint32)[None]
    backend.write_runs(stand_in, run_rows, mx.array([[last - 1, last - 2]]), RunWindow(WORDS, 512, 1536), [])
    assert np.array_equal(arena[last - 1, 512:], np.arange(100, 612))
    assert np.array_equal(arena[last - 2, :988], np.arange(612, 1600))

    backend.copy_pages(stand_in, mx.array([last - 1]), mx.array([last - 3]), [])
    assert np.array_equal(arena[last - 3], arena[last - 1])
    backend.zero_pages(stand_in, mx.array([last - 2]), [])
    assert not arena[last - 2].any()
    # Where a 32-bit product of page and page size would have led.
    assert not arena[:8].any()
