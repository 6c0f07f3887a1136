"""Mixers of other shapes: heads that are not square, short and long convolutions, patterns of layers at their ends."""

from __future__ import annotations

from typing import Any

import mlx.nn as nn
import pytest

from plait.testing.checkpoints import CONFIGS
from plait.testing.lab import Lab, site_names
from plait.testing.lesion import Lesion
from plait.testing.parity import FORGOTTEN, compare
from plait.testing.rig import Job
from plait.testing.scenario import prompt_tokens

RECURRENT: dict[str, dict[str, Any]] = {
    "values_smaller_than_keys": {"linear_value_head_dim": 16},
    "values_larger_than_keys": {"linear_value_head_dim": 48},
    "as_many_key_heads": {"linear_num_value_heads": 2},
    "four_values_per_key": {"linear_num_value_heads": 8},
    "short_convolution": {"linear_conv_kernel_dim": 2},
    "long_convolution": {"linear_conv_kernel_dim": 5},
}
ATTENTION: dict[str, dict[str, Any]] = {
    "one_kv_head": {"num_key_value_heads": 1},
    "a_kv_head_per_head": {"num_key_value_heads": 4},
    "narrow_heads": {"head_dim": 16},
    "wide_heads": {"head_dim": 48},
    "biases": {"attention_bias": True},
}
ROTARY = {"partial_rotary_factor": 0.5}
LENGTHS, OUTPUTS = (21, 3, 40, 9), (6, 8, 4, 7)


def _override(model: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with changes, where the model keeps such things."""
    config = CONFIGS[model]
    if "text_config" not in config:
        return {**config, **changes}
    text = {**config["text_config"], **changes}
    if "partial_rotary_factor" in changes:
        text["rope_parameters"] = {**text["rope_parameters"], **changes}
    return {**config, "text_config": text}


def _check(lab: Lab, name: str, config: dict[str, Any], prepare: Any = None) -> None:
    """Hold a model to its references, alone and in a batch, and see that each site's memory shows."""
    path = lab.checkpoint(name, config)
    reference = lab.reference(path, prepare)
    jobs = [
        Job(prompt=prompt_tokens(index, length), max_tokens=output)
        for index, (length, output) in enumerate(zip(LENGTHS, OUTPUTS, strict=True))
    ]
    for layout in ("spanning", "unified"):
        rig = lab.rig(path, max_model_len=64, max_num_seqs=4, layout=layout)
        compare(rig.run(jobs[:1]), reference).check()
        for chunk in (1, 3, 16, None):
            compare(rig.run(jobs, chunk), reference).check()
    for site in site_names(rig.plan):
        assert compare(rig.run(jobs, lesion=Lesion([site])), reference).worst > FORGOTTEN, site


@pytest.mark.parametrize("shape", RECURRENT)
@pytest.mark.parametrize("base", ["qwen3_5", "qwen3_next"])
def test_recurrent_shapes(lab: Lab, base: str, shape: str) -> None:
    pytest.importorskip("plait_gdn")
    layers = {"num_hidden_layers": 2, "full_attention_interval": 2}
    _check(lab, f"{base}_{shape}", _override(base, {**layers, **RECURRENT[shape]}))


@pytest.mark.parametrize("shape", ATTENTION)
@pytest.mark.parametrize("base", ["llama", "qwen3"])
def test_attention_shapes(lab: Lab, base: str, shape: str) -> None:
    _check(lab, f"{base}_{shape}", _override(base, {"num_hidden_layers": 2, **ATTENTION[shape]}))


@pytest.mark.parametrize("changes", [*ATTENTION.values(), ROTARY], ids=[*ATTENTION, "half_rotary"])
@pytest.mark.parametrize("base", ["qwen3_5", "qwen3_next"])
def test_gated_attention_shapes(lab: Lab, base: str, changes: dict[str, Any]) -> None:
    pytest.importorskip("plait_gdn")
    layers = {"num_hidden_layers": 2, "full_attention_interval": 2}
    name = "_".join([base, "gated", *map(str, [*changes, *changes.values()])])
    _check(lab, name, _override(base, {**layers, **changes}))


def _no_mask_for_layers_that_are_not_there(model: nn.Module) -> None:
    """Let mlx-lm's own code do without a mask for a kind of layer that it has none of."""
    inner = model.language_model.model if "language_model" in model else model.model
    kinds = {layer.is_linear for layer in model.layers}
    inner.fa_idx = inner.fa_idx if False in kinds else None
    inner.ssm_idx = inner.ssm_idx if True in kinds else None


@pytest.mark.parametrize("interval", [1, 9])
@pytest.mark.parametrize("base", ["qwen3_5", "qwen3_next"])
def test_layers_all_of_one_kind(lab: Lab, base: str, interval: int) -> None:
    """Attention in every layer, and in none."""
    pytest.importorskip("plait_gdn")
    config = _override(base, {"num_hidden_layers": 3, "full_attention_interval": interval})
    _check(lab, f"{base}_interval_{interval}", config, _no_mask_for_layers_that_are_not_there)
    growths = {binding.spec.growth for binding in lab.plan(lab.checkpoint(f"{base}_interval_{interval}")).bindings}
    assert growths == ({"token"} if interval == 1 else {"state"})
