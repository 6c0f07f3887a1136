"""Gated DeltaNet as a state family: one convolution state and one float32 recurrent state per sequence and layer.

Source: "Gated Delta Networks: Improving Mamba2 with Delta Rule" (Yang et al., 2024, arXiv:2412.06464), with the gates
and norms of Qwen3-Next and Qwen3.5.
"""

from __future__ import annotations

from typing import ClassVar

import mlx.core as mx
import mlx.nn as nn

from plait.family import BoundSite, StateFamily
from plait.memory.view import StateView, View
from plait.ops import causal_conv1d, gated_delta_chunked, gated_delta_step, sigmoid, silu
from plait.recurrent import Arrays, RecurrentSite
from plait.spec import CacheSpec, Growth, Resume, Site, TensorSpec
from plait_gdn.mixer import Mixer

NORM_EPS = 1e-6  # of the query and key norm, added to the sum of squares


class GatedDeltaSite(RecurrentSite):
    """One Gated DeltaNet mixer on its states."""

    def __init__(self, mixer: Mixer, view: StateView) -> None:
        super().__init__(view)
        self.mixer = mixer
        module = mixer.module
        self._taps = module.conv1d.weight.reshape(mixer.channels, mixer.taps)
        # exp(A) is the same for every token.
        self._rate = -mx.exp(module.A_log.astype(mx.float32))
        self._bias = module.dt_bias.astype(mx.float32)
        mx.eval(self._taps, self._rate, self._bias)

    def project(self, x: mx.array) -> Arrays:
        """Return qkv, log decay, beta and the output gate z of each token; decay and beta in float32."""
        qkv, z, b, a = self.mixer.project(x)
        decay = self._rate * nn.softplus(a.astype(mx.float32) + self._bias)
        return qkv, decay, sigmoid(b.astype(mx.float32)), z

    def advance_one(self, inputs: Arrays, states: Arrays) -> tuple[mx.array, Arrays]:
        """See `RecurrentSite`."""
        qkv, decay, beta, _ = inputs
        mixed, window = causal_conv1d(qkv[:, None], self._taps, None, states[0])
        q, k, v = self._heads(mixed[:, 0])
        y, state = gated_delta_step(q, k, v, decay, beta, states[1])
        return y, (window, state)

    def advance_chunk(self, inputs: Arrays, states: Arrays) -> tuple[mx.array, Arrays]:
        """See `RecurrentSite`."""
        qkv, decay, beta, _ = inputs
        mixed, window = causal_conv1d(qkv, self._taps, None, states[0])
        q, k, v = self._heads(mixed)
        y, state = gated_delta_chunked(q, k, v, decay, beta, states[1])
        return y, (window, state)

    def finish(self, y: mx.array, inputs: Arrays) -> mx.array:
        """Norm each head, gate it in float32, and project back."""
        norm = self.mixer.module.norm
        normed = mx.fast.rms_norm(y, norm.weight, norm.eps).astype(mx.float32)
        out = (normed * silu(inputs[3].astype(mx.float32))).astype(y.dtype)
        projected: mx.array = self.mixer.module.out_proj(out.reshape(out.shape[0], -1))
        return projected

    def _heads(self, mixed: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Activate, split into heads, and norm queries and keys; the read-out scale goes into the queries."""
        q, k, v = self.mixer.split(silu(mixed))
        return _norm(q) * self.mixer.key_dim**-0.5, _norm(k), v


def _norm(x: mx.array) -> mx.array:
    """Scale the last axis to length 1, in float32."""
    x = x.astype(mx.float32)
    return x * mx.rsqrt((x * x).sum(-1, keepdims=True) + NORM_EPS)


class GatedDeltaNet(StateFamily):
    """Convolution [taps - 1, C] in the model's dtype, and S [Hv, Dv, Dk] in float32."""

    name: ClassVar[str] = "gdn"

    def spec(self, site: Site) -> CacheSpec:
        """See `StateFamily.spec`."""
        mixer = Mixer(site.module)
        return CacheSpec(
            Growth.STATE,
            (
                TensorSpec("conv", (mixer.taps - 1, mixer.channels), site.dtype),
                TensorSpec("recurrent", (mixer.value_heads, mixer.value_dim, mixer.key_dim), "float32"),
            ),
            resume=Resume.CHECKPOINT,
        )

    def bind(self, site: Site, view: View) -> BoundSite:
        """See `StateFamily.bind`."""
        assert isinstance(view, StateView)
        return GatedDeltaSite(Mixer(site.module), view)
