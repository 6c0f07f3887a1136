"""Changes a model's weights by next to nothing: what that does to its output, rounding may do as well."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

ROUNDING = 2.0**-24
"""Relative error of one rounding to float32."""


@contextmanager
def nudged(model: nn.Module, size: float, seed: int) -> Iterator[None]:
    """Multiply every float32 weight by 1 + `size` times a normal random number, for a while."""
    weights = tree_flatten(model.parameters())
    keys = mx.random.split(mx.random.key(seed), len(weights))
    changed = [
        (name, w * (1 + size * mx.random.normal(w.shape, key=key)) if w.dtype == mx.float32 else w)
        for (name, w), key in zip(weights, keys, strict=True)
    ]
    model.update(tree_unflatten(changed))
    try:
        yield
    finally:
        model.update(tree_unflatten(weights))
