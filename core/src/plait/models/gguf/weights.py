"""The weights of a GGUF file under mlx-lm's parameter names."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import attrs
import mlx.core as mx

from plait.errors import CheckpointError
from plait.models.gguf.header import GgufHeader, TensorInfo
from plait.models.gguf.tensor_type import GROUP_SIZE

_SHOWN = 5  # names listed in an error before "and N more"


@attrs.frozen
class WeightMap:
    """Which GGUF tensor is which parameter; made by `map_weights`, which checks names and shapes."""

    header: GgufHeader
    parameters: dict[str, TensorInfo]

    @property
    def nbytes(self) -> int:
        """Bytes of all weights as MLX holds them."""
        return sum(tensor.type.held_bytes(tensor.shape) for tensor in self.parameters.values())

    def quantization(self, module: str) -> dict[str, int] | None:
        """`{"group_size": ..., "bits": ...}` of the module at this path, or None if its weight is not quantised."""
        tensor = self.parameters.get(f"{module}.weight")
        if tensor is None or tensor.type.bits is None:
            return None
        return {"group_size": GROUP_SIZE, "bits": tensor.type.bits}

    def load(self) -> dict[str, mx.array]:
        """Reads the data: `<module>.weight`, and `.scales` and `.biases` beside a quantised one.

        Raises:
            CheckpointError: MLX cannot read the file, or holds a tensor otherwise than was planned.
        """
        path = self.header.path
        try:
            loaded: Any = mx.load(str(path), format="gguf")
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{path}: MLX cannot load the GGUF file: {error}. MLX opens it for writing, so a read-only file "
                "fails: `chmod u+w` it, or copy it to a folder of yours"
            ) from error
        weights: dict[str, mx.array] = {}
        for parameter, tensor in self.parameters.items():
            for part, (shape, dtype) in tensor.type.arrays(tensor.shape).items():
                array = loaded.get(_with_part(tensor.name, part))
                if array is None or array.shape != shape or array.dtype != getattr(mx, dtype):
                    found = "nothing" if array is None else f"{array.dtype} {array.shape}"
                    raise CheckpointError(
                        f"{path}: MLX {version('mlx')} made {found} of {tensor.name!r} ({tensor.type.name}), where "
                        f"{dtype} {shape} was planned; install the MLX version that this release of Plait names"
                    )
                weights[_with_part(parameter, part)] = array
        return weights


def map_weights(header: GgufHeader, config: dict[str, Any]) -> WeightMap:
    """Pairs every tensor of the file with a parameter of mlx-lm's llama class.

    Raises:
        CheckpointError: a tensor is missing, unknown, of another shape than `config` says, or quantised where the
            model keeps plain numbers.
    """
    wanted = _wanted(config)
    found = header.tensors
    if missing := [name for name in wanted if name not in found]:
        raise CheckpointError(f"{header.path}: tensors are missing: {_listed(missing)}; fetch or convert it again")
    if unknown := sorted(found.keys() - wanted.keys()):
        raise CheckpointError(
            f"{header.path}: Plait does not know the tensors {_listed(unknown)}, and to ignore them would change the "
            "model's answers; use the model's safetensors checkpoint"
        )
    for name, (_, shape) in wanted.items():
        if found[name].shape != shape:
            raise CheckpointError(
                f"{header.path}: the tensor {name!r} has the shape {found[name].shape}, but the file's own metadata "
                f"wants {shape}"
            )
        if len(shape) == 1 and found[name].type.bits is not None:
            raise CheckpointError(f"{header.path}: {name!r} is a vector stored as {found[name].type.name}, not F32")
    return WeightMap(header, {parameter: found[name] for name, (parameter, _) in wanted.items()})


def _wanted(config: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """GGUF tensor name to (mlx-lm parameter, shape)."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    attention = {
        "attn_q": ("self_attn.q_proj", queries, hidden),
        "attn_k": ("self_attn.k_proj", keys, hidden),
        "attn_v": ("self_attn.v_proj", keys, hidden),
        "attn_output": ("self_attn.o_proj", hidden, queries),
    }
    mlp = {
        "ffn_gate": ("mlp.gate_proj", inner, hidden),
        "ffn_up": ("mlp.up_proj", inner, hidden),
        "ffn_down": ("mlp.down_proj", hidden, inner),
    }
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("model.embed_tokens.weight", (vocab, hidden)),
        "output_norm.weight": ("model.norm.weight", (hidden,)),
    }
    if not config["tie_word_embeddings"]:
        wanted["output.weight"] = ("lm_head.weight", (vocab, hidden))
    for layer in range(config["num_hidden_layers"]):
        here, there = f"blk.{layer}", f"model.layers.{layer}"
        wanted[f"{here}.attn_norm.weight"] = (f"{there}.input_layernorm.weight", (hidden,))
        wanted[f"{here}.ffn_norm.weight"] = (f"{there}.post_attention_layernorm.weight", (hidden,))
        for linears, bias in ((attention, config["attention_bias"]), (mlp, config["mlp_bias"])):
            for name, (module, rows, columns) in linears.items():
                wanted[f"{here}.{name}.weight"] = (f"{there}.{module}.weight", (rows, columns))
                if bias:
                    wanted[f"{here}.{name}.bias"] = (f"{there}.{module}.bias", (rows,))
    return wanted


def _with_part(name: str, part: str) -> str:
    """`a.weight` and "scales" to `a.scales`; an empty part leaves the name."""
    return f"{name.rpartition('.')[0]}.{part}" if part else name


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
