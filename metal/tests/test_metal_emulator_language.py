"""Types, mathematics and signatures of the emulator, against MLX and NumPy; and bodies that are right stay silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from plait_metal.emulator import KernelDefectError
from plait_metal.emulator.threadgroup_variables import rewrite

RunText = Callable[..., Any]


def all_bits(dtype: mx.Dtype) -> mx.array:
    return mx.arange(1 << 16, dtype=mx.uint32).astype(mx.uint16).view(dtype)


def bits_of(array: mx.array) -> np.ndarray[Any, Any]:
    return np.array(array.view(mx.uint16 if array.dtype.size == 2 else mx.uint32))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_every_small_float_widens_as_in_mlx(run_text: RunText, dtype: mx.Dtype) -> None:
    x = all_bits(dtype)
    body = "y[thread_position_in_grid.x] = static_cast<float>(x[thread_position_in_grid.x]);"
    (y,) = run_text(body, {"x": x}, {"y": (x.shape, mx.float32)}, (x.size, 1, 1), (256, 1, 1), check_races=False)
    expected = x.astype(mx.float32)
    nan = np.array(mx.isnan(expected))
    assert np.array_equal(np.array(mx.isnan(y)), nan)
    np.testing.assert_array_equal(bits_of(y)[~nan], bits_of(expected)[~nan])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_floats_round_as_in_mlx(run_text: RunText, dtype: mx.Dtype) -> None:
    """Every value of the small type, the midpoints between neighbours and their neighbours, and random bits."""
    small = all_bits(dtype).astype(mx.float32)
    near = bits_of(small)[:, None] + np.array([-1, 0, 1], np.int64) + ((1 << 15) if dtype == mx.bfloat16 else (1 << 12))
    random = np.random.default_rng(0).integers(0, 1 << 32, 20_000)
    x = mx.array(np.concatenate([bits_of(small), near.reshape(-1), random]).astype(np.uint32)).view(mx.float32)
    body = "const uint i = thread_position_in_grid.x; if (i < N) y[i] = static_cast<T>(x[i]);"
    template = {"T": dtype, "N": x.size}
    (y,) = run_text(body, {"x": x}, {"y": (x.shape, dtype)}, (x.size, 1, 1), (256, 1, 1), template, check_races=False)
    nan = np.array(mx.isnan(x))
    assert np.array_equal(np.array(mx.isnan(y)), nan)
    np.testing.assert_array_equal(bits_of(y)[~nan], bits_of(x.astype(dtype))[~nan])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_small_floats_round_once_per_operation(run_text: RunText, dtype: mx.Dtype) -> None:
    a, b = (mx.random.normal((500,), key=mx.random.key(n)).astype(dtype) for n in range(2))
    body = """
    const uint i = thread_position_in_grid.x;
    if (i >= 500) return;
    y[i] = a[i] + b[i]; y[500 + i] = a[i] - b[i]; y[1000 + i] = a[i] * b[i]; y[1500 + i] = a[i] / b[i];
    y[2000 + i] = a[i] * a[i] + b[i]; y[2500 + i] = a[i] * 2; y[3000 + i] = static_cast<T>(a[i] * 1.5f);
    T c = a[i]; c += b[i]; y[3500 + i] = c;
    """
    (y,) = run_text(body, {"a": a, "b": b}, {"y": ((8, 500), dtype)}, (500, 1, 1), template={"T": dtype})
    wide = (a.astype(mx.float32) * 1.5).astype(dtype)
    expected = mx.stack([a + b, a - b, a * b, a / b, a * a + b, a * 2, wide, a + b])
    np.testing.assert_array_equal(bits_of(y), bits_of(expected))


# name of the function, its NumPy twin, range of its arguments
FUNCTIONS: list[tuple[str, Callable[..., Any], tuple[float, float]]] = [
    ("exp", np.exp, (-20, 20)),
    ("exp2", np.exp2, (-20, 20)),
    ("log", np.log, (0.01, 50)),
    ("log2", np.log2, (0.01, 50)),
    ("sqrt", np.sqrt, (0, 50)),
    ("rsqrt", lambda x: 1 / np.sqrt(x), (0.01, 50)),
    ("sin", np.sin, (-9, 9)),
    ("cos", np.cos, (-9, 9)),
    ("tanh", np.tanh, (-9, 9)),
    ("abs", np.abs, (-9, 9)),
    ("floor", np.floor, (-9, 9)),
    ("ceil", np.ceil, (-9, 9)),
    ("rint", np.rint, (-9, 9)),
    ("trunc", np.trunc, (-9, 9)),
    ("sign", np.sign, (-9, 9)),
    ("saturate", lambda x: np.clip(x, 0, 1), (-2, 2)),
    ("fast::exp", np.exp, (-20, 20)),
    ("precise::log", np.log, (0.01, 50)),
]


def test_mathematics_equal_numpy(run_text: RunText) -> None:
    n = 256
    x = np.stack([np.random.default_rng(k).uniform(low, high, n) for k, (_, _, (low, high)) in enumerate(FUNCTIONS)])
    x = x.astype(np.float32)
    calls = [f"y[{k} * N + i] = metal::{name}(x[{k} * N + i]);" for k, (name, _, _) in enumerate(FUNCTIONS)]
    body = "const uint i = thread_position_in_grid.x;\n" + "\n".join(calls)
    (y,) = run_text(body, {"x": mx.array(x)}, {"y": (x.shape, mx.float32)}, (n, 1, 1), template={"N": n})
    for row, result, (name, twin, _) in zip(x, np.array(y), FUNCTIONS, strict=True):
        np.testing.assert_allclose(result, twin(row.astype(np.float64)), rtol=3e-7, atol=1e-7, err_msg=name)


def test_two_and_three_arguments(run_text: RunText) -> None:
    body = """
    const float a = x[0], b = x[1], c = x[2];
    y[0] = metal::max(a, b); y[1] = metal::min(a, b); y[2] = metal::fma(a, b, c); y[3] = metal::pow(a, b);
    y[4] = clamp(c, a, b); y[5] = select(a, b, a < b); y[6] = as_type<float>(as_type<uint>(a) + 1u);
    y[7] = metal::max(3, -4); y[8] = float(half(a)) + 0.1; y[9] = isnan(NAN) + isinf(-INFINITY);
    """
    a, b, c = (np.float32(v) for v in (1.7, 2.3, 9.0))
    (y,) = run_text(body, {"x": mx.array(np.array([a, b, c]))}, {"y": ((10,), mx.float32)}, (1, 1, 1))
    fused = np.float32(np.float64(a) * np.float64(b) + np.float64(c))
    tenth = np.float32(np.float16(a)) + np.float32(0.1)  # a literal without a suffix is a float
    expected = [b, a, fused, np.power(a, b), b, b, np.nextafter(a, b), 3, tenth, 2]
    np.testing.assert_allclose(np.array(y), np.array(expected, np.float32), rtol=1e-7)


def test_contraction_is_an_option(run_text: RunText) -> None:
    """a * a - 1 with a value that tells one rounding from two."""
    a = np.float32(1 + 2**-12)
    x, body = mx.array(np.array([a])), "const float a = x[0]; y[0] = a * a - 1.0f;"
    results = [
        run_text(body, {"x": x}, {"y": ((1,), mx.float32)}, (1, 1, 1), contract=contract)[0].item()
        for contract in (False, True)
    ]
    assert results == [float(np.float32(a * a) - np.float32(1)), float(np.float64(a) ** 2 - 1)]
    assert results[0] != results[1]


def test_denormals_are_flushed_on_demand(run_text: RunText) -> None:
    body = "y[0] = x[0] * 0.5f;"
    x = {"x": mx.array([2.0**-126])}
    assert run_text(body, x, {"y": ((1,), mx.float32)}, (1, 1, 1))[0].item() == 2.0**-127
    assert run_text(body, x, {"y": ((1,), mx.float32)}, (1, 1, 1), flush_denormals=True)[0].item() == 0


def test_vectors(run_text: RunText) -> None:
    body = """
    auto v = reinterpret_cast<const device float4*>(x);
    float4 s = v[0] * 2.0f + v[1];
    s += float4(1.0f, 2.0f, 3.0f, 4.0f);
    y[0] = s.x; y[1] = s.y; y[2] = s[2]; y[3] = s.w; y[4] = dot(float2(s.x, s.y), float2(1.0f, 1.0f));
    """
    (y,) = run_text(body, {"x": mx.arange(8, dtype=mx.float32)}, {"y": ((5,), mx.float32)}, (1, 1, 1))
    assert y.tolist() == [5, 9, 13, 17, 14]


def test_positions_in_a_grid_with_ragged_edges(run_text: RunText) -> None:
    grid, threadgroup = (70, 3, 2), (32, 2, 1)
    names = [
        "thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid",
        "threads_per_threadgroup", "threads_per_grid", "threadgroups_per_grid",
    ]  # fmt: skip
    body = "const uint3 p = thread_position_in_grid; auto o = y + ((p.z * 3 + p.y) * 70 + p.x) * 22;\n"
    body += "\n".join(f"for (int k = 0; k < 3; ++k) o[{3 * n} + k] = {name}[k];" for n, name in enumerate(names))
    body += "o[18] = thread_index_in_threadgroup; o[19] = thread_index_in_simdgroup;"
    body += "o[20] = simdgroup_index_in_threadgroup; o[21] = simdgroups_per_threadgroup;"
    (y,) = run_text(body, {"x": mx.ones(1)}, {"y": ((2, 3, 70, 22), mx.uint32)}, grid, threadgroup)
    for (z, row, x), seen in np.ndenumerate(np.empty((2, 3, 70))):
        seen = np.array(y[z, row, x]).tolist()
        p, group = (x, row, z), (x // 32, row // 2, z)
        inside = (x % 32, row % 2, 0)
        size = tuple(min(t, g - c * t) for t, g, c in zip(threadgroup, grid, group, strict=True))
        index = inside[0] + size[0] * inside[1]
        indices = (index, index % 32, index // 32, -(-size[0] * size[1] // 32))
        assert seen == [*p, *inside, *group, *size, *grid, 3, 2, 2, *indices]


def test_signature_follows_mlx(run_text: RunText) -> None:
    """Scalars are references, shapes and strides come by name, templates and headers reach the body."""
    body = (
        "y[0] = offset + x_shape[1] * 100 + x_strides[0] * 10 + x_ndim + twice(N) + (FLAG ? 0.5f : 0.0f) + sizeof(T);"
    )
    (y,) = run_text(
        body,
        {"x": mx.ones((3, 5)), "offset": mx.array(7)},
        {"y": ((1,), mx.float32)},
        (1, 1, 1),
        template={"N": -4, "FLAG": True, "T": mx.bfloat16},
        header="METAL_FUNC int twice(int n) { return 2 * n; }\n",
    )
    assert y.item() == 7 + 500 + 50 + 2 - 8 + 0.5 + 2


CLEAN = {
    "block sum": """
        threadgroup float partial[32], total;
        const uint lane = thread_index_in_simdgroup, group = simdgroup_index_in_threadgroup;
        const float s = simd_sum(x[thread_position_in_grid.x]);
        if (lane == 0) partial[group] = s;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (group == 0) {
          const float all = simd_sum(lane < simdgroups_per_threadgroup ? partial[lane] : 0.0f);
          if (lane == 0) total = all;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[thread_position_in_grid.x] = total;
    """,
    "the same value from every lane": """
        threadgroup float shared[1];
        shared[0] = 2016.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[thread_position_in_grid.x] = shared[0];
    """,
    "through device memory": """
        const uint t = thread_index_in_threadgroup, i = thread_position_in_grid.x;
        y[i] = 2016.0f;
        threadgroup_barrier(mem_flags::mem_device);
        const float other = y[i - t + 63 - t];
        threadgroup_barrier(mem_flags::mem_device);
        y[i] = other;
    """,
    "a pointer to threadgroup memory": """
        threadgroup float a[2][32];
        const uint t = thread_index_in_threadgroup;
        threadgroup float* p = a[t / 32];
        p[t % 32] = x[thread_position_in_grid.x];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float s = 0;
        for (uint k = 0; k < 64; ++k) s += a[k / 32][k % 32];
        y[thread_position_in_grid.x] = s;
    """,
}


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("options", [{}, {"order": 1}, {"order": 2, "reduction_order": 2, "contract": True}], ids=str)
def test_right_bodies_stay_silent(run_text: RunText, name: str, options: dict[str, Any]) -> None:
    x = mx.concatenate([mx.arange(64), mx.arange(64)]).astype(mx.float32)
    (y,) = run_text(CLEAN[name], {"x": x}, {"y": ((128,), mx.float32)}, (128, 1, 1), (64, 1, 1), **options)
    assert y.tolist() == [2016.0] * 128


def test_a_full_threadgroup_of_1024_threads(run_text: RunText) -> None:
    (y,) = run_text(CLEAN["block sum"], {"x": mx.ones(2048)}, {"y": ((2048,), mx.float32)}, (2048, 1, 1), (1024, 1, 1))
    assert y.tolist() == [1024.0] * 2048


def test_threadgroup_declarations_are_rewritten() -> None:
    source = "threadgroup float a[C * 4], b;  // threadgroup int no;\nauto p = f<2, 3>(threadgroup_position_in_grid);\n"
    assert rewrite(source) == (
        "typedef float msl_element_of_a; MSL_THREADGROUP_VARIABLE(msl_element_of_a, a, [C * 4]) "
        "typedef float msl_element_of_b; MSL_THREADGROUP_VARIABLE(msl_element_of_b, b, )"
        + " " * len("  // threadgroup int no;")
        + "\nauto p = f<2, 3>(threadgroup_position_in_grid);\n"
    )
    lines = "\n\nthreadgroup vec<float, 4>\n  v[2]\n [3];\n"
    assert rewrite(lines).count("\n") == lines.count("\n")
    assert "MSL_THREADGROUP_VARIABLE(msl_element_of_v, v, [2] [3])" in rewrite(lines)
    assert rewrite("threadgroup float* p = a;") == "threadgroup float* p = a;"


@pytest.mark.parametrize("text", ["threadgroup float a[2] = {1, 2};", "static threadgroup float a[2];"])
def test_declarations_that_would_become_private_are_refused(text: str) -> None:
    with pytest.raises(KernelDefectError, match="line 2"):
        rewrite("\n" + text)
