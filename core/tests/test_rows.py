"""Rows into pages through NumPy, against bytes that are put in place one unit at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

import plait  # noqa: F401  before MLX
from plait.kernel import RunWindow, TokenWindow
from plait.memory.rows import NumpyRows, run_segments

import mlx.core as mx  # isort: skip

Bytes = npt.NDArray[np.uint8]
DTYPES = [mx.float32, mx.uint32, mx.int32, mx.float16, mx.bfloat16, mx.uint8]
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def random_bits(dice: np.random.Generator, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """Every bit pattern may come: NaNs with payloads, denormals, -0."""
    bits = dice.integers(0, 256, size=(math.prod(shape), dtype.size), dtype=np.uint8)
    return mx.array(bits.view(UNSIGNED[dtype.size])[:, 0]).reshape(shape).view(dtype)


def bytes_of(array: mx.array) -> Bytes:
    """The bits of an array, in row-major order."""
    flat = mx.contiguous(array).reshape(-1).view(mx.uint8)
    return np.array(flat)


def random_arena(dice: np.random.Generator, pages: int, words: int) -> mx.array:
    arena = mx.array(dice.integers(0, 2**32, size=(pages, words), dtype=np.uint32))
    mx.eval(arena)
    return arena


def put_tokens(arena: Bytes, rows: Bytes, pages: Sequence[int], slots: Sequence[int], window: TokenWindow) -> None:
    """What `write_tokens` promises, unit by unit, on the arena's bytes."""
    source = rows.reshape(len(pages), window.outer, window.inner, window.unit)
    for token, (page, slot) in enumerate(zip(pages, slots, strict=True)):
        for o in range(window.outer):
            for i in range(window.inner):
                at = page * window.page + window.offset + (o * window.block + slot) * window.inner + i
                arena[at * window.unit : (at + 1) * window.unit] = source[token, o, i]


