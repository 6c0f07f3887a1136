"""The row writer that every backend here shares: it lays the row kernels out and launches them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import mlx.core as mx

from plait.errors import FamilyContractError
from plait.kernel import Kernel, KernelBackend, Launch, RunWindow, TokenWindow
from plait_metal import rows as row_kernels
from plait_metal.fence import fence_after, join

_UNITS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}


class KernelRowWriter(KernelBackend):
    """Writes rows with the kernels of `plait_metal.rows`, whatever `build` makes of them.

    A fence is an int32 zero, shape [1]; `plait_metal.fence` says how a reader depends on it.
    """

    def write_tokens(
        self,
        arena: mx.array,
        rows: mx.array,
        pages: mx.array,
        slots: mx.array,
        window: TokenWindow,
        after: Sequence[mx.array],
    ) -> mx.array:
        """Write `rows` [T, ...], outer * inner units each; rows of page 0 are padding and are not written."""
        _check_arena(arena)
        shape = (pages.shape[0], window.outer, window.inner)
        fits = rows.shape[0] == shape[0] and rows.size == prod(shape) and rows.dtype.size == window.unit
        if not fits or slots.shape != pages.shape:
            raise FamilyContractError(
                f"write_tokens: rows are {rows.dtype} {rows.shape} with {pages.shape[0]} pages and {slots.shape[0]} "
                f"slots, but the window takes {window.unit}-byte units of shape {shape}; check what the step returned"
            )
        if rows.size == 0:
            return fence_after(after)
        unit, scale = _widest_unit(window)
        geometry = (window.page // scale, window.offset // scale, window.block, window.outer, window.inner // scale)
        pieces, pages_in_arena = shape[0] * shape[1], _pages(arena, window.page * window.unit)
        return self._launch(
            row_kernels.WRITE_TOKENS,
            [
                arena,
                rows.reshape(shape).view(_UNITS[unit]),
                pages,
                slots,
                _ints(*geometry, pieces, pages_in_arena),
                join(after),
            ],
            -(-pieces // row_kernels.PIECES),
            {"T": _UNITS[unit]},
        )

    def write_runs(
        self, arena: mx.array, rows: mx.array, tables: mx.array, window: RunWindow, after: Sequence[mx.array]
    ) -> mx.array:
        """Write `rows` [R, ...]; rows whose first page is 0 are padding and are not written."""
        _check_arena(arena)
        row_bytes = rows.nbytes // max(rows.shape[0], 1)
        if rows.shape[:1] != tables.shape[:1] or row_bytes > 4 * window.words:
            raise FamilyContractError(
                f"write_runs: rows {rows.shape} of {row_bytes} bytes each for tables {tables.shape} and a tensor of "
                f"{4 * window.words} bytes; check what the step returned"
            )
        if rows.size == 0 or tables.size == 0:
            return fence_after(after)
        unit = next(size for size in (4, 2, 1) if row_bytes % size == 0)
        count, units, scale = rows.shape[0], row_bytes // unit, 4 // unit
        pages_in_arena = _pages(arena, 4 * window.page)
        geometry = (window.page * scale, window.offset * scale, units, count, pages_in_arena, tables.shape[1])
        return self._launch(
            row_kernels.WRITE_RUNS,
            [arena, rows.reshape(count, -1).view(_UNITS[unit]), tables, _ints(*geometry), join(after)],
            count * -(-units // row_kernels.CHUNK),
            {"T": _UNITS[unit], "CHUNK": row_kernels.CHUNK},
        )

    def zero_pages(self, arena: mx.array, pages: mx.array, after: Sequence[mx.array]) -> mx.array:
        """Set `pages` [N] to zero bits."""
        return self._launch_pages(row_kernels.ZERO_PAGES, arena, [pages], after)

    def copy_pages(self, arena: mx.array, sources: mx.array, targets: mx.array, after: Sequence[mx.array]) -> mx.array:
        """Copy page `sources[i]` to page `targets[i]`; pairs with target 0 are padding and are not copied."""
        return self._launch_pages(row_kernels.COPY_PAGES, arena, [sources, targets], after)

    def _launch_pages(
        self, kernel: Kernel, arena: mx.array, pages: Sequence[mx.array], after: Sequence[mx.array]
    ) -> mx.array:
        _check_arena(arena)
        if pages[0].size == 0:
            return fence_after(after)
        count, page_words = pages[0].shape[0], arena.shape[1]
        groups = count * -(-page_words // row_kernels.CHUNK)
        window = _ints(page_words, count, arena.shape[0])
        return self._launch(kernel, [arena, *pages, window, join(after)], groups, {"CHUNK": row_kernels.CHUNK})

    def _launch(
        self, kernel: Kernel, inputs: Sequence[mx.array], groups: int, template: dict[str, int | bool | mx.Dtype]
    ) -> mx.array:
        launch = Launch(
            grid=(groups * row_kernels.THREADS, 1, 1),
            threadgroup=(row_kernels.THREADS, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.int32],
            template=template,
        )
        (fence,) = self.build(kernel)(inputs, launch)
        return fence


def _widest_unit(window: TokenWindow) -> tuple[int, int]:
    """Bytes of the widest unit in which the window still has whole numbers, and how many of its own units that is."""
    scale = 4 // window.unit
    while any(extent % scale for extent in (window.page, window.offset, window.inner)):
        scale //= 2
    return window.unit * scale, scale


def _ints(*values: int) -> mx.array:
    return mx.array(values, dtype=mx.int32)


def _pages(arena: mx.array, page_bytes: int) -> int:
    """Pages of a window in the arena; its pages may be parts of the arena's own (kernel blocks)."""
    return int(arena.size) * 4 // page_bytes


def _check_arena(arena: mx.array) -> None:
    assert arena.dtype == mx.uint32 and arena.ndim == 2, f"an arena is uint32 [pages, words], not {arena.dtype}"
