"""Writes rows into arenas through NumPy: the way on CPU, and wherever there is no kernel backend.

`np.array(arena, copy=False)` shares the arena's memory, so a write is in place by nature; MLX's own scatter copies
the arena while a reader is pending, and is ten times slower on CPU when it is not. Everything that reads the pages
must have been evaluated first, which the step loop does.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from plait.kernel import RowWriter, RunWindow, TokenWindow

Bits = npt.NDArray[np.unsignedinteger]
UNITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
MLX_UNITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}


def as_bits(array: mx.array, unit: int) -> Bits:
    """Return an evaluated array's memory as unsigned integers of `unit` bytes."""
    if array.dtype == mx.bfloat16:  # which NumPy does not know
        array = array.view(MLX_UNITS[unit])
    bits: Bits = np.array(array, copy=False).view(UNITS[unit])
    return bits


def run_segments(window: RunWindow) -> list[tuple[int, int, int, int]]:
    """Cut a tensor of a run at page borders: (page of the run, first word in it, first word of the tensor, words)."""
    segments = []
    done = 0
    while done < window.words:
        page, word = divmod(window.offset + done, window.page)
        size = min(window.page - word, window.words - done)
        segments.append((page, word, done, size))
        done += size
    return segments


class NumpyRows(RowWriter):
    """The row writer of core. It writes at once; its fence is a constant."""

    def __init__(self) -> None:
        self._fence = mx.zeros((1,), dtype=mx.int32)
        self._segments: dict[RunWindow, list[tuple[int, int, int, int]]] = {}

    def write_tokens(
        self,
        arena: mx.array,
        rows: mx.array,
        pages: mx.array,
        slots: mx.array,
        window: TokenWindow,
        after: Sequence[mx.array],
    ) -> mx.array:
        """See `RowWriter.write_tokens`."""
        units = np.array(arena, copy=False).view(UNITS[window.unit])
        size = window.unit
        target = np.lib.stride_tricks.as_strided(
            units.reshape(-1)[window.offset :],
            shape=(units.size // window.page, window.block, window.outer, window.inner),
            strides=(window.page * size, window.inner * size, window.block * window.inner * size, size),
        )
        bits = as_bits(rows, size).reshape(-1, window.outer, window.inner)
        target[np.array(pages, copy=False), np.array(slots, copy=False)] = bits
        return self._fence

    def write_runs(
        self, arena: mx.array, rows: mx.array, tables: mx.array, window: RunWindow, after: Sequence[mx.array]
    ) -> mx.array:
        """See `RowWriter.write_runs`."""
        bits = as_bits(rows, rows.dtype.size).reshape(rows.shape[0], -1)
        target = np.array(arena, copy=False).view(bits.dtype)
        per_word = 4 // rows.dtype.size
        segments = self._segments.get(window)
        if segments is None:
            segments = self._segments[window] = run_segments(window)
        owners = np.array(tables, copy=False)
        live = owners[:, 0] != 0
        if not live.all():
            bits, owners = bits[live], owners[live]
        for page, word, first, words in segments:
            piece = bits[:, first * per_word : (first + words) * per_word]
            for row, owner in enumerate(owners[:, page].tolist()):
                target[owner, word * per_word : word * per_word + piece.shape[1]] = piece[row]
        return self._fence

    def zero_pages(self, arena: mx.array, pages: mx.array, after: Sequence[mx.array]) -> mx.array:
        """See `RowWriter.zero_pages`."""
        np.array(arena, copy=False)[np.array(pages, copy=False)] = 0
        return self._fence

    def copy_pages(self, arena: mx.array, sources: mx.array, targets: mx.array, after: Sequence[mx.array]) -> mx.array:
        """See `RowWriter.copy_pages`."""
        words = np.array(arena, copy=False)
        words[np.array(targets, copy=False)] = words[np.array(sources, copy=False)]
        return self._fence
