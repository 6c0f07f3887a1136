"""The row kernels, on every backend this machine has, against plain NumPy and against their references."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from plait.errors import FamilyContractError
from plait.kernel import Kernel, KernelBackend, Launch, RunWindow, TokenWindow
from plait_metal.emulator import EmulatorBackend, KernelDefectError
from plait_metal.rows import ROW_KERNELS

CANARY = 0xA5A5A5A5


def new_arena(pages: int, words: int) -> mx.array:
    """An arena of canaries, with a null page of zeros."""
    bits = np.full((pages, words), CANARY, np.uint32)
    bits[0] = 0
    arena = mx.array(bits)
    mx.eval(arena)
    return arena


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], unit: int) -> np.ndarray[Any, Any]:
    """Random units, quiet and signalling NaNs of every float type among them."""
    bits = rng.integers(0, 1 << (8 * unit), shape, dtype=np.uint64)
    nans = {1: [0xFF], 2: [0x7F81, 0xFFC1, 0x7C01, 0xFE00], 4: [0x7F800001, 0xFFC00000, 0x7FFFFFFF]}[unit]
    flat = bits.reshape(-1)
    flat[: len(nans)] = nans[: flat.size]
    return bits.astype({1: np.uint8, 2: np.uint16, 4: np.uint32}[unit])


def as_rows(bits: np.ndarray[Any, Any], dtype: mx.Dtype) -> mx.array:
    return mx.array(bits).view(dtype)


def ints(values: Any) -> mx.array:
    return mx.array(np.asarray(values, np.int32))


def bytes_of(arena: mx.array) -> np.ndarray[Any, Any]:
    mx.eval(arena)
    return np.array(arena, copy=True).view(np.uint8)


def expect_tokens(before: np.ndarray[Any, Any], bits: Any, pages: Any, slots: Any, w: TokenWindow) -> Any:
    """`TokenWindow`'s own words, one unit at a time, on the arena's bytes."""
    after = before.copy()
    for token, (page, slot) in enumerate(zip(pages, slots, strict=True)):
        for o in range(w.outer if page else 0):
            start = (w.offset + (o * w.block + slot) * w.inner) * w.unit
            after[page, start : start + w.inner * w.unit] = np.ascontiguousarray(bits[token, o]).view(np.uint8)
    return after


def expect_runs(before: np.ndarray[Any, Any], bits: Any, tables: Any, w: RunWindow) -> Any:
    """`RunWindow`'s own words, one 32-bit word (or what is left of one) at a time."""
    after = before.copy()
    for row, table in zip(bits, tables, strict=True):
        data = np.ascontiguousarray(row).reshape(-1).view(np.uint8)
        for start in range(0, len(data) if table[0] else 0, 4):
            word = w.offset + start // 4
            piece = data[start : start + 4]
            byte = 4 * (word % w.page)
            after[table[word // w.page], byte : byte + len(piece)] = piece
    return after


TOKEN_CASES = {
    # name: (outer, inner, dtype, block, offset in units)
    "head24-bf16": (4, 24, mx.bfloat16, 16, 0),
    "head64-bf16-offset": (4, 64, mx.bfloat16, 32, 256),
    "head96-fp32-offset": (2, 96, mx.float32, 16, 128),
    "head128-fp32": (4, 128, mx.float32, 32, 0),
    "head128-fp16-offset": (2, 128, mx.float16, 16, 512),
    "latent576-bf16-offset": (1, 576, mx.bfloat16, 16, 384),
    "latent576-fp32": (1, 576, mx.float32, 32, 0),
    "odd-bf16": (3, 7, mx.bfloat16, 16, 5),
    "odd-bytes": (2, 5, mx.uint8, 16, 3),
    "bytes-in-pairs": (2, 6, mx.uint8, 16, 2),
}


@pytest.mark.parametrize("case", TOKEN_CASES)
def test_write_tokens(backend: KernelBackend, case: str) -> None:
    outer, inner, dtype, block, offset = TOKEN_CASES[case]
    unit = dtype.size
    words = (offset + outer * block * inner) * unit // 4 + 128  # room behind the window
    window = TokenWindow(4 * words // unit, offset, block, outer, inner, unit)
    rng = np.random.default_rng(len(case))
    arena = new_arena(7, words)
    # Page 3 twice, first and last slot, and three padding rows that share a slot.
    pages, slots = [3, 5, 0, 3, 6, 0, 1, 0], [0, block - 1, 2, block - 1, 4, 2, 0, 2]
    bits = random_bits(rng, (len(pages), outer, inner), unit)
    before = bytes_of(arena)
    fence = backend.write_tokens(arena, as_rows(bits, dtype), ints(pages), ints(slots), window, [])
    mx.eval(fence)
    np.testing.assert_array_equal(bytes_of(arena), expect_tokens(before, bits, pages, slots, window))
    assert fence.tolist() == [0] and fence.dtype == mx.int32


RUN_CASES = {
    # name: (page words, offset words, words of the tensor, shape of a row, dtype, pages of a run)
    "inside-one-page": (1024, 128, 256, (16, 16), mx.float32, 2),
    "over-three-pages": (512, 384, 1024, (8, 4, 32), mx.float32, 4),
    "chunks-of-a-long-row": (512, 128, 4736, (4, 34, 34), mx.float32, 10),
    "bf16-padded": (256, 128, 384, (3, 250), mx.bfloat16, 3),
    "bf16-odd": (256, 128, 384, (3, 251), mx.bfloat16, 3),
    "bytes-odd": (128, 128, 128, (257,), mx.uint8, 3),
}


@pytest.mark.parametrize("case", RUN_CASES)
def test_write_runs(backend: KernelBackend, case: str) -> None:
    page, offset, words, shape, dtype, width = RUN_CASES[case]
    window = RunWindow(page, offset, words)
    rng = np.random.default_rng(len(case))
    ids = rng.permutation(np.arange(1, 3 * width + 2))
    tables = np.zeros((4, width), np.int32)
    tables[0], tables[1], tables[3] = ids[:width], ids[width : 2 * width], ids[2 * width : 3 * width]
    tables[2, 1:] = ids[-1]  # padding, for its first page is 0
    arena = new_arena(len(ids) + 1, page)
    bits = random_bits(rng, (4, *shape), dtype.size)
    before = bytes_of(arena)
    mx.eval(backend.write_runs(arena, as_rows(bits, dtype), ints(tables), window, []))
    np.testing.assert_array_equal(bytes_of(arena), expect_runs(before, bits, tables, window))


def test_zero_pages_and_copy_pages(backend: KernelBackend) -> None:
    arena = new_arena(9, 2048 + 640)  # more than one chunk, and a part of one
    rng = np.random.default_rng(7)
    np.array(arena, copy=False)[1:] = random_bits(rng, (8, 2688), 4)
    before = bytes_of(arena)
    zeroed = backend.zero_pages(arena, ints([4, 0, 7, 0]), [])
    mx.eval(backend.copy_pages(arena, ints([2, 0, 5, 0, 0]), ints([3, 0, 8, 0, 6]), [zeroed]))
    expected = before.copy()
    expected[[4, 7]] = 0
    expected[[3, 8, 6]] = before[[2, 5, 0]]
    np.testing.assert_array_equal(bytes_of(arena), expected)


def test_indices_out_of_range_write_nothing(backend: KernelBackend) -> None:
    arena = new_arena(4, 256)
    before = bytes_of(arena)
    rows = mx.ones((4, 1, 8), dtype=mx.float32)
    window = TokenWindow(256, 0, 16, 1, 8, 4)
    mx.eval(backend.write_tokens(arena, rows, ints([4, -1, 1, 1]), ints([0, 0, 16, -1]), window, []))
    mx.eval(backend.write_runs(arena, mx.ones((1, 400)), ints([[9, -3]]), RunWindow(256, 0, 512), []))
    mx.eval(backend.zero_pages(arena, ints([4, -1]), []))
    mx.eval(backend.copy_pages(arena, ints([4, 1, 2]), ints([1, 4, -1]), []))
    np.testing.assert_array_equal(bytes_of(arena), before)


def test_a_table_shorter_than_the_run_writes_what_it_has(backend: KernelBackend) -> None:
    arena = new_arena(4, 256)
    mx.eval(backend.write_runs(arena, mx.zeros((1, 400), mx.uint32), ints([[3]]), RunWindow(256, 0, 512), []))
    expected = new_arena(4, 256)
    np.array(expected, copy=False)[3] = 0
    np.testing.assert_array_equal(bytes_of(arena), bytes_of(expected))


def test_a_reader_that_takes_the_fence_sees_the_write(backend: KernelBackend) -> None:
    """Nothing is evaluated between the writes and the read: the fences alone order them."""
    arena = new_arena(4, 128)
    fence = backend.zero_pages(arena, ints([1, 2, 3]), [])
    fence = backend.write_runs(arena, mx.full((1, 128), 9, mx.uint32), ints([[2]]), RunWindow(128, 0, 128), [fence])
    fence = backend.copy_pages(arena, ints([2]), ints([3]), [fence, mx.ones((2, 3))])
    fence = backend.zero_pages(arena, ints([]), [fence])  # nothing to do, and still in the chain
    assert arena[ints([1, 2, 3]) + fence][:, 5].tolist() == [0, 9, 9]


def test_a_window_may_see_kernel_blocks(backend: KernelBackend) -> None:
    """Pages of three kernel blocks of 8 tokens each: the window counts blocks, of which there are more than pages."""
    arena = new_arena(4, 3 * 8 * 2 * 8)
    window = TokenWindow(8 * 2 * 8, 0, 8, 2, 8, 4)
    rows = mx.arange(3 * 2 * 8, dtype=mx.float32).reshape(3, 2, 8)
    blocks, slots = [11, 3, 7], [0, 7, 5]
    before = bytes_of(arena).reshape(12, -1)
    mx.eval(backend.write_tokens(arena, rows, ints(blocks), ints(slots), window, []))
    expected = expect_tokens(before, np.array(rows), blocks, slots, window)
    np.testing.assert_array_equal(bytes_of(arena).reshape(12, -1), expected)


def test_rows_need_not_be_contiguous(backend: KernelBackend) -> None:
    arena = new_arena(3, 1024)
    """Nor flat: a token's axes may come as its family has them."""
    rows = mx.arange(2 * 4 * 8, dtype=mx.float32).reshape(8, 2, 2, 2).transpose(3, 2, 1, 0)
    window = TokenWindow(1024, 0, 16, 4, 8, 4)
    before = bytes_of(arena)
    mx.eval(backend.write_tokens(arena, rows, ints([2, 1]), ints([3, 4]), window, []))
    np.testing.assert_array_equal(
        bytes_of(arena), expect_tokens(before, np.array(rows.reshape(2, 4, 8)), [2, 1], [3, 4], window)
    )


def test_rows_that_do_not_fit_are_refused(emulator: EmulatorBackend) -> None:
    arena = new_arena(2, 256)
    window = TokenWindow(256, 0, 16, 1, 8, 4)
    for rows in (mx.ones((1, 1, 9)), mx.ones((1, 1, 8), dtype=mx.bfloat16)):
        with pytest.raises(FamilyContractError, match="write_tokens"):
            emulator.write_tokens(arena, rows, ints([1]), ints([0]), window, [])
    with pytest.raises(FamilyContractError, match="write_runs"):
        emulator.write_runs(arena, mx.ones((1, 129)), ints([[1]]), RunWindow(256, 0, 128), [])


def test_two_rows_for_one_place_are_a_race(emulator: EmulatorBackend) -> None:
    """The kernels cannot order them, so a caller that asks for it must hear of it in tests."""
    rows = mx.array([[[1.0] * 32], [[2.0] * 32]])
    with pytest.raises(KernelDefectError, match="race"):
        emulator.write_tokens(
            new_arena(3, 512), rows, ints([2, 2]), ints([5, 5]), TokenWindow(512, 0, 16, 1, 32, 4), []
        )


class Recorder(EmulatorBackend):
    """Runs like the emulator and keeps what it was asked to run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Kernel, list[mx.array], Launch]] = []

    def build(self, kernel: Kernel) -> Any:
        built = super().build(kernel)

        def run(inputs: list[mx.array], launch: Launch) -> Any:
            copies = [mx.array(np.array(array)) for array in inputs]
            self.calls.append((kernel, copies, launch))
            return built(inputs, launch)

        return run


def test_kernels_equal_their_references(emulator: EmulatorBackend) -> None:
    """Each record's reference, given what the kernel was given, returns the arena that the kernel left."""
    recorder = Recorder()
    rng = np.random.default_rng(3)
    arena = new_arena(8, 1024)
    arenas = []
    bf16 = as_rows(random_bits(rng, (3, 2, 5), 2), mx.bfloat16)
    writes = [
        lambda: recorder.write_tokens(
            arena, bf16, ints([4, 0, 9]), ints([7, 1, 2]), TokenWindow(2048, 11, 16, 2, 5, 2), []
        ),
        lambda: recorder.write_tokens(
            arena, mx.random.normal((2, 1, 24)), ints([1, 2]), ints([15, 16]), TokenWindow(1024, 128, 16, 1, 24, 4), []
        ),
        lambda: recorder.write_tokens(
            arena, mx.random.normal((2, 2, 8)), ints([23, 24]), ints([3, 0]), TokenWindow(256, 0, 16, 2, 8, 4), []
        ),
        lambda: recorder.write_runs(
            arena, mx.random.normal((3, 1200)), ints([[5, 6], [0, 3], [7, 0]]), RunWindow(1024, 640, 1280), []
        ),
        lambda: recorder.write_runs(arena, bf16[:, :, :1], ints([[5], [3], [99]]), RunWindow(1024, 128, 128), []),
        lambda: recorder.zero_pages(arena, ints([2, 0, 8]), []),
        lambda: recorder.copy_pages(arena, ints([4, 5, 0]), ints([1, 0, 3]), []),
    ]
    for write in writes:
        mx.eval(write())
        arenas.append(bytes_of(arena))
    assert {kernel.name for kernel, _, _ in recorder.calls} == {kernel.name for kernel in ROW_KERNELS}
    for (kernel, inputs, launch), written in zip(recorder.calls, arenas, strict=True):
        fence, new = kernel.reference(*inputs, **launch.template)
        np.testing.assert_array_equal(bytes_of(new), written, err_msg=kernel.name)
        assert fence.tolist() == [0]
