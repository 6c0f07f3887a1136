"""The two stock mixers of Gated DeltaNet, as one set of sizes and projections."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn

SHARED = {"conv1d", "norm", "out_proj", "dt_bias", "A_log"}
SPLIT = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"}  # Qwen3.5
FUSED = {"in_proj_qkvz", "in_proj_ba"}  # Qwen3-Next: interleaved by key head
FIELDS = {
    "hidden_size", "num_v_heads", "num_k_heads", "head_k_dim", "head_v_dim", "key_dim", "value_dim",
    "conv_kernel_size", "layer_norm_epsilon", "conv_dim", "sharding_group",
}  # fmt: skip


def is_mixer(module: nn.Module) -> bool:
    """Whether a module has the parts of Gated DeltaNet and nothing else."""
    fields = {name for name in vars(module) if not name.startswith("_")}
    return set(module) in (SHARED | SPLIT, SHARED | FUSED) and fields <= FIELDS


class Mixer:
    """One Gated DeltaNet mixer: its sizes, and what it projects from a token.

    Attributes:
        key_heads: Hk.
        value_heads: Hv, a multiple of Hk.
        key_dim: Dk, per head.
        value_dim: Dv, per head.
        channels: C = 2 Hk Dk + Hv Dv, that the convolution sees.
        taps: of the convolution.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.key_heads, self.value_heads = module.num_k_heads, module.num_v_heads
        self.key_dim, self.value_dim = module.head_k_dim, module.head_v_dim
        self.channels = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        self.taps = module.conv_kernel_size
        self._fused = "in_proj_qkvz" in module

    def project(self, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
        """Return qkv [T, C], z [T, Hv, Dv], b [T, Hv] and a [T, Hv] of x [T, hidden]."""
        module, tokens = self.module, x.shape[0]
        if not self._fused:
            z = module.in_proj_z(x).reshape(tokens, self.value_heads, self.value_dim)
            return module.in_proj_qkv(x), z, module.in_proj_b(x), module.in_proj_a(x)
        q, k, v, z, b, a = module.fix_query_key_value_ordering(module.in_proj_qkvz(x)[None], module.in_proj_ba(x)[None])
        qkv = mx.concatenate([part.reshape(tokens, -1) for part in (q, k, v)], axis=-1)
        return qkv, z[0], b[0], a[0]

    def split(self, qkv: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Return q and k [..., Hk, Dk] and v [..., Hv, Dv] of qkv [..., C]."""
        keys = self.key_heads * self.key_dim
        q, k, v = mx.split(qkv, [keys, 2 * keys], axis=-1)
        lead = qkv.shape[:-1]
        return (
            q.reshape(*lead, self.key_heads, self.key_dim),
            k.reshape(*lead, self.key_heads, self.key_dim),
            v.reshape(*lead, self.value_heads, self.value_dim),
        )
