"""What a plugin may say about models: adapters for configurations, and demo checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs


class ModelAdapter(ABC):
    """Reads configurations that mlx-lm alone would misread (several architectures under one `model_type`)."""

    name: str
    """For reports and errors."""

    @abstractmethod
    def accepts(self, config: dict[str, Any]) -> bool:
        """Say whether this configuration is the adapter's. Must not change it."""

    @abstractmethod
    def classes(self, config: dict[str, Any]) -> tuple[type, type]:
        """Return the model class and its arguments class, as mlx-lm's modules define them.

        Raises:
            CheckpointError: the configuration is the adapter's, but not supported; the text says why.
        """


@attrs.frozen
class Demo:
    """A small checkpoint that a plugin ships.

    Attributes:
        name: what the user types in place of a path.
        description: one line for reports.
        fetch: returns the checkpoint's directory or file, fetching it once.
    """

    name: str
    description: str
    fetch: Callable[[], Path]
