"""Finds tokens whose experts hang on rounding.

A router takes the k best experts. Where the last one taken and the first one left out are equal but for rounding, two
sound computations take different ones, and everything after that token differs by more than rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.models.switch_layers import SwitchGLU, SwitchMLP

from plait.testing.nudge import ROUNDING, nudged

SIZE = 32 * ROUNDING
"""What the sums of a forward add up to by the last layers."""

TRIES = 6

Choice = npt.NDArray[np.int64]


class ExpertWatch:
    """Writes down which experts a stock model's tokens go to."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen: list[Choice] | None = None
        self._layers = [m for _, m in model.named_modules() if isinstance(m, SwitchGLU | SwitchMLP)]
        for layer in self._layers:
            layer.__class__ = self._watched(type(layer))

    def first_tie(self, tokens: Sequence[int]) -> int | None:
        """Return the first token for which nudged weights choose other experts, or None.

        Args:
            tokens: of one sequence.
        """
        if not self._layers:
            return None
        plain = self._chosen(tokens)
        first = len(tokens)
        for seed in range(TRIES):
            with nudged(self._model, SIZE, seed):
                for one, other in zip(plain, self._chosen(tokens), strict=True):
                    differ = np.flatnonzero((one != other).any(axis=-1))
                    first = min(first, *differ[:1].tolist(), len(tokens))
        return first if first < len(tokens) else None

    def _chosen(self, tokens: Sequence[int]) -> list[Choice]:
        """Return each layer's experts [tokens, k], in ascending order."""
        self._seen = []
        mx.eval(self._model(mx.array([list(tokens)])))
        seen, self._seen = self._seen, None
        return seen

    def _watched(self, stock: Any) -> Any:
        call: Callable[..., mx.array] = stock.__call__

        def watching(module: Any, x: mx.array, indices: mx.array) -> mx.array:
            if self._seen is not None:
                self._seen.append(np.sort(np.array(indices).reshape(-1, indices.shape[-1]), axis=-1))
            return call(module, x, indices)

        return type(stock.__name__, (stock,), {"__call__": watching})
