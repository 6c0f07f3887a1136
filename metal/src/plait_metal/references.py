"""The row kernels as functions of plain MLX operations: what each must equal.

Each takes the kernel's inputs and returns the fence and the new arena. They copy the whole arena, so they serve tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from plait_metal.fence import new_fence


def write_tokens(
    arena: mx.array,
    rows: mx.array,
    pages: mx.array,
    slots: mx.array,
    window: mx.array,
    after: mx.array,
    *,
    T: mx.Dtype,
) -> Sequence[mx.array]:
    """Rows [T, outer, inner] into the token windows of their pages; rows of page 0 or out of range are dropped."""
    page, offset, block, outer, inner, _, page_count = _numbers(window)
    units = _with_spill(arena, T, page)
    end = offset + outer * block * inner
    part = units[:, offset:end].reshape(-1, outer, block, inner).transpose(0, 2, 1, 3)
    valid = (pages > 0) & (pages < page_count) & (slots >= 0) & (slots < block)
    part[mx.where(valid, pages, page_count), mx.where(valid, slots, 0)] = rows
    part = part.transpose(0, 2, 1, 3).reshape(-1, end - offset)
    units = mx.concatenate([units[:, :offset], part, units[:, end:page]], axis=1)
    return new_fence(), _without_spill(units, arena)


def write_runs(
    arena: mx.array, rows: mx.array, tables: mx.array, window: mx.array, after: mx.array, *, T: mx.Dtype, CHUNK: int
) -> Sequence[mx.array]:
    """Rows [R, units] laid over the pages of their runs; rows whose first page is 0 are dropped."""
    page, offset, units_per_row, _, page_count, width = _numbers(window)
    units = _with_spill(arena, T, page)
    position = offset + mx.arange(units_per_row)
    column = mx.minimum(position // page, width - 1)
    target = tables[:, column]
    valid = (tables[:, :1] > 0) & (position // page < width)[None] & (target > 0) & (target < page_count)
    units[mx.where(valid, target, page_count), mx.broadcast_to(position % page, target.shape)] = rows
    return new_fence(), _without_spill(units, arena)


def zero_pages(
    arena: mx.array, pages: mx.array, window: mx.array, after: mx.array, *, CHUNK: int
) -> Sequence[mx.array]:
    """Pages out of range are dropped."""
    units = _with_spill(arena, mx.uint32, arena.shape[1])
    valid = (pages >= 0) & (pages < arena.shape[0])
    units[mx.where(valid, pages, arena.shape[0])] = 0
    return new_fence(), _without_spill(units, arena)


def copy_pages(
    arena: mx.array, sources: mx.array, targets: mx.array, window: mx.array, after: mx.array, *, CHUNK: int
) -> Sequence[mx.array]:
    """Pairs with the null page as target, or with a page out of range, are dropped."""
    units = _with_spill(arena, mx.uint32, arena.shape[1])
    count = arena.shape[0]
    valid = (sources >= 0) & (sources < count) & (targets > 0) & (targets < count)
    units[mx.where(valid, targets, count)] = units[mx.where(valid, sources, count)]
    return new_fence(), _without_spill(units, arena)


def _numbers(window: mx.array) -> list[int]:
    numbers: list[int] = np.array(window).tolist()
    return numbers


def _with_spill(arena: mx.array, unit: mx.Dtype, page: int) -> mx.array:
    """A copy of the arena, [pages, page] in `unit`s, with one more page that takes what must not be written."""
    units = arena.view(unit).reshape(-1, page)
    return mx.concatenate([units, mx.zeros((1, page), dtype=unit)])


def _without_spill(units: mx.array, arena: mx.array) -> mx.array:
    return units[:-1].reshape(arena.shape[0], -1).view(mx.uint32)
