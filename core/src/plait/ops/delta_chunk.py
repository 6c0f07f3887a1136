"""The part of the gated delta rule inside chunks of tokens: everything that does not need the carried state.

With a(i, j) the decay from after token j through token i, a chunk of C tokens that meets the state S gives

    D = M (V - (K a(i, start)) S^T),   M = (I + diag(beta) A)^-1 diag(beta),   A[i, j] = k_i . k_j a(i, j), i > j
    Y = (Q a(i, start)) S^T + P D,     P[i, j] = q_i . k_j a(i, j), i >= j
    S' = S a(end, start) + D^T (K a(end, j))

which is the WY / UT-transform form of "Parallelizing Linear Transformers with the Delta Rule over Sequence Length"
(arXiv:2406.06484) with the decay of "Gated Delta Networks" (arXiv:2412.06464), per channel as in Kimi Linear
(arXiv:2510.26692).

M and P are built by doubling: for two neighbouring blocks of `width` tokens, the part of A and P where the right one
looks at the left one needs the decay of the right one since its start and of the left one until its end. Each such
decay is a product of factors <= 1, so nothing overflows or cancels however strong the decay is, per head or per
channel, and exp, by far the slowest operation on a CPU, is taken once per factor. The inverse grows by the 2 x 2
block rule, which stays accurate where powers of A do not (keys that are alike).
"""

from __future__ import annotations

import attrs
import mlx.core as mx

from plait.ops.block_decay import BlockDecay, decay_factor


@attrs.frozen
class DeltaChunks:
    """Matrices of N chunks of C tokens, float32; heads are [Hk, R], R value heads share a key head.

    Attributes:
        solve: M [B, Hk, R, N, C, C], from what the state lacks to the deltas that are written.
        attend: P [B, Hk, R, N, C, C], from deltas to outputs.
        reads: K and Q, decayed since the chunk's start, [B, Hk, R, N, 2, C, Dk].
        writes: K decayed until the chunk's end, [B, Hk, R, N, C, Dk].
        decay: of the whole chunk, [B, Hk, R, N, 1, 1 or Dk].
    """

    solve: mx.array
    attend: mx.array
    reads: mx.array
    writes: mx.array
    decay: mx.array


def _join(blocks: mx.array, lower: mx.array) -> mx.array:
    """Diagonal blocks [..., 2 p, w, w] and what lies below them [..., p, w, w] to [..., p, 2 w, 2 w]."""
    halves = blocks.reshape(*lower.shape[:-2], 2, *lower.shape[-2:])
    upper = mx.concatenate([halves[..., 0, :, :], mx.zeros_like(lower)], axis=-1)
    return mx.concatenate([upper, mx.concatenate([lower, halves[..., 1, :, :]], axis=-1)], axis=-2)


def _lower(kq: mx.array, decay: BlockDecay) -> mx.array:
    """Decayed products of [k, q] of right blocks with k of their left neighbours.

    Takes `kq` [B, Hk, 1, N, 2, C, Dk]; returns [B, Hk, R, N, 2, pairs, width, width].
    """
    blocks = kq.reshape(*kq.shape[:5], -1, 2, decay.width, kq.shape[-1])
    right, left = blocks[..., 1, :, :], blocks[..., :1, :, 0, :, :]
    since, until = (x[:, :, :, :, None] for x in decay.across())
    if decay.width == 1:  # one number per pair: a product of matrices would be all overhead
        return (right * (left * since)).sum(axis=-1, keepdims=True)
    if since.shape[-1] == 1:  # one decay per head: the products are shared by the value heads of a key head
        return (right @ left.swapaxes(-1, -2)) * (since * until.swapaxes(-1, -2))
    return (right * since) @ (left * until).swapaxes(-1, -2)


def delta_chunks(q: mx.array, k: mx.array, g: mx.array, beta: mx.array) -> DeltaChunks:
    """Build the matrices of N chunks of C tokens, C a power of two, from float32 arrays.

    Args:
        q: [B, N, C, Hk, Dk], scaled by the caller.
        k: [B, N, C, Hk, Dk].
        g: log decay <= 0, [B, N, C, Hk, R, 1] per head or [B, N, C, Hk, R, Dk] per channel.
        beta: [B, N, C, Hk, R].
    """
    batch, chunks, size, key_heads, _ = k.shape
    value_heads = beta.shape[-1]
    heads = (batch, key_heads, value_heads, chunks)
    kq = mx.stack([x.transpose(0, 3, 1, 2, 4) for x in (k, q)], axis=3)[:, :, None]  # [B, Hk, 1, N, 2, C, Dk]
    decay = BlockDecay.of_tokens(decay_factor(g.transpose(0, 3, 4, 1, 2, 5)))
    solve = beta.transpose(0, 3, 4, 1, 2)[..., None, None]
    attend = mx.broadcast_to((kq[..., 0, :, :] * kq[..., 1, :, :]).sum(axis=-1), (*heads, size))[..., None, None]
    while decay.width < size:
        lower = _lower(kq, decay)
        below, right = lower[:, :, :, :, 0], solve.reshape(*heads, -1, 2, decay.width, decay.width)
        solve = _join(solve, -(right[..., 1, :, :] @ below @ right[..., 0, :, :]))
        attend = _join(attend, lower[:, :, :, :, 1])
        decay = decay.doubled()
    return DeltaChunks(
        solve=solve.reshape(*heads, size, size),
        attend=attend.reshape(*heads, size, size),
        reads=kq * decay.since[:, :, :, :, None],
        writes=kq[..., 0, :, :] * decay.until,
        decay=decay.since[..., -1:, :],
    )
