"""The gated delta rule: a recurrent state that forgets by a decay and is corrected towards each new value.

Per head, with a state S [Dv, Dk], a decay exp(g) and a rate beta, token by token:

    S <- S exp(g);   delta = beta (v - S k);   S <- S + delta k^T;   y = S q

Source: "Gated Delta Networks: Improving Mamba2 with Delta Rule" (Yang et al., 2024, arXiv:2412.06464); decay per
channel as in "Kimi Linear" (arXiv:2510.26692).

In all three forms key head j serves the value heads from j Hv / Hk to (j + 1) Hv / Hk; scaling and normalising q and k
is the caller's; arithmetic and state are float32 and y has the dtype of v.
"""

from __future__ import annotations

import mlx.core as mx

from plait.ops.block_decay import decay_factor
from plait.ops.delta_chunk import DeltaChunks, delta_chunks

CHUNK_SIZE = 32
"""Tokens per chunk; of 32, 64 and 128 the fastest on a CPU at 512 tokens, 8 heads, 128 x 128."""


def gated_delta_step(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Advance by one token.

    The state is read once for S k and S q together and written once: y = S exp(g) q + (q . k) delta.

    Args:
        q: [B, Hk, Dk].
        k: [B, Hk, Dk].
        v: [B, Hv, Dv].
        g: log decay <= 0, [B, Hv] or [B, Hv, Dk].
        beta: [B, Hv].
        state: [B, Hv, Dv, Dk], any strides.

    Returns:
        y [B, Hv, Dv] and the new state [B, Hv, Dv, Dk] in float32.

    Raises:
        ValueError: the shapes do not fit one another.
    """
    _check("gated_delta_step", q, k, v, g, beta, state)
    repeat = (k.shape[-2], v.shape[-2] // k.shape[-2])
    kq = mx.stack([k, q], axis=-2).astype(mx.float32)[:, :, None]  # [B, Hk, 1, 2, Dk]
    key = kq[..., :1, :]
    decay = mx.unflatten(decay_factor(g), 1, repeat)
    old = mx.unflatten(state.astype(mx.float32), 1, repeat)
    if g.ndim == 2:
        decay = decay[..., None, None]
        read = (old @ kq.swapaxes(-1, -2)) * decay
    else:
        decay = decay[..., None, :]
        read = old @ (kq * decay).swapaxes(-1, -2)
    lacks = mx.unflatten(v.astype(mx.float32), 1, repeat)[..., None] - read[..., :1]
    delta = mx.unflatten(beta.astype(mx.float32), 1, repeat)[..., None, None] * lacks
    y = read[..., 1:] + (key * kq[..., 1:, :]).sum(axis=-1, keepdims=True) * delta
    # The product adds into the decayed copy, in place on a CPU.
    new = mx.addmm(old * decay, delta, key)
    return y.reshape(v.shape).astype(v.dtype), new.reshape(state.shape)


def gated_delta_sequential(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Advance token by token, as the definition says: the reference that faster forms are held to.

    Arguments, results and errors are those of `gated_delta_chunked`.
    """
    _check("gated_delta_sequential", q, k, v, g, beta, state)
    repeats = v.shape[2] // k.shape[2]
    q, k = (mx.repeat(x.astype(mx.float32), repeats, axis=2)[..., None, :] for x in (q, k))
    decay = mx.exp(g.astype(mx.float32))
    decay = decay[..., None, None] if g.ndim == 3 else decay[..., None, :]
    rate, values, state = beta.astype(mx.float32)[..., None], v.astype(mx.float32), state.astype(mx.float32)
    outputs = []
    for t in range(v.shape[1]):
        state = state * decay[:, t]
        delta = rate[:, t] * (values[:, t] - (state * k[:, t]).sum(axis=-1))
        state = state + delta[..., None] * k[:, t]
        outputs.append((state * q[:, t]).sum(axis=-1))
    return mx.stack(outputs, axis=1).astype(v.dtype), state


def gated_delta_chunked(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array,
    chunk_size: int = CHUNK_SIZE,
) -> tuple[mx.array, mx.array]:
    """Advance by T tokens, whole chunks at a time; see `plait.ops.delta_chunk` for the maths.

    Args:
        q: [B, T, Hk, Dk].
        k: [B, T, Hk, Dk].
        v: [B, T, Hv, Dv], T >= 1.
        g: log decay <= 0 of any size, [B, T, Hv] or [B, T, Hv, Dk].
        beta: [B, T, Hv].
        state: [B, Hv, Dv, Dk].
        chunk_size: tokens per chunk, a power of two.

    Returns:
        y [B, T, Hv, Dv] and the new state [B, Hv, Dv, Dk] in float32.

    Raises:
        ValueError: the shapes do not fit one another, or the chunk size is not a power of two.
    """
    _check("gated_delta_chunked", q, k, v, g, beta, state)
    if chunk_size < 1 or chunk_size & (chunk_size - 1):
        raise ValueError(f"gated_delta_chunked: chunk_size {chunk_size} is not a power of two; give 32, 64 or 128")
    tokens = (q, k, v, g, beta)
    whole = v.shape[1] // chunk_size * chunk_size
    parts = [] if not whole else [([x[:, :whole] for x in tokens], chunk_size)]
    if rest := v.shape[1] - whole:
        # A short rest gets a short chunk. Filled tokens have zero k, v and beta and no decay: they change nothing.
        size = 1 << (rest - 1).bit_length()
        parts.append(([_fill(x[:, whole:], size) for x in tokens], size))
    outputs = []
    for part, size in parts:
        y, state = _run_chunks(*part, state, size)
        outputs.append(y)
    y = mx.concatenate(outputs, axis=1) if len(outputs) > 1 else outputs[0]
    return y[:, : v.shape[1]].astype(v.dtype), state


def _fill(x: mx.array, length: int) -> mx.array:
    """Append zeros on the token axis up to `length` tokens."""
    missing = length - x.shape[1]
    return mx.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2)) if missing else x


