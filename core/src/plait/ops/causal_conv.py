"""Short depthwise causal convolution that carries its last inputs from call to call."""

from __future__ import annotations

import mlx.core as mx


def causal_conv1d(x: mx.array, weight: mx.array, bias: mx.array | None, state: mx.array) -> tuple[mx.array, mx.array]:
    """Convolve each channel with its own K taps, seeing only the past; no activation.

    y[t, c] = bias[c] + sum_i weight[c, i] * concat(state, x)[t + i, c]

    Args:
        x: [B, T, C] inputs, T >= 1.
        weight: [C, K]; the last tap meets the newest input.
        bias: [C], or None.
        state: [B, K - 1, C], the inputs before `x`, oldest first; zeros at the start of a sequence.

    Returns:
        y [B, T, C] in the dtype of `x` (sums are float32), and the new state [B, K - 1, C], the last K - 1 inputs
        of concat(state, x), in the dtype of `state`. Inputs are rounded to that dtype before they are used, so y does
        not depend on where a sequence is split.

    Raises:
        ValueError: the shapes do not fit one another.
    """
    (batch, length, channels), taps = x.shape, weight.shape[1]
    if weight.shape[0] != channels or state.shape != (batch, taps - 1, channels) or length < 1:
        raise ValueError(
            f"causal_conv1d: x {x.shape}, weight {weight.shape} and state {state.shape} do not fit; "
            f"for this x and K = {taps} taps give weight {(channels, taps)} and state {(batch, taps - 1, channels)}, "
            "with at least one token"
        )
    x_dtype, x = x.dtype, x.astype(state.dtype)
    window = mx.concatenate([state, x], axis=1)
    seen = window.astype(mx.float32)
    by_tap = mx.contiguous(weight.T).astype(mx.float32)
    if length == 1:
        y = (seen * by_tap).sum(axis=1, keepdims=True)
    else:
        # Shifted products: MLX's grouped convolution takes four to eight times as long on a CPU (one tiny product per
        # channel and tap), and sums of whole rows suit a GPU as well.
        y = seen[:, :length] * by_tap[0]
        for tap in range(1, taps):
            y = y + seen[:, tap : tap + length] * by_tap[tap]
    if bias is not None:
        y = y + bias.astype(mx.float32)
    # Joined from the newest inputs alone: a slice of the window would keep all of it alive with the state.
    newest = x[:, max(0, length - taps + 1) :]
    return y.astype(x_dtype), mx.concatenate([state, newest], axis=1)[:, newest.shape[1] :]
