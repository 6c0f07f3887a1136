"""The builtin family: softmax attention with keys and values per token (MHA, GQA, MQA).

Served are mixers made of q/k/v/o projections, with or without biases, per-head query and key norms, full or partial
rotary embeddings and a sigmoid output gate that is projected beside the queries (Qwen3-Next, Qwen3.5). Anything else
in a mixer means that its mathematics is not known here, and it is not claimed.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from plait.errors import SiteClaimError
from plait.family import BoundSite, StateFamily
from plait.hooks import hookimpl
from plait.memory.view import TokenView, View
from plait.ops.attention import chunk_attention, decode_attention
from plait.ops.exponential import sigmoid
from plait.spec import CacheSpec, Claim, Growth, Site, TensorSpec
from plait.step import Step

PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
MODULES = PROJECTIONS | {"q_norm", "k_norm", "rope"}
HEADS = ("n_heads", "num_attention_heads", "num_heads")
KV_HEADS = ("n_kv_heads", "num_key_value_heads", "num_kv_heads")
FIELDS = {*HEADS, *KV_HEADS, "head_dim", "scale"}
PARAMETERS = {"self", "x", "mask", "cache"}
# Rotary embeddings whose angle depends on the position alone.
ROPES = {"RoPE", "SuScaledRoPE", "Llama3RoPE", "YarnRoPE", "ProportionalRoPE", "NoPE"}


class Shape:
    """Sizes of a mixer, read from its attributes and projections."""

    def __init__(self, module: nn.Module) -> None:
        self.heads = _first(module, HEADS)
        self.kv_heads = _first(module, KV_HEADS)
        self.dim = out_dims(module.k_proj) // self.kv_heads
        self.gated = out_dims(module.q_proj) == 2 * self.heads * self.dim

    def fits(self, module: nn.Module) -> bool:
        """Whether the projections and norms have the sizes that the mathematics here takes for granted."""
        return (
            out_dims(module.k_proj) == out_dims(module.v_proj) == self.kv_heads * self.dim
            and out_dims(module.q_proj) == (1 + self.gated) * self.heads * self.dim
            and self.heads % self.kv_heads == 0
            and all(module[n].weight.size == self.dim for n in ("q_norm", "k_norm") if n in module)
        )


def out_dims(linear: nn.Module) -> int:
    """Return the output size of a linear layer, quantised or not."""
    return int(linear.weight.shape[0])


def _first(module: nn.Module, names: Sequence[str]) -> int:
    return int(next(getattr(module, name) for name in names if hasattr(module, name)))


def fields_of(module: nn.Module) -> set[str]:
    """Return the names of a module's plain attributes."""
    return {name for name in vars(module) if not name.startswith("_")}


class AttentionSite(BoundSite):
    """One attention mixer on its pages."""

    def __init__(self, module: nn.Module, view: TokenView) -> None:
        self.module = module
        self.view = view
        self.shape = Shape(module)
        self.scale = float(module.scale)
        self.rope = module.rope if "rope" in module else None
        self.norms = (module.q_norm, module.k_norm) if "q_norm" in module else None

    def __call__(self, x: mx.array, step: Step) -> mx.array:
        """See `BoundSite`."""
        shape, tokens = self.shape, step.tokens
        q = self.module.q_proj(x).reshape(tokens, shape.heads, -1)
        gate = None
        if shape.gated:
            q, gate = q[..., : shape.dim], q[..., shape.dim :]
        k = self.module.k_proj(x).reshape(tokens, shape.kv_heads, shape.dim)
        v = self.module.v_proj(x).reshape(tokens, shape.kv_heads, shape.dim)
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        if self.rope is not None:
            # One sequence of one token each: every token has its own position.
            q = self.rope(q[:, :, None], offset=step.positions)[:, :, 0]
            k = self.rope(k[:, :, None], offset=step.positions)[:, :, 0]
        self.view.write(step, mx.stack([k, v], axis=2))
        parts = self._decode(step, q, k, v) + self._chunks(step, q, k, v)
        out = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        out = out.astype(x.dtype).reshape(1, tokens, -1)
        if gate is not None:
            out = out * sigmoid(gate.reshape(1, tokens, -1))
        projected: mx.array = self.module.o_proj(out)
        return projected

    def _decode(self, step: Step, q: mx.array, k: mx.array, v: mx.array) -> list[mx.array]:
        outputs = []
        for group in step.groups:
            rows = slice(group.start, group.stop)
            pages = self.view.gather(group.blocks)
            outputs.append(decode_attention(q[rows], pages, group.bias, k[rows], v[rows], self.scale))
        return outputs

    def _chunks(self, step: Step, q: mx.array, k: mx.array, v: mx.array) -> list[mx.array]:
        outputs = []
        for chunk in step.chunks:
            span = slice(chunk.start, chunk.stop)
            keys, values = k[span].swapaxes(0, 1), v[span].swapaxes(0, 1)
            if chunk.context:
                pages = self.view.gather(chunk.blocks)  # [n, kv_heads, 2, block, dim]
                past = pages.transpose(2, 1, 0, 3, 4).reshape(2, self.shape.kv_heads, -1, self.shape.dim)
                past = past[:, :, : chunk.context]
                keys = mx.concatenate([past[0], keys], axis=1)
                values = mx.concatenate([past[1], values], axis=1)
            outputs.append(chunk_attention(q[span], keys, values, self.scale))
        return outputs


class Attention(StateFamily):
    """Keys and values per token: [kv_heads, 2, head_dim], in pages [kv_heads, 2, block, head_dim]."""

    name = "attention"

    def spec(self, site: Site) -> CacheSpec:
        """See `StateFamily.spec`."""
        shape = Shape(site.module)
        rows = TensorSpec("kv", (shape.kv_heads, 2, shape.dim), site.dtype, block_axis=2)
        return CacheSpec(Growth.TOKEN, (rows,))

    def bind(self, site: Site, view: View) -> BoundSite:
        """See `StateFamily.bind`."""
        assert isinstance(view, TokenView)
        return AttentionSite(site.module, view)


FAMILY = Attention()


@hookimpl
def plait_families() -> Sequence[StateFamily]:
    """Ship the attention family."""
    return [FAMILY]


@hookimpl
def plait_claim_site(site: Site) -> Claim | None:
    """Claim plain softmax attention; refuse, by name, what is attention but not supported."""
    module = site.module
    children = set(module)
    if not PROJECTIONS <= children <= MODULES or not fields_of(module) <= FIELDS:
        return None
    if not set(inspect.signature(type(module).__call__).parameters) <= PARAMETERS:
        return None
    if not any(hasattr(module, name) for name in HEADS) or not any(hasattr(module, name) for name in KV_HEADS):
        return None
    if ("q_norm" in children) != ("k_norm" in children) or not Shape(module).fits(module):
        return None
    _refuse_unsupported(site, module)
    return Claim(FAMILY.name)


def _refuse_unsupported(site: Site, module: Any) -> None:
    where = f"site {site.name} ({type(module).__name__}, family {FAMILY.name})"
    if "RotatingKVCache" in site.stock_caches:
        raise SiteClaimError(
            f"{where} is a sliding-window layer; sliding windows are not supported yet. "
            "Choose a checkpoint whose layers all attend to the whole context."
        )
    rope = type(module.rope).__name__ if "rope" in module else "NoPE"
    if rope not in ROPES:
        raise SiteClaimError(
            f"{where} uses rotary embedding {rope}, which is not supported; known: {', '.join(sorted(ROPES))}."
        )
