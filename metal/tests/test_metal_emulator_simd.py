"""SIMD-group operations, SIMD-group matrices and atomics of the emulator, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

RunText = Callable[..., Any]
WIDTH = 32
LANES = np.arange(WIDTH)

# expression in v (int32 of the lane) and lane -> what NumPy makes of all lanes' values
OPERATIONS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "simd_sum(v)": lambda v: np.full(WIDTH, v.sum()),
    "simd_product(v % 3 == 0 ? 2 : 1)": lambda v: np.full(WIDTH, 2 ** (v % 3 == 0).sum()),
    "simd_max(v)": lambda v: np.full(WIDTH, v.max()),
    "simd_min(v)": lambda v: np.full(WIDTH, v.min()),
    "simd_and(v)": lambda v: np.full(WIDTH, np.bitwise_and.reduce(v)),
    "simd_or(v)": lambda v: np.full(WIDTH, np.bitwise_or.reduce(v)),
    "simd_xor(v)": lambda v: np.full(WIDTH, np.bitwise_xor.reduce(v)),
    "simd_shuffle(v, (lane * 7 + 3) % 32)": lambda v: v[(LANES * 7 + 3) % WIDTH],
    "simd_shuffle_xor(v, 9)": lambda v: v[LANES ^ 9],
    "simd_shuffle_down(v, 5)": lambda v: np.where(LANES + 5 < WIDTH, np.roll(v, -5), v),
    "simd_shuffle_up(v, 5)": lambda v: np.where(LANES >= 5, np.roll(v, 5), v),
    "simd_shuffle_rotate_down(v, 5)": lambda v: np.roll(v, -5),
    "simd_shuffle_rotate_up(v, 5)": lambda v: np.roll(v, 5),
    "simd_broadcast(v, 11)": lambda v: np.full(WIDTH, v[11]),
    "simd_broadcast_first(v)": lambda v: np.full(WIDTH, v[0]),
    "simd_prefix_inclusive_sum(v)": np.cumsum,
    "simd_prefix_exclusive_sum(v)": lambda v: np.cumsum(v) - v,
    "simd_any(v == 3)": lambda v: np.full(WIDTH, (v == 3).any()),
    "simd_all(v < 1000)": lambda v: np.full(WIDTH, (v < 1000).all()),
    "int(uint64_t(simd_ballot(lane % 5 == 2)) >> 2)": lambda v: np.full(
        WIDTH, sum(1 << i for i in range(WIDTH) if i % 5 == 2) >> 2
    ),
    "quad_sum(v)": lambda v: np.repeat(v.reshape(-1, 4).sum(1), 4),
}


@pytest.mark.parametrize("order", [0, 1])
def test_operations_equal_numpy(run_text: RunText, order: int) -> None:
    """Two SIMD groups with different values, all operations in one body."""
    lines = [f"y[{n} * 64 + t] = {expression};" for n, expression in enumerate(OPERATIONS)]
    body = "const uint t = thread_index_in_threadgroup, lane = thread_index_in_simdgroup; const int v = x[t];\n"
    values = np.random.default_rng(5).integers(0, 900, 64).astype(np.int32)
    (y,) = run_text(
        body + "\n".join(lines),
        {"x": mx.array(values)},
        {"y": ((len(OPERATIONS), 64), mx.int32)},
        (64, 1, 1),
        (64, 1, 1),
        order=order,
    )
    for row, (expression, expected) in zip(np.array(y), OPERATIONS.items(), strict=True):
        halves = np.concatenate([expected(values[:32]), expected(values[32:])])
        np.testing.assert_array_equal(row, halves, err_msg=expression)


def butterfly(values: np.ndarray[Any, Any], distances: list[int]) -> np.float32:
    lanes = values.copy()
    for apart in distances:
        lanes = lanes + lanes[LANES ^ apart]
    return np.float32(lanes[0])


@pytest.mark.parametrize("order", [0, 1, 2])
def test_reduction_orders_are_the_named_ones(run_text: RunText, order: int) -> None:
    values = np.random.default_rng(2).normal(size=WIDTH).astype(np.float32)
    (y,) = run_text(
        "const float s = simd_sum(x[thread_position_in_grid.x]); if (thread_position_in_grid.x == 0) y[0] = s;",
        {"x": mx.array(values)},
        {"y": ((1,), mx.float32)},
        (32, 1, 1),
        reduction_order=order,
    )
    serial = np.float32(0)
    for value in values:
        serial = np.float32(serial + value)
    expected = [butterfly(values, [1, 2, 4, 8, 16]), butterfly(values, [16, 8, 4, 2, 1]), serial]
    assert len(set(expected)) == 3, "values that do not tell the orders apart"
    assert np.float32(y.item()) == expected[order]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_small_floats_take_part(run_text: RunText, dtype: mx.Dtype) -> None:
    x = mx.arange(WIDTH).astype(dtype)
    (y,) = run_text(
        "const uint t = thread_position_in_grid.x; y[t] = simd_max(x[t]) + simd_shuffle_xor(x[t], 1);",
        {"x": x},
        {"y": ((WIDTH,), dtype)},
        (32, 1, 1),
    )
    assert y.dtype == dtype and y.tolist() == [31 + (i ^ 1) for i in range(WIDTH)]


def test_reductions_in_a_group_that_is_not_full(run_text: RunText) -> None:
    """Metal's threadgroups at the grid's edge are smaller; a reduction is over the lanes that exist."""
    (y,) = run_text(
        "y[thread_position_in_grid.x] = simd_sum(x[thread_position_in_grid.x]);",
        {"x": mx.arange(45)},
        {"y": ((45,), mx.int32)},
        (45, 1, 1),
    )
    assert y.tolist() == [sum(range(32))] * 32 + [sum(range(32, 45))] * 13


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices(run_text: RunText, transposed: bool) -> None:
    a, b = (np.random.default_rng(n).integers(-4, 5, (8, 16)).astype(np.float32) for n in range(2))
    body = """
    simdgroup_float8x8 a, b, c = make_filled_simdgroup_matrix<float, 8, 8>(2.0f);
    simdgroup_load(a, left + 8, 16);
    simdgroup_load(b, right, 16, ulong2(0ul, 0ul), T);
    simdgroup_multiply_accumulate(c, a, b, c);
    simdgroup_multiply(a, b, c);
    simdgroup_store(c, y, 8);
    simdgroup_store(a, y + 64, 8);
    """
    (y,) = run_text(
        body,
        {"left": mx.array(a), "right": mx.array(b)},
        {"y": ((2, 8, 8), mx.float32)},
        (32, 1, 1),
        template={"T": transposed},
    )
    second = b[:, :8].T if transposed else b[:, :8]
    product = a[:, 8:] @ second + 2
    np.testing.assert_array_equal(np.array(y), np.stack([product, second @ product]))


def test_atomics_count_across_threadgroups(run_text: RunText) -> None:
    body = """
    auto counters = reinterpret_cast<device atomic<uint>*>(const_cast<device uint*>(arena));
    atomic_fetch_add_explicit(&counters[thread_position_in_grid.x % 3], 2u, memory_order_relaxed);
    atomic_fetch_max_explicit(&counters[3], thread_position_in_grid.x, memory_order_relaxed);
    y[thread_position_in_grid.x] = atomic_load_explicit(&counters[4], memory_order_relaxed);
    """
    arena = mx.zeros((5,), dtype=mx.uint32)
    (y,) = run_text(body, {"arena": arena}, {"y": ((96,), mx.uint32)}, (96, 1, 1), writes=("arena",))
    assert arena.tolist() == [64, 64, 64, 95, 0] and y.tolist() == [0] * 96
