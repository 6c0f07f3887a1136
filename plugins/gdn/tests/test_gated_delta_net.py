"""The family's own parts, each against the stock mixers of Qwen3.5 and Qwen3-Next."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import plait

import mlx.core as mx  # isort: skip  after plait
import mlx.nn as nn  # isort: skip
from mlx_lm.models import qwen3_5, qwen3_next  # isort: skip
from mlx_lm.models.cache import ArraysCache  # isort: skip

from plait.errors import SiteClaimError
from plait.spec import Claim, Growth, Site
from plait.step import Chunk
from plait_gdn import plugin
from plait_gdn.family import GatedDeltaSite
from plait_gdn.mixer import Mixer

assert plait  # imported for the BLAS that it brings

SIZES = {
    "hidden_size": 24,
    "rms_norm_eps": 1e-6,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 3,
}
OTHERS = {
    "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "vocab_size": 16, "num_experts": 0, "num_experts_per_tok": 0, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "shared_expert_intermediate_size": 0, "moe_intermediate_size": 0, "rope_theta": 1e4, "partial_rotary_factor": 0.5,
    "max_position_embeddings": 64,
}  # fmt: skip
STATE_SHAPES = ((2, 2 * 2 * 8 + 4 * 12), (4, 12, 8))


def _mixer(model: str, **changes: int) -> Any:
    mx.random.seed(7)
    sizes = {**SIZES, **changes}
    if model == "qwen3_5":
        module: Any = qwen3_5.GatedDeltaNet(qwen3_5.TextModelArgs(model_type="qwen3_5_text", **sizes))
    else:
        args = qwen3_next.ModelArgs(model_type="qwen3_next", **OTHERS, **sizes)
        module = qwen3_next.Qwen3NextGatedDeltaNet(args)
    # A decay of each kind: heads that keep, heads that forget.
    module.A_log = mx.log(mx.array([0.02, 0.3, 2.0, 8.0])[: sizes["linear_num_value_heads"]])
    module.dt_bias = mx.random.normal(module.dt_bias.shape)
    module.norm.weight = 1 + 0.3 * mx.random.normal(module.norm.weight.shape)
    return module


def _site(module: nn.Module, dtype: str = "float32") -> Site:
    return Site(name="layers.0.linear_attn", layer=0, path="linear_attn", module=module, config={}, dtype=dtype)


class Memory:
    """States of a batch, read before a step and replaced after it."""

    def __init__(self, rows: int) -> None:
        self.states = [mx.zeros((rows, *shape)) for shape in STATE_SHAPES]
        self.written: list[tuple[int, Any]] = []

    def read(self, step: Batch) -> list[mx.array]:
        assert len(self.states[0]) == step.rows
        return self.states

    def write(self, step: Batch, first_row: int, tensors: Any) -> None:
        self.written.append((first_row, tensors))

    def commit(self) -> None:
        for first, tensors in self.written:
            for state, tensor in zip(self.states, tensors, strict=True):
                state[first : first + len(tensor)] = tensor
        self.written.clear()


class Batch:
    """As much of a step as a recurrent site looks at."""

    def __init__(self, decode: int, chunks: list[int]) -> None:
        self.decode, self.rows = decode, decode + len(chunks)
        stops = np.cumsum([decode, *chunks]).tolist()
        self.chunks = [Chunk(decode + i, start, stop, 0, ()) for i, (start, stop) in enumerate(pairwise(stops))]


def _bind(module: nn.Module, rows: int) -> tuple[GatedDeltaSite, Memory]:
    memory = Memory(rows)
    return GatedDeltaSite(Mixer(module), memory), memory  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["qwen3_5", "qwen3_next"])
def test_spec_is_read_from_the_module(model: str) -> None:
    module = _mixer(model)
    spec = plugin.FAMILY.spec(_site(module, "bfloat16"))
    assert spec.growth is Growth.STATE
    assert [(t.shape, t.dtype) for t in spec.tensors] == [
        (STATE_SHAPES[0], "bfloat16"),
        (STATE_SHAPES[1], "float32"),
    ]
    assert spec == plugin.FAMILY.spec(_site(module, "bfloat16"))
    # Tensor parallelism divides the module, and the config still says what it said.
    module.num_v_heads, module.num_k_heads = 2, 1
    assert plugin.FAMILY.spec(_site(module)).tensors[1].shape == (2, 12, 8)


@pytest.mark.parametrize("model", ["qwen3_5", "qwen3_next"])
def test_claims_what_it_knows_whole(model: str) -> None:
    assert plugin.plait_claim_site(_site(_mixer(model))) == Claim("gdn")
    assert plugin.plait_claim_site(_site(nn.Linear(4, 4))) is None
    more = _mixer(model)
    more.extra_proj = nn.Linear(4, 4)
    assert plugin.plait_claim_site(_site(more)) is None
    tuned = _mixer(model)
    tuned.window = 7
    assert plugin.plait_claim_site(_site(tuned)) is None


def test_a_sharded_mixer_is_refused() -> None:
    module = _mixer("qwen3_5")
    module.sharding_group = object()
    with pytest.raises(SiteClaimError, match=r"layers\.0\.linear_attn \(family gdn\) is sharded"):
        plugin.plait_claim_site(_site(module))


@pytest.mark.parametrize("cuts", [[40], [1] * 40, [7, 1, 32], [33, 7]], ids=str)
@pytest.mark.parametrize("model", ["qwen3_5", "qwen3_next"])
def test_site_equals_the_stock_mixer(model: str, cuts: list[int]) -> None:
    """Two sequences at once, one of them a token ahead; outputs and both states, however the tokens are cut."""
    module = _mixer(model)
    site, memory = _bind(module, 2)
    x = mx.random.normal((2, 41, 24))
    caches = [ArraysCache(2), ArraysCache(2)]
    # The stock cache holds batches; each sequence has its own.
    stock = [module(x[i : i + 1, : 40 + i], cache=cache)[0] for i, cache in enumerate(caches)]
    outputs: list[list[mx.array]] = [[], []]
    first = Batch(0, [cuts[0], cuts[0] + 1])
    spans = [(0, 0)]
    for cut in cuts:
        spans.append((spans[-1][1], spans[-1][1] + cut))
    for index, (start, stop) in enumerate(spans[1:]):
        parts = [x[0, start:stop], x[1, start + (index > 0) : stop + 1]]
        step = first if index == 0 else Batch(0, [stop - start] * 2)
        if index and stop - start == 1:
            step = Batch(2, [])
        y = site(mx.concatenate(parts)[None], step)[0]  # type: ignore[arg-type]
        memory.commit()
        outputs[0].append(y[: len(parts[0])])
        outputs[1].append(y[len(parts[0]) :])
    for row in range(2):
        np.testing.assert_allclose(np.array(mx.concatenate(outputs[row])), np.array(stock[row]), atol=2e-5)
        for kept, state in zip(memory.states, caches[row].cache, strict=True):
            np.testing.assert_allclose(np.array(kept[row]), np.array(state[0]), atol=2e-5)


@pytest.mark.parametrize("model", ["qwen3_5", "qwen3_next"])
def test_each_state_matters(model: str) -> None:
    site, memory = _bind(_mixer(model), 1)
    x = mx.random.normal((1, 12, 24))
    site(x[:, :11], Batch(0, [11]))  # type: ignore[arg-type]
    memory.commit()
    whole = list(memory.states)
    expected = np.array(site(x[:, 11:], Batch(1, [])))  # type: ignore[arg-type]
    for index in range(2):
        memory.states = [mx.zeros_like(s) if i == index else s for i, s in enumerate(whole)]
        assert np.abs(np.array(site(x[:, 11:], Batch(1, []))) - expected).max() > 1e-3  # type: ignore[arg-type]


def test_writes_wait_for_the_step_to_end() -> None:
    """Rows before chunks, one write each, and nothing read changes within the step."""
    site, memory = _bind(_mixer("qwen3_5"), 3)
    before = [np.array(state) for state in memory.states]
    site(mx.random.normal((1, 2 + 5, 24)), Batch(2, [5]))  # type: ignore[arg-type]
    assert [(first, len(tensors[0])) for first, tensors in memory.written] == [(0, 2), (2, 1)]
    for state, old in zip(memory.states, before, strict=True):
        np.testing.assert_array_equal(np.array(state), old)