def _run_chunks(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, size: int
) -> tuple[mx.array, mx.array]:
    """The chunked form for a whole number of chunks; y is float32."""
    key_heads, values = k.shape[2], v.shape[2:]
    heads = (key_heads, values[0] // key_heads)
    q, k, v, g, beta = (mx.unflatten(x.astype(mx.float32), 1, (-1, size)) for x in (q, k, v, g, beta))
    v, g, beta = (mx.unflatten(x, 3, heads) for x in (v, g, beta))
    chunks = delta_chunks(q, k, g[..., None] if g.ndim == 5 else g, beta)
    # Kept as [Dk, Dv] from chunk to chunk: a small product whose right operand is transposed is twice as slow on a CPU.
    carried = mx.contiguous(mx.unflatten(state.astype(mx.float32), 1, heads).swapaxes(-1, -2))
    outputs = []
    for n in range(v.shape[1]):
        y, carried = _advance(chunks, n, v[:, n].transpose(0, 2, 3, 1, 4), carried)
        outputs.append(y.transpose(0, 3, 1, 2, 4))
    y = mx.concatenate(outputs, axis=1)
    return y.reshape(*y.shape[:2], *values), mx.contiguous(carried.swapaxes(-1, -2)).reshape(state.shape)


def _advance(chunks: DeltaChunks, n: int, v: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
    """Chunk n: `v` [B, Hk, R, C, Dv] and the state [B, Hk, R, Dk, Dv] to y [B, Hk, R, C, Dv] and the next state."""
    read = chunks.reads[:, :, :, n] @ state[..., None, :, :]
    delta = chunks.solve[:, :, :, n] @ (v - read[..., 0, :, :])
    y = mx.addmm(read[..., 1, :, :], chunks.attend[:, :, :, n], delta)
    kept = state * chunks.decay[:, :, :, n].swapaxes(-1, -2)
    return y, mx.addmm(kept, chunks.writes[:, :, :, n].swapaxes(-1, -2), delta)


def _check(
    name: str, q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> None:
    """Raise ValueError unless the shapes fit one another."""
    leading, (key_heads, key_dim), (value_heads, value_dim) = v.shape[:-2], k.shape[-2:], v.shape[-2:]
    fits = (
        q.shape == k.shape == (*leading, key_heads, key_dim)
        and value_heads % key_heads == 0
        and beta.shape == (*leading, value_heads)
        and g.shape in (beta.shape, (*beta.shape, key_dim))
        and state.shape == (leading[0], value_heads, value_dim, key_dim)
        and 0 not in leading
    )
    if not fits:
        raise ValueError(
            f"{name}: q {q.shape}, k {k.shape}, v {v.shape}, g {g.shape}, beta {beta.shape} and state {state.shape} "
            "do not fit; with leading axes [B] or [B, T], q and k end in [Hk, Dk], v in [Hv, Dv], beta in [Hv], "
            "g in [Hv] or [Hv, Dk], the state is [B, Hv, Dv, Dk], and Hv is a multiple of Hk"
        )
