"""A checkpoint: what is known of a model before its weights are read, and how they are read."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS, _get_classes

from plait.errors import CheckpointError
from plait.models.weights import settle_weights
from plait.plugins import Plugins
from plait.spec import ITEMSIZE


class Checkpoint(ABC):
    """One model on disk.

    Attributes:
        path: directory or file.
        config: the configuration, as `config.json` has it.
        weight_bytes: bytes of the weights as they lie on disk, from headers.
    """

    path: Path
    config: dict[str, Any]
    weight_bytes: int

    @abstractmethod
    def load_weights(self, skeleton: nn.Module) -> nn.Module:
        """Give a skeleton its weights, lazily where the format allows it. Raises `CheckpointError`."""

    @abstractmethod
    def tokenizer(self) -> TokenizerWrapper:
        """Return the tokenizer with its chat template. Raises `CheckpointError`."""

    def stored_dtype(self) -> str:
        """Return the dtype that the configuration names for the weights; bfloat16 if it names none."""
        text = self.config.get("text_config") or {}
        for config in (self.config, text):
            name = config.get("dtype") or config.get("torch_dtype")
            if isinstance(name, str) and name.removeprefix("torch.") in ITEMSIZE:
                return name.removeprefix("torch.")
        return "bfloat16"

    def dtype(self, asked: str) -> str:
        """Return the dtype to run in: on CPU, auto is float32, for MLX's 16-bit products are scalar code there."""
        if asked != "auto":
            return asked
        return "float32" if mx.default_device() == mx.cpu else self.stored_dtype()

    def skeleton(self, plugins: Plugins) -> nn.Module:
        """Return the model as mlx-lm builds it, with no weights read and nothing evaluated.

        Raises:
            CheckpointError: mlx-lm and the adapters do not know the model, or the configuration lacks something.
        """
        config = self.config
        if config.get("model_file") is not None:
            raise CheckpointError(
                f"{self.path}: the checkpoint wants its own code ({config['model_file']!r}) to be run. Plait runs no "
                "remote code; choose a checkpoint of an architecture that mlx-lm has."
            )
        if not isinstance(config.get("model_type"), str):
            raise CheckpointError(f"{self.path}: config.json has no model_type, so the architecture is unknown.")
        adapter = plugins.adapter(config)
        try:
            classes: tuple[Any, Any] = adapter.classes(config) if adapter else _get_classes(config)
            model_class, args_class = classes
            model: nn.Module = model_class(args_class.from_dict(config))
        except CheckpointError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError, IndexError) as error:
            kind = f"model_type {config['model_type']!r}, architectures {config.get('architectures')}"
            raise CheckpointError(f"{self.path}: no model can be built from config.json ({kind}): {error}") from error
        return model

    def load(self, skeleton: nn.Module, dtype: str) -> list[str]:
        """Read the weights into a skeleton, in `dtype`; returns lines that say what was converted and why."""
        model = self.load_weights(skeleton)
        assert model is skeleton
        return settle_weights(model, dtype)


def resolve_model(name: str, plugins: Plugins) -> Path:
    """Return the directory or file behind a model's name.

    Args:
        name: a path, the name of a demo, or a Hugging Face repository, which is fetched once.
        plugins: whose demos count.

    Raises:
        CheckpointError: there is nothing of that name, or it cannot be fetched.
    """
    path = Path(name).expanduser()
    if path.exists():
        return path
    demos = plugins.demos()
    if name in demos:
        return demos[name].fetch()
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise CheckpointError(
            f"model {name!r} is not a path, not a Hugging Face repository (owner/name) and not a demo "
            f"({', '.join(demos) or 'none installed'})."
        )
    from huggingface_hub import snapshot_download

    patterns = [p for p in DEFAULT_ALLOW_PATTERNS if not p.endswith(".py")]
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # the hub's client raises many kinds, and each means the same here
        raise CheckpointError(f"{name} cannot be fetched from the Hugging Face hub: {error}") from error


def open_checkpoint(name: str, plugins: Plugins) -> Checkpoint:
    """Return the checkpoint behind a model's name; reads configuration and headers, no weights."""
    from plait.models.directory import DirectoryCheckpoint
    from plait.models.gguf_file import GgufFile

    path = resolve_model(name, plugins)
    return GgufFile(path) if path.is_file() else DirectoryCheckpoint(path)