def put_runs(arena: Bytes, rows: Bytes, tables: npt.NDArray[np.int32], window: RunWindow) -> None:
    """What `write_runs` promises, byte by byte."""
    for row, table in enumerate(tables):
        if table[0] == 0:
            continue
        for place, byte in enumerate(rows[row]):
            page, word = divmod(window.offset + place // 4, window.page)
            arena[(table[page] * window.page + word) * 4 + place % 4] = byte


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("outer", "inner", "block", "offset", "spare"),
    [(1, 24, 16, 0, 0), (4, 8, 16, 0, 0), (6, 4, 8, 64, 32), (12, 1, 32, 0, 96), (1, 4, 8, 128, 0)],
)
def test_tokens(dtype: mx.Dtype, outer: int, inner: int, block: int, offset: int, spare: int) -> None:
    dice = np.random.default_rng([outer, inner, block, offset])
    pages, tokens = 9, 40
    units = offset + outer * block * inner + spare
    arena = random_arena(dice, pages, units * dtype.size // 4)
    window = TokenWindow(units, offset, block, outer, inner, dtype.size)
    places = dice.choice((pages - 1) * block, size=tokens, replace=False)
    page, slot = (places // block + 1).astype(np.int32), (places % block).astype(np.int32)
    rows = random_bits(dice, (tokens, outer, inner), dtype)
    wanted = bytes_of(arena)
    put_tokens(wanted, bytes_of(rows), page.tolist(), slot.tolist(), window)
    NumpyRows().write_tokens(arena, rows, mx.array(page), mx.array(slot), window, ())
    np.testing.assert_array_equal(bytes_of(arena), wanted)


def test_token_rows_of_more_axes_and_in_strange_order() -> None:
    """A site's rows come as [tokens, *shape], often from a transposition."""
    dice = np.random.default_rng(1)
    arena = random_arena(dice, 4, 3 * 2 * 8 * 5)
    window = TokenWindow(3 * 2 * 8 * 5, 0, 8, 6, 5, 4)
    rows = random_bits(dice, (2, 5, 7, 3), mx.float32).transpose(2, 3, 0, 1)  # [7, 3, 2, 5]
    page, slot = [1, 1, 2, 3, 3, 2, 1], [0, 7, 3, 0, 6, 4, 2]
    wanted = bytes_of(arena)
    put_tokens(wanted, bytes_of(rows), page, slot, window)
    NumpyRows().write_tokens(arena, rows, mx.array(page), mx.array(slot), window, ())
    np.testing.assert_array_equal(bytes_of(arena), wanted)


def test_padding_tokens_land_on_the_null_page() -> None:
    dice = np.random.default_rng(2)
    arena = random_arena(dice, 3, 64)
    before = np.array(arena)
    window = TokenWindow(64, 0, 16, 1, 4, 4)
    rows = random_bits(dice, (3, 1, 4), mx.float32)
    NumpyRows().write_tokens(arena, rows, mx.array([0, 2, 0]), mx.array([1, 5, 1]), window, ())
    after = np.array(arena)
    np.testing.assert_array_equal(after[1], before[1])
    np.testing.assert_array_equal(after[2, 20:24], np.array(rows.view(mx.uint32))[1, 0])
    np.testing.assert_array_equal(np.delete(after[2], np.s_[20:24]), np.delete(before[2], np.s_[20:24]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("page", "offset", "elements"),
    [
        (128, 0, 100),  # a part of the first page
        (128, 0, 512),  # ends with a page
        (128, 128, 640),  # starts with a page
        (128, 77, 333),  # straddles pages at both ends
        (8, 3, 5),  # many pages of a few words
        (8, 6, 41),
        (4096, 1000, 3),
    ],
)
def test_runs(dtype: mx.Dtype, page: int, offset: int, elements: int) -> None:
    dice = np.random.default_rng(page + offset + elements)
    words = -(-elements * dtype.size // 4)
    per_run = -(-(offset + words) // page)
    live = 4
    arena = random_arena(dice, 1 + per_run * live + 3, page)
    ids = dice.permutation(np.arange(1, arena.shape[0], dtype=np.int32))[: per_run * live].reshape(live, per_run)
    tables = np.insert(ids, 2, 0, axis=0)  # a padding row in the middle
    rows = random_bits(dice, (live + 1, elements), dtype)
    window = RunWindow(page, offset, words)
    wanted = bytes_of(arena)
    put_runs(wanted, bytes_of(rows).reshape(live + 1, -1), tables, window)
    writer = NumpyRows()
    writer.write_runs(arena, rows, mx.array(tables), window, ())
    np.testing.assert_array_equal(bytes_of(arena), wanted)
    # What was kept from the first call serves the second.
    again = random_bits(dice, (1, elements), dtype)
    put_runs(wanted, bytes_of(again).reshape(1, -1), tables[3:4], window)
    writer.write_runs(arena, again, mx.array(tables[3:4]), window, ())
    np.testing.assert_array_equal(bytes_of(arena), wanted)


def test_state_tensors_of_more_axes_and_in_strange_order() -> None:
    dice = np.random.default_rng(3)
    arena = random_arena(dice, 8, 16)
    tables = np.array([[3, 1, 5], [7, 2, 6]], dtype=np.int32)
    rows = random_bits(dice, (3, 5, 2), mx.float32).transpose(2, 1, 0)  # [2, 5, 3]
    window = RunWindow(16, 20, 15)
    wanted = bytes_of(arena)
    put_runs(wanted, bytes_of(rows).reshape(2, -1), tables, window)
    NumpyRows().write_runs(arena, rows, mx.array(tables), window, ())
    np.testing.assert_array_equal(bytes_of(arena), wanted)


def test_a_run_of_padding_rows_only_writes_nothing() -> None:
    dice = np.random.default_rng(4)
    arena = random_arena(dice, 5, 16)
    wanted = bytes_of(arena)
    rows = random_bits(dice, (2, 20), mx.float32)
    NumpyRows().write_runs(arena, rows, mx.zeros((2, 2), dtype=mx.int32), RunWindow(16, 0, 20), ())
    np.testing.assert_array_equal(bytes_of(arena), wanted)


@pytest.mark.parametrize(
    ("window", "segments"),
    [
        (RunWindow(16, 0, 16), [(0, 0, 0, 16)]),
        (RunWindow(16, 15, 2), [(0, 15, 0, 1), (1, 0, 1, 1)]),
        (RunWindow(16, 20, 40), [(1, 4, 0, 12), (2, 0, 12, 16), (3, 0, 28, 12)]),
        (RunWindow(16, 32, 16), [(2, 0, 0, 16)]),
    ],
)
def test_segments(window: RunWindow, segments: list[tuple[int, int, int, int]]) -> None:
    assert run_segments(window) == segments


def test_zero_and_copy_touch_their_pages_only() -> None:
    dice = np.random.default_rng(5)
    arena = random_arena(dice, 8, 12)
    wanted = np.array(arena)
    writer = NumpyRows()
    wanted[[2, 6]] = 0
    writer.zero_pages(arena, mx.array([6, 2]), ())
    np.testing.assert_array_equal(np.array(arena), wanted)
    wanted[[1, 4]] = wanted[[7, 3]]
    writer.copy_pages(arena, mx.array([7, 3]), mx.array([1, 4]), ())
    np.testing.assert_array_equal(np.array(arena), wanted)


def test_a_write_is_seen_by_a_reader_that_was_made_before() -> None:
    """Views slice the arena once; the pages change under them."""
    arena = mx.zeros((4, 8), dtype=mx.uint32)
    mx.eval(arena)
    part = arena[:, 2:6]
    mx.eval(part)
    NumpyRows().write_runs(arena, mx.arange(4, dtype=mx.uint32)[None], mx.array([[3]]), RunWindow(8, 2, 4), ())
    assert part[mx.array([3])].tolist() == [[0, 1, 2, 3]]


def test_every_write_returns_a_fence() -> None:
    arena = mx.zeros((4, 8), dtype=mx.uint32)
    writer = NumpyRows()
    one = mx.array([1])
    fences = [
        writer.zero_pages(arena, one, ()),
        writer.copy_pages(arena, one, mx.array([2]), ()),
        writer.write_runs(arena, mx.zeros((1, 8), dtype=mx.uint32), one[None], RunWindow(8, 0, 8), ()),
        writer.write_tokens(arena, mx.zeros((1, 1, 1)), one, mx.array([0]), TokenWindow(8, 0, 8, 1, 1, 4), ()),
    ]
    assert all(isinstance(fence, mx.array) and fence.size == 1 for fence in fences)
