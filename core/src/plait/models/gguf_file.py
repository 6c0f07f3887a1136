"""A GGUF file as a checkpoint."""

from __future__ import annotations

from pathlib import Path

import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from plait.errors import CheckpointError
from plait.models.checkpoint import Checkpoint
from plait.models.gguf import GgufCheckpoint


class GgufFile(Checkpoint):
    """Reads the header at once; weights and tokenizer when asked."""

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` for a corrupt file, or one that is not supported."""
        self.path = path
        self._file = GgufCheckpoint(path)
        self.config = self._file.config
        self.weight_bytes = self._file.weight_bytes

    def load_weights(self, skeleton: nn.Module) -> nn.Module:
        """See `Checkpoint.load_weights`."""
        nn.quantize(skeleton, class_predicate=lambda path, _: self._file.quantization(path) or False)
        skeleton.eval()
        try:
            skeleton.load_weights(list(self._file.load_weights().items()), strict=True)
        except ValueError as error:
            raise CheckpointError(f"{self.path}: the weights do not fit the file's own metadata: {error}") from error
        return skeleton

    def tokenizer(self) -> TokenizerWrapper:
        """See `Checkpoint.tokenizer`."""
        return TokenizerWrapper(self._file.tokenizer())
