"""Tiny checkpoints with random weights in which every leaf matters, so that a lost state or a swapped page shows.

Plain random weights hide a wrong recurrent state: gates stay constant, and what a layer keeps hardly moves the
logits. Here every other head forgets slowly, norms differ from one, and no bias is zero.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plait  # noqa: F401  before MLX

import mlx.core as mx  # isort: skip
import mlx.nn as nn  # isort: skip
from mlx.utils import tree_flatten, tree_unflatten  # isort: skip
from mlx_lm.utils import _get_classes  # isort: skip
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # isort: skip

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<pad>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
"""Special tokens; their ids follow the 256 bytes."""

VOCABULARY = 256 + len(SPECIALS)

CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{%- endif %}"
    "{%- for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
)

BASE: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 256, "eos_token_id": 258, "pad_token_id": 259}

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
}
_LLAMA = {**_COMMON, "model_type": "llama", "num_hidden_layers": 4, "tie_word_embeddings": False}
_QWEN3 = {
    **_COMMON,
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
}
_EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
_SHARED_EXPERTS = {**_EXPERTS, "shared_expert_intermediate_size": 64}
_HYBRID = {
    **_COMMON,
    "num_hidden_layers": 8,
    "head_dim": 32,
    "full_attention_interval": 4,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
_QWEN3_5_TEXT = {
    **_HYBRID,
    "model_type": "qwen3_5_text",
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.25},
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "qwen2": {**_LLAMA, "model_type": "qwen2", "rope_theta": 1e6},
    "qwen3": _QWEN3,
    "qwen3_moe": {**_QWEN3, "model_type": "qwen3_moe", "mlp_only_layers": [], **_EXPERTS},
    "qwen3_5": {"model_type": "qwen3_5", "text_config": _QWEN3_5_TEXT},
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": {**_QWEN3_5_TEXT, "model_type": "qwen3_5_moe_text", **_SHARED_EXPERTS},
    },
    "qwen3_next": {
        **_HYBRID,
        "model_type": "qwen3_next",
        "mlp_only_layers": [],
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
        **_SHARED_EXPERTS,
    },
    # 98 million parameters, 32,000 token ids: for benchmarks.
    "qwen3_5_98m": {
        "model_type": "qwen3_5",
        "hidden_size": 640,
        "intermediate_size": 1792,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "vocab_size": 32000,
        "linear_num_value_heads": 8,
        "linear_num_key_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "tie_word_embeddings": True,
        "full_attention_interval": 4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
    },
}
"""Configurations by name; `build_checkpoint` adds `BASE` below them."""


def build_checkpoint(
    name: str,
    out_dir: str | Path,
    dtype: str = "float32",
    config: Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    bounded_decay: bool = False,
) -> Path:
    """Write a checkpoint to the folder `name` in `out_dir`, and return that folder.

    The same arguments give the same bytes.

    Args:
        name: a key of `CONFIGS`, or any name where `config` is given.
        out_dir: made if it is not there.
        dtype: of the weights: float32, bfloat16 or float16.
        config: the model's `config.json`, in place of the named one; `BASE` fills in what it lacks.
        seed: of the weights.
        bounded_decay: see `randomize`.
    """
    full = {**BASE, **(CONFIGS[name] if config is None else config)}
    model_class, args_class = _get_classes(full)
    model: nn.Module = model_class(args_class.from_dict(full))
    randomize(model, seed, bounded_decay=bounded_decay)
    weights = _cast(model, getattr(mx, dtype))
    path = Path(out_dir, name)
    path.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(path / "model.safetensors"), weights, metadata={"format": "mlx"})
    # mlx-lm's pipeline loading wants an index even for one file.
    total = sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(sorted(weights), "model.safetensors")}
    _write_json(path / "model.safetensors.index.json", index)
    _write_json(path / "config.json", {**full, "torch_dtype": dtype})
    write_tokenizer(path)
    return path


def randomize(model: nn.Module, seed: int = 0, *, bounded_decay: bool = False) -> None:
    """Give every parameter a random value that keeps the forward stable and shows in its result.

    Args:
        model: changed in place.
        seed: of all values.
        bounded_decay: the decay is exp(-5 sigmoid(exp(A_log) (a + dt_bias))), as in Ling 3.0, and not
            exp(-exp(A_log) softplus(a + dt_bias)); slow heads need other numbers then.
    """
    mx.random.seed(seed)
    values = [(key, _value(key, leaf, bounded_decay)) for key, leaf in tree_flatten(model.parameters())]
    model.update(tree_unflatten(values))


def _value(key: str, leaf: mx.array, bounded_decay: bool) -> mx.array:
    shape: tuple[int, ...] = leaf.shape
    if key.endswith("A_log"):
        # Every other head forgets slowly, so that a state lost 64 tokens back still shows.
        slow = (mx.arange(leaf.size) % 2 == 0).reshape(shape)
        fast = mx.log(mx.random.uniform(0.2, 2.0, shape))
        return mx.where(slow, 1.0 if bounded_decay else -4.5, fast).astype(leaf.dtype)
    if key.endswith("dt_bias"):
        low, high = (-2.5, -1.5) if bounded_decay else (-1.0, 0.5)
        return mx.random.uniform(low, high, shape).astype(leaf.dtype)
    if "norm" in key and leaf.ndim == 1:
        return mx.random.uniform(0.7, 1.3, shape).astype(leaf.dtype)
    value: mx.array = mx.random.normal(shape).astype(leaf.dtype)
    if any(part in key for part in (".f_proj.", ".f_b_proj.", ".in_proj_a.")):
        value = value * (0.2 / float(shape[-1]) ** 0.5)  # gates stay near their bias
    elif key.endswith(("e_score_correction_bias", "expert_bias")):
        value = value * 0.05
    elif leaf.ndim >= 2 and not ("embed" in key and key.endswith("weight") and leaf.ndim == 2):
        fan = shape[1] if "conv" in key else shape[-1]
        value = value * (1.5 / float(fan) ** 0.5)
    elif leaf.ndim < 2:
        value = value * 0.1 + (1.0 if key.endswith(".D") else 0.0)
    return value


def write_tokenizer(path: Path) -> None:
    """Write tokenizer files: one token per byte, `SPECIALS`, and `CHAT_TEMPLATE`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(path / "tokenizer_config.json", settings)


def _cast(model: nn.Module, dtype: mx.Dtype) -> dict[str, mx.array]:
    """Return the weights in `dtype`, but for those that the model's class keeps in float32."""
    castable = getattr(model, "cast_predicate", lambda key: True)
    weights = {}
    for key, value in tree_flatten(model.parameters()):
        cast = mx.issubdtype(value.dtype, mx.floating) and castable(key)
        weights[key] = value.astype(dtype) if cast else value
    mx.eval(weights)
    return weights


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1))
