"""A model's configuration in Hugging Face's words, from the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

from plait.errors import CheckpointError
from plait.models.gguf.header import GgufHeader
from plait.models.gguf.metadata import Metadata

ARCHITECTURE = "llama"

# Every `llama.*` key that is read below or says nothing about the computation. Any other would change the model's
# answers if it were ignored (experts, scaled logits, windows), so it is refused by name.
_KNOWN = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "vocab_size",
}


def read_config(header: GgufHeader) -> dict[str, Any]:
    """The configuration under the names of mlx-lm's llama class.

    GGUF stores the rows of llama's q and k projections for interleaved rotary pairs, hence `rope_traditional`.

    Raises:
        CheckpointError: another architecture, a missing or impossible value, or a key that Plait does not know.
    """
    meta = header.metadata
    architecture = meta.text("general.architecture")
    if architecture != ARCHITECTURE:
        raise CheckpointError(
            f"{header.path}: Plait reads GGUF files of architecture {ARCHITECTURE!r} only, and this one is "
            f"{architecture!r}; use the model's safetensors checkpoint"
        )
    _refuse_unknown_keys(meta)
    layers = meta.integer("llama.block_count", least=1)
    if layers > len(header.tensors):
        raise CheckpointError(
            f"{header.path}: 'llama.block_count' is {layers:,}, but the file has only {len(header.tensors):,} tensors"
        )
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": meta.integer("llama.embedding_length", least=1),
        "num_hidden_layers": layers,
        "intermediate_size": meta.integer("llama.feed_forward_length", least=1),
        **_heads(meta),
        "rms_norm_eps": meta.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.number("llama.rope.freq_base", 10_000.0),
        "rope_traditional": True,
        "rope_scaling": _rope_scaling(meta),
        "max_position_embeddings": meta.integer("llama.context_length", least=1),
        "vocab_size": _vocab_size(header),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in header.tensors,
        **_token_ids(meta),
    }


def _refuse_unknown_keys(meta: Metadata) -> None:
    prefix = f"{ARCHITECTURE}."
    keys = {key.removeprefix(prefix) for key in meta.values if key.startswith(prefix)}
    # Converters write zero experts into dense models.
    unknown = sorted(key for key in keys - _KNOWN if not (key.startswith("expert_") and meta.values[prefix + key] == 0))
    if unknown:
        raise CheckpointError(
            f"{meta.path}: Plait does not know the GGUF metadata {', '.join(prefix + key for key in unknown)}, and "
            "to ignore it would change the model's answers; use the model's safetensors checkpoint"
        )


def _heads(meta: Metadata) -> dict[str, int]:
    heads = meta.integer("llama.attention.head_count", least=1)
    kv_heads = meta.integer("llama.attention.head_count_kv", heads, least=1)
    hidden = meta.integer("llama.embedding_length", least=1)
    head_dim = meta.integer("llama.attention.key_length", hidden // heads, least=1)
    value_dim = meta.integer("llama.attention.value_length", head_dim)
    rotated = meta.integer("llama.rope.dimension_count", head_dim)
    if heads % kv_heads or value_dim != head_dim or rotated != head_dim:
        raise CheckpointError(
            f"{meta.path}: {heads} heads on {kv_heads} key-value heads, with {head_dim} key, {value_dim} value and "
            f"{rotated} rotated dimensions per head; Plait needs whole groups of heads and three equal dimensions"
        )
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}


def _rope_scaling(meta: Metadata) -> dict[str, Any] | None:
    kind = meta.text("llama.rope.scaling.type", "linear")  # a factor without a type is linear to llama.cpp
    if kind not in ("none", "linear"):
        raise CheckpointError(
            f"{meta.path}: Plait does not read the rotary scaling {kind!r} ('llama.rope.scaling.type') from GGUF, "
            "only 'linear'; use the model's safetensors checkpoint"
        )
    if kind == "none" or "llama.rope.scaling.factor" not in meta:
        return None
    return {"rope_type": kind, "type": kind, "factor": meta.number("llama.rope.scaling.factor")}


def _vocab_size(header: GgufHeader) -> int:
    """Rows of the embedding, which may be padded beyond the tokens."""
    if "token_embd.weight" not in header.tensors:
        raise CheckpointError(f"{header.path}: the tensor 'token_embd.weight' is missing")
    rows = header.tensors["token_embd.weight"].shape[0]
    named = header.metadata.integer("llama.vocab_size", rows)
    tokens = len(header.metadata.texts("tokenizer.ggml.tokens"))
    if named != rows or tokens > rows:
        raise CheckpointError(
            f"{header.path}: 'token_embd.weight' has {rows:,} rows, but 'llama.vocab_size' is {named:,} and "
            f"'tokenizer.ggml.tokens' has {tokens:,}"
        )
    return rows


def _token_ids(meta: Metadata) -> dict[str, Any]:
    ids: dict[str, Any] = {}
    for name, key in {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}.items():
        if (full := f"tokenizer.ggml.{key}_token_id") in meta:
            ids[name] = meta.integer(full)
    if (turn := "tokenizer.ggml.eot_token_id") in meta:  # the end of a turn also ends an answer
        ids["eos_token_id"] = sorted({meta.integer(turn), ids.get("eos_token_id", meta.integer(turn))})
    return ids
