"""A checkpoint in one GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from plait.models.gguf.config import read_config
from plait.models.gguf.header import read_header
from plait.models.gguf.tokenizer import build_tokenizer
from plait.models.gguf.weights import map_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class GgufCheckpoint:
    """Reads and checks the header at once; weights and tokenizer when asked.

    Attributes:
        path: the file.
        config: Hugging Face's `config.json`, in mlx-lm's words for `model_type` "llama".
        weight_bytes: bytes of the weights as MLX holds them: quantised where the file's tensors are.
    """

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` for a file that is corrupt or that Plait cannot serve faithfully."""
        self.path = path
        self._header = read_header(path)
        self.config: dict[str, Any] = read_config(self._header)
        self._weights = map_weights(self._header, self.config)
        self.weight_bytes = self._weights.nbytes

    def load_weights(self) -> dict[str, mx.array]:
        """All parameters by mlx-lm's names; a quantised module has `.weight` (uint32), `.scales`, `.biases`."""
        return self._weights.load()

    def quantization(self, name: str) -> dict[str, int] | None:
        """`group_size` and `bits` of the module at this path (they differ per module), or None if it is plain.

        `lambda path, module: checkpoint.quantization(path) or False` is the predicate that `nn.quantize` wants.
        """
        return self._weights.quantization(name)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The file's own tokenizer, with special tokens and chat template."""
        return build_tokenizer(self._header.metadata, self.config["max_position_embeddings"])
