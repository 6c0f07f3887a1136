"""The causal convolution against NumPy, whole and in pieces."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import plait  # noqa: F401  before MLX
from plait.ops import causal_conv1d

import mlx.core as mx  # isort: skip

CHANNELS = 10


def numbers(*shape: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))


def truth(x: mx.array, weight: mx.array, bias: mx.array | None, state: mx.array) -> npt.NDArray[np.float64]:
    """Tap by tap in float64, from the definition."""
    window = np.concatenate([np.array(state), np.array(x)], axis=1).astype(np.float64)
    taps = np.array(weight).astype(np.float64)
    y = np.zeros(x.shape)
    for t in range(x.shape[1]):
        for i in range(taps.shape[1]):
            y[:, t] += window[:, t + i] * taps[:, i]
    return y if bias is None else y + np.array(bias)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("taps", "length"), [(k, t) for k in (1, 2, 4, 5) for t in range(1, 2 * k + 1)])
def test_equals_the_definition(taps: int, length: int, biased: bool) -> None:
    x, weight, state = numbers(2, length, CHANNELS), numbers(CHANNELS, taps), numbers(2, taps - 1, CHANNELS, seed=1)
    bias = numbers(CHANNELS) if biased else None
    y, new = causal_conv1d(x, weight, bias, state)
    np.testing.assert_allclose(np.array(y), truth(x, weight, bias, state), rtol=1e-5, atol=2e-6)
    window = np.concatenate([np.array(state), np.array(x)], axis=1)
    np.testing.assert_array_equal(np.array(new), window[:, length:])


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("pieces", [[9], [1] * 9, [1, 8], [8, 1], [2, 3, 4], [4, 1, 4], [3, 6]])
def test_split_anywhere_equals_whole(pieces: list[int], dtype: mx.Dtype) -> None:
    x, weight = numbers(2, 9, CHANNELS).astype(dtype), numbers(CHANNELS, 4).astype(dtype)
    state = numbers(2, 3, CHANNELS, seed=1).astype(dtype)
    whole, last = causal_conv1d(x, weight, None, state)
    done, ys = 0, []
    for piece in pieces:
        y, state = causal_conv1d(x[:, done : done + piece], weight, None, state)
        ys.append(y)
        done += piece
    y = mx.concatenate(ys, axis=1)
    assert y.dtype == state.dtype == dtype
    tolerance = 1e-6 if dtype == mx.float32 else 8e-3
    assert mx.allclose(y.astype(mx.float32), whole.astype(mx.float32), rtol=tolerance, atol=tolerance)
    assert mx.array_equal(state, last)


def test_sums_are_float32_and_each_dtype_is_kept() -> None:
    x, weight = numbers(1, 6, CHANNELS).astype(mx.bfloat16), numbers(CHANNELS, 4)
    state = numbers(1, 3, CHANNELS)
    y, new = causal_conv1d(x, weight, None, state)
    assert (y.dtype, new.dtype) == (mx.bfloat16, mx.float32)
    want = mx.array(truth(x.astype(mx.float32), weight, None, state).astype(np.float32)).astype(mx.bfloat16)
    assert mx.allclose(y.astype(mx.float32), want.astype(mx.float32), rtol=8e-3, atol=1e-5)


def test_the_state_does_not_keep_the_inputs_alive() -> None:
    x, weight, state = numbers(1, 4096, 64), numbers(64, 4), mx.zeros((1, 3, 64))
    mx.eval(x, weight, state)
    mx.clear_cache()
    before = mx.get_active_memory()
    _, new = causal_conv1d(x, weight, None, state)
    mx.eval(new)
    assert mx.get_active_memory() - before < 16 * new.nbytes


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, weight, state = numbers(2, 5, CHANNELS), numbers(CHANNELS, 4), numbers(2, 3, CHANNELS)
    for bad in ((x, weight[:-1], state), (x, weight, state[:1]), (x, weight, state[:, :2]), (x[:, :0], weight, state)):
        with pytest.raises(ValueError, match=r"causal_conv1d: x .* do not fit"):
            causal_conv1d(bad[0], bad[1], None, bad[2])
