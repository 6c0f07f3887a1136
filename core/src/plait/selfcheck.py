"""Does this machine multiply matrices correctly? Run by `plait doctor`.

GPU matrix kernels are chosen by shape and dtype, and now and then one of them is wrong on one generation of chips at
one size only (ml-explore/mlx issue 3797: bfloat16, from rows * columns >= 2048**2 and a long inner dimension). A
model then talks nonsense without any error. Six shapes on both sides of the usual tile sizes find such a kernel.
"""

from __future__ import annotations

import attrs
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

SMALL_SHAPES = (
    (1, 512, 257),  # one row: the matrix-vector kernels
    (31, 33, 65),  # just beside a tile of 32 in every dimension
    (32, 64, 64),  # whole tiles
    (64, 127, 64),  # whole tiles, ragged inner dimension
    (129, 500, 257),  # just beyond a tile of 128, no multiple of 32
)
CPU_LAST_SHAPE = (256, 1024, 512)  # OpenBLAS splits this one over threads
GPU_LAST_SHAPE = (1024, 12288, 4096)  # rows * columns = 2048**2, inner dimension beyond 10240: split-K kernels

DTYPES = (mx.float32, mx.bfloat16, mx.float16)

_SAMPLED_ROWS = 64
_SIGNIFICANT_BITS = {mx.bfloat16: 8, mx.float16: 11}


@attrs.frozen
class MatmulCheck:
    """One product on the default device against NumPy's float64 product of the same rounded inputs.

    Attributes:
        shape: (m, k, n) of an m x k array times the transpose of an n x k one, as in a linear layer.
        dtype: name of the dtype of inputs and output.
        max_relative_error: largest absolute error over the largest absolute value of the reference; NaN if any
            compared element is NaN.
        tolerance: the largest error that rounding explains.
        ok: whether the error is within the tolerance.
    """

    shape: tuple[int, int, int]
    dtype: str
    max_relative_error: float
    tolerance: float
    ok: bool


def matmul_self_check() -> list[MatmulCheck]:
    """Multiply six shapes in float32, bfloat16 and float16 on the default device: 18 checks, worst cases included."""
    on_gpu = mx.default_device() == mx.gpu
    shapes = (*SMALL_SHAPES, GPU_LAST_SHAPE if on_gpu else CPU_LAST_SHAPE)
    return [_check(shape, dtype, _tolerance(dtype, on_gpu)) for shape in shapes for dtype in DTYPES]


def _tolerance(dtype: mx.Dtype, on_gpu: bool) -> float:
    """Error that rounding explains, relative to the largest element of the product.

    The 16-bit dtypes accumulate in float32, so rounding the result dominates: twice its unit roundoff. GPUs may round
    float32 inputs to 11 significant bits (TF32, Apple's neural accelerators), which costs about 1e-3; a CPU does not.
    """
    if dtype in _SIGNIFICANT_BITS:
        return float(2.0 ** (1 - _SIGNIFICANT_BITS[dtype]))
    return 2.0**-8 if on_gpu else 2.0**-16


def _check(shape: tuple[int, int, int], dtype: mx.Dtype, tolerance: float) -> MatmulCheck:
    m, k, n = shape
    random = np.random.default_rng(0)
    a = mx.array(random.standard_normal((m, k), dtype=np.float32)).astype(dtype)
    b = mx.array(random.standard_normal((n, k), dtype=np.float32)).astype(dtype)
    # Rows from the first to the last: a whole float64 product of the largest shape would take seconds.
    rows = np.unique(np.linspace(0, m - 1, _SAMPLED_ROWS).astype(int))
    got = _float64(mx.matmul(a, b.T))[rows]
    error = _relative_error(got, _float64(a)[rows] @ _float64(b).T)
    return MatmulCheck(shape, str(dtype).removeprefix("mlx.core."), error, tolerance, error <= tolerance)


def _relative_error(got: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def _float64(array: mx.array) -> NDArray[np.float64]:
    # NumPy has no bfloat16; float32 holds every value of the 16-bit dtypes exactly.
    return np.array(array.astype(mx.float32)).astype(np.float64)
