"""Order between kernels that write in place and the kernels that read what they wrote.

MLX orders GPU work by the buffers that a kernel reads and writes. A write through an input buffer is invisible to it,
and `mx.depends` orders only how work is handed over: it launches nothing, so neither Metal's barriers nor CUDA's graph
edges see it. What does order them is a buffer: each writer fills a fence, and whoever must come later reads it, either
as an input of its own kernel or through its indices (`indices + fence`, for a fence is an int32 zero).
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


def new_fence() -> mx.array:
    """A fence that waits for nothing: int32 zero, shape [1]."""
    return mx.array([0], dtype=mx.int32)


def join(after: Sequence[mx.array]) -> mx.array:
    """One byte, uint8 [1], whose buffer exists only when every array of `after` is computed."""
    heads = [_first_byte(array) for array in after if array.size > 0]
    if not heads:
        return mx.array([0], dtype=mx.uint8)
    return heads[0] if len(heads) == 1 else mx.concatenate(heads)[:1]


def fence_after(after: Sequence[mx.array]) -> mx.array:
    """A fence that waits for `after`, for a write that has nothing to write."""
    return join(after).astype(mx.int32) * 0


def _first_byte(array: mx.array) -> mx.array:
    corner = array[(slice(0, 1),) * array.ndim].reshape(1)
    return corner.view(mx.uint8)[:1]
