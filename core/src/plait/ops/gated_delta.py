"""The gated delta rule: a recurrent state that forgets by a decay and is corrected towards each new value.

Per head, with a state S [Dv, Dk], a decay exp(g) and a rate beta, token by token:

    S <- S exp(g);   delta = beta (v - S k);   S <- S + delta k^T;   y = S q

Source: "Gated Delta Networks" (Yang et al., 2024, arXiv:2412.06464); decay per channel as in "Kimi Linear"
(arXiv:2510.26692).

In all three forms key head j serves the value heads from j Hv / Hk to (j + 1) Hv / Hk; scaling and normalising q and k
is the caller's; arithmetic and state are float32 and y has the dtype of v.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from plait.ops.block_decay import decay_factor
from plait.ops.delta_chunk import DeltaChunks, delta_chunks

CHUNK_SIZE = 32
"""Tokens per chunk. On a CPU (512 tokens, 8 heads, 128 x 128) 16 and 64 are as fast, 128 a quarter slower; up to 32 the
products of a 128 x 128 head stay on one thread in OpenBLAS, which keeps a busy machine from stalling them."""


def gated_delta_step(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Advance by one token.

    The state before the step is read for S k and S q together, since y = S exp(g) q + (q . k) delta, then written.

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
    _check("gated_delta_step", ("B",), q, k, v, g, beta, state)
    shape, dtype, per_head = v.shape, v.dtype, g.ndim == 2
    heads = (k.shape[1], v.shape[1] // k.shape[1])
    kq = mx.stack([k, q], axis=-2).astype(mx.float32)[:, :, None]  # [B, Hk, 1, 2, Dk]
    key, query = kq[..., :1, :], kq[..., 1:, :]
    v, beta, g = (mx.unflatten(x, 1, heads) for x in (v.astype(mx.float32), beta.astype(mx.float32), decay_factor(g)))
    state = mx.unflatten(state.astype(mx.float32), 1, heads)
    decay = g[..., None, None] if per_head else g[..., None, :]
    # The decay goes where it is small: on what was read per head, on the keys per channel; never on a copy of S.
    read = (kq @ state.swapaxes(-1, -2)) * decay if per_head else (kq * decay) @ state.swapaxes(-1, -2)
    delta = beta[..., None, None] * (v[..., None, :] - read[..., :1, :])
    y = read[..., 1:, :] + (key * query).sum(axis=-1, keepdims=True) * delta
    # The product adds into the decayed state, in place on a CPU: two thirds of the time of three elementwise passes,
    # and of the same expression under mx.compile, whose loops over broadcast inputs are scalar there.
    state = mx.addmm(state * decay, delta.swapaxes(-1, -2), key)
    return y.reshape(shape).astype(dtype), state.flatten(1, 2)


def gated_delta_sequential(
    q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Advance token by token, as the definition says: the reference that faster forms are held to.

    Arguments, results and errors are those of `gated_delta_chunked`.
    """
    _check("gated_delta_sequential", ("B", "T"), q, k, v, g, beta, state)
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
    _check("gated_delta_chunked", ("B", "T"), q, k, v, g, beta, state)
    if chunk_size < 1 or chunk_size & (chunk_size - 1):
        raise ValueError(f"gated_delta_chunked: chunk_size {chunk_size} is not a power of two; give 32, 64 or 128")
    length = v.shape[1]
    whole = length // chunk_size * chunk_size
    spans = [(0, whole, chunk_size)] if whole else []
    if length > whole:  # a short rest gets a short chunk
        spans.append((whole, length, 1 << (length - whole - 1).bit_length()))
    outputs = []
    for start, end, size in spans:
        y, state = _run_chunks([_fill(x[:, start:end], size) for x in (q, k, v, g, beta)], state, size)
        outputs.append(y[:, : end - start])
    y = mx.concatenate(outputs, axis=1) if len(outputs) > 1 else outputs[0]
    return y.astype(v.dtype), state


def _fill(x: mx.array, size: int) -> mx.array:
    """Append zero tokens up to a multiple of `size`: without k, v, beta and log decay they leave the state alone."""
    missing = -x.shape[1] % size
    return mx.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2)) if missing else x


def _run_chunks(tokens: Sequence[mx.array], state: mx.array, size: int) -> tuple[mx.array, mx.array]:
    """The chunked form of `tokens` (q, k, v, g, beta) for a whole number of chunks; y is float32."""
    q, k, v, g, beta = (mx.unflatten(x.astype(mx.float32), 1, (-1, size)) for x in tokens)
    heads = (k.shape[3], v.shape[3] // k.shape[3])
    v, g, beta = (mx.unflatten(x, 3, heads) for x in (v, g, beta))
    chunks = delta_chunks(q, k, g[..., None] if g.ndim == 5 else g, beta)
    # Kept as [Dk, Dv] from chunk to chunk: a small product whose right operand is transposed is twice as slow on a CPU.
    carried = mx.contiguous(mx.unflatten(state.astype(mx.float32), 1, heads).swapaxes(-1, -2))
    outputs = []
    for n in range(v.shape[1]):
        y, carried = _advance(chunks, n, v[:, n].transpose(0, 2, 3, 1, 4), carried)
        outputs.append(y.transpose(0, 3, 1, 2, 4))
    y = mx.concatenate(outputs, axis=1)
    return y.flatten(2, 3), mx.contiguous(carried.swapaxes(-1, -2)).flatten(1, 2)


def _advance(chunks: DeltaChunks, n: int, v: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
    """Chunk n: `v` [B, Hk, R, C, Dv] and the state [B, Hk, R, Dk, Dv] to y [B, Hk, R, C, Dv] and the next state."""
    read = chunks.reads[:, :, :, n] @ state[..., None, :, :]
    delta = chunks.solve[:, :, :, n] @ (v - read[..., 0, :, :])
    y = mx.addmm(read[..., 1, :, :], chunks.attend[:, :, :, n], delta)
    kept = state * chunks.decay[:, :, :, n].swapaxes(-1, -2)
    return y, mx.addmm(kept, chunks.writes[:, :, :, n].swapaxes(-1, -2), delta)


def _check(
    name: str,
    axes: tuple[str, ...],
    q: mx.array,
    k: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    state: mx.array,
) -> None:
    """Raise ValueError unless the shapes fit one another; `axes` are the leading axes of the tokens."""
    ranks = len(axes) + 2
    if q.ndim == k.ndim == v.ndim == ranks:
        leading, (key_heads, key_dim), (value_heads, value_dim) = v.shape[:-2], k.shape[-2:], v.shape[-2:]
        if (
            q.shape == k.shape == (*leading, key_heads, key_dim)
            and value_heads % key_heads == 0
            and beta.shape == (*leading, value_heads)
            and g.shape in (beta.shape, (*beta.shape, key_dim))
            and state.shape == (leading[0], value_heads, value_dim, key_dim)
            and 0 not in leading
        ):
            return
    tokens = ", ".join(axes)
    raise ValueError(
        f"{name}: q {q.shape}, k {k.shape}, v {v.shape}, g {g.shape}, beta {beta.shape} and state {state.shape} do not "
        f"fit; give q and k [{tokens}, Hk, Dk], v [{tokens}, Hv, Dv], g [{tokens}, Hv] or [{tokens}, Hv, Dk], beta "
        f"[{tokens}, Hv] and state [B, Hv, Dv, Dk], with Hv a multiple of Hk and no empty axis"
    )
