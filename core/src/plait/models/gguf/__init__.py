"""GGUF checkpoints: one file that holds a model's configuration, tokenizer and (mostly quantised) weights."""

from __future__ import annotations

from plait.models.gguf.checkpoint import GgufCheckpoint

__all__ = ["GgufCheckpoint"]
