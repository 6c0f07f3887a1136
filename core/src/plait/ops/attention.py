"""Softmax attention over pages, and over the tokens of a chunk, in plain MLX operations.

Compute is float32. The softmax runs in base 2, the base folded into the query's scale (`plait.ops.exponential` says
why).
"""

from __future__ import annotations

import math

import mlx.core as mx

from plait.ops.exponential import LOG2E, exp2, on_cpu

TILE = 128  # query tokens whose scores exist at one time on CPU
SCORES = 128 * 1024  # of one head at one time on CPU, where that allows 16 query tokens


def decode_attention(q: mx.array, pages: mx.array, bias: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    """Attend from one new token per row to its pages and to itself.

    Args:
        q: [rows, heads, D].
        pages: [rows, n, kv_heads, 2, block, D], keys at 0 and values at 1; heads is a multiple of kv_heads. Tokens
            beyond a row's context may hold anything finite.
        bias: float32 [rows, n * block], 0 where a token is and -inf elsewhere.
        k: [rows, kv_heads, D], the new token's keys, which are not in the pages yet.
        v: [rows, kv_heads, D].
        scale: of the scores.

    Returns:
        float32 [rows, heads, D].
    """
    rows, n, kv_heads, _, block, dim = pages.shape
    group = q.shape[1] // kv_heads
    q = (q.astype(mx.float32) * (scale * LOG2E)).reshape(rows, 1, kv_heads, group, dim)
    k, v = k.astype(mx.float32), v.astype(mx.float32)
    keys, values = pages[:, :, :, 0].astype(mx.float32), pages[:, :, :, 1].astype(mx.float32)
    scores = (q @ keys.swapaxes(-1, -2)).transpose(0, 2, 3, 1, 4).reshape(rows, kv_heads, group, n * block)
    scores = scores + bias[:, None, None]
    own = q[:, 0] @ k[..., None]  # [rows, kv_heads, group, 1]
    top = mx.maximum(scores.max(-1, keepdims=True), own)
    weights, own = exp2(scores - top), exp2(own - top)
    total = weights.sum(-1, keepdims=True) + own
    weights = weights.reshape(rows, kv_heads, group, n, block).transpose(0, 3, 1, 2, 4)
    out = (weights @ values).sum(1) + own * v[:, :, None]
    return (out / total).reshape(rows, kv_heads * group, dim)


def chunk_attention(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
    """Attend causally from the last tokens of one sequence to all of them.

    Args:
        q: [T, heads, D], the last T of the N tokens.
        k: [kv_heads, N, D].
        v: [kv_heads, N, D].
        scale: of the scores.

    Returns:
        float32 [T, heads, D].
    """
    tokens, heads, dim = q.shape
    if not on_cpu():
        out = mx.fast.scaled_dot_product_attention(q.swapaxes(0, 1)[None], k[None], v[None], scale=scale, mask="causal")
        return out[0].swapaxes(0, 1).astype(mx.float32)
    kv_heads, total, _ = k.shape
    group = heads // kv_heads
    q = (q.astype(mx.float32) * (scale * LOG2E)).reshape(tokens, kv_heads, group, dim).transpose(1, 2, 0, 3)
    keys, values = k.astype(mx.float32).swapaxes(-1, -2), v.astype(mx.float32)
    tiles: list[mx.array] = []
    tile = max(16, min(TILE, SCORES // total))
    for start in range(0, tokens, tile):
        stop = min(tokens, start + tile)
        seen = total - tokens + stop
        size = stop - start
        part = q[:, :, start:stop].reshape(kv_heads, group * size, dim)
        if tiles:  # one tile after the other: side by side, the scores of all would exist at one time
            part = mx.depends([part], [tiles[-1]])[0]
        scores = (part @ keys[..., :seen]).reshape(kv_heads, group, size, seen)
        if size > 1:
            later = mx.arange(seen)[None] > mx.arange(seen - size, seen)[:, None]
            scores = scores + mx.where(later, -math.inf, 0.0)
        weights = exp2(scores - scores.max(-1, keepdims=True))
        out = weights.reshape(kv_heads, group * size, seen) @ values[:, :seen]
        out = out.reshape(kv_heads, group, size, dim) / weights.sum(-1, keepdims=True)
        tiles.append(out.transpose(2, 0, 1, 3).reshape(size, heads, dim))
    return tiles[0] if len(tiles) == 1 else mx.concatenate(tiles)
