"""The self-check passes on this machine, and sees each kind of wrong kernel that it is meant to see."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plait import selfcheck  # first: it puts a BLAS under MLX

# isort: split
import mlx.core as mx

product = mx.matmul


def test_this_machine_multiplies_correctly() -> None:
    checks = selfcheck.matmul_self_check()
    assert {check.dtype for check in checks} == {"float32", "bfloat16", "float16"}
    assert len({check.shape for check in checks}) == 6 and len(checks) == 18
    assert [check for check in checks if not check.ok] == []
    # A product that was never rounded to 16 bits would mean that the dtype under test was not the one multiplied.
    assert all(check.max_relative_error > 1e-4 for check in checks if check.dtype != "float32")


def wrong_from_a_size_on(a: Any, b: Any) -> Any:
    """bfloat16 garbage where rows * columns reach 128 * 257: one shape boundary, one dtype."""
    out = product(a, b)
    return out[::-1] if a.dtype == mx.bfloat16 and out.size >= 128 * 257 else out


def test_a_kernel_wrong_at_one_size_and_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "matmul", wrong_from_a_size_on)
    failed = {(check.shape, check.dtype) for check in selfcheck.matmul_self_check() if not check.ok}
    assert failed == {((129, 500, 257), "bfloat16"), ((256, 1024, 512), "bfloat16")}


def without_last_inner_element(a: Any, b: Any) -> Any:
    return product(a[:, :-1], b[:-1])


def one_wrong_tile(a: Any, b: Any) -> Any:
    """Zero in the last 8 x 8 tile, or what there is of it."""
    out = product(a, b)
    rows, columns = mx.arange(out.shape[0])[:, None], mx.arange(out.shape[1])[None]
    return mx.where((rows >= out.shape[0] - 8) & (columns >= out.shape[1] - 8), 0, out).astype(out.dtype)


def one_nan(a: Any, b: Any) -> Any:
    out = product(a, b)
    out[-1, -1] = math.nan
    return out


@pytest.mark.parametrize("wrong", [without_last_inner_element, one_wrong_tile, one_nan])
def test_every_shape_and_dtype_sees_it(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "matmul", wrong)
    assert [check for check in selfcheck.matmul_self_check() if check.ok] == []


def inputs_of_11_bits(a: Any, b: Any) -> Any:
    """What a GPU's TF32 does to float32 inputs: cut to 11 significant bits."""
    return product(*((x.view(mx.uint32) & 0xFFFFE000).view(mx.float32) for x in (a, b)))


def test_short_float32_inputs_are_rounding_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "matmul", inputs_of_11_bits)
    for shape in (*selfcheck.SMALL_SHAPES, selfcheck.CPU_LAST_SHAPE):
        on_gpu, on_cpu = (
            selfcheck._check(shape, mx.float32, selfcheck._tolerance(mx.float32, gpu)) for gpu in (True, False)
        )
        assert on_gpu.ok and not on_cpu.ok, on_gpu
