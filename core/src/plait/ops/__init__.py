"""Family-neutral maths in plain MLX operations: what state families share, on any device.

Families import from here and never from one another.
"""

from __future__ import annotations

from plait.ops.causal_conv import causal_conv1d
from plait.ops.exponential import exp, exp2, sigmoid, silu
from plait.ops.gated_delta import CHUNK_SIZE, gated_delta_chunked, gated_delta_sequential, gated_delta_step

__all__ = [
    "CHUNK_SIZE",
    "causal_conv1d",
    "exp",
    "exp2",
    "gated_delta_chunked",
    "gated_delta_sequential",
    "gated_delta_step",
    "sigmoid",
    "silu",
]
