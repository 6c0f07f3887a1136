"""A checkpoint directory in the form of Hugging Face or MLX: config.json, safetensors, tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import load_config, load_model, load_tokenizer
from safetensors import SafetensorError, safe_open

from plait.errors import CheckpointError
from plait.models.checkpoint import Checkpoint

BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
    "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
}  # fmt: skip


class DirectoryCheckpoint(Checkpoint):
    """Reads config.json and the safetensors headers at once; weights when asked."""

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` if config.json or a weight file is missing or corrupt."""
        self.path = path
        try:
            self.config = load_config(path)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} has no config.json; is it a checkpoint directory?") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path / 'config.json'} is not valid JSON: {error}") from error
        if not isinstance(self.config, dict):
            raise CheckpointError(f"{path / 'config.json'} holds a {type(self.config).__name__}, wanted an object.")
        files = sorted(path.glob("model*.safetensors"))
        self.weight_bytes = sum(map(_weight_bytes, files))
        self.has_weights = bool(files)

    def load_weights(self, skeleton: nn.Module) -> nn.Module:
        """See `Checkpoint.load_weights`."""
        if not self.has_weights:
            raise CheckpointError(f"{self.path} has no model*.safetensors; only safetensors weights are read.")
        # mlx-lm builds nothing anew: it quantises and fills the skeleton that was planned for.
        build = lambda config: (lambda args: skeleton, _NoArguments)  # noqa: E731
        try:
            model, _ = load_model(self.path, lazy=True, strict=True, get_model_classes=build)
        except (ValueError, KeyError, RuntimeError, TypeError) as error:
            raise CheckpointError(
                f"{self.path}: the weights do not fit config.json, or a file is corrupt: {error}"
            ) from error
        loaded: nn.Module = model
        return loaded

    def tokenizer(self) -> TokenizerWrapper:
        """See `Checkpoint.tokenizer`."""
        try:
            return load_tokenizer(self.path, eos_token_ids=self.config.get("eos_token_id"))
        except Exception as error:  # transformers raises many kinds, and each means the same here
            raise CheckpointError(f"{self.path}: the tokenizer cannot be loaded: {error}") from error


class _NoArguments:
    """Stands for a model's arguments class where the model is there already."""

    @classmethod
    def from_dict(cls, _: object) -> None:
        return None


def _weight_bytes(file: Path) -> int:
    """Return the bytes of a file's tensors, from its header."""
    total = 0
    try:
        with safe_open(file, framework="numpy") as tensors:
            for key in tensors.keys():  # noqa: SIM118 (not a mapping)
                part = tensors.get_slice(key)
                size = 1
                for length in part.get_shape():
                    size *= length
                total += size * BITS[part.get_dtype()] // 8
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a sound safetensors file: {error}. Fetch it again.") from error
    except KeyError as error:
        raise CheckpointError(f"{file}: tensor {key!r} has dtype {error}, which is not supported.") from error
    return total
