"""What a model says by itself: mlx-lm's own code, one request alone, no pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from plait.testing.experts import ExpertWatch
from plait.testing.nudge import ROUNDING, nudged

NOISE_TRIES = 4

Floats = npt.NDArray[np.float64]


def log_softmax(logits: npt.ArrayLike) -> Floats:
    """Return log-probabilities over the last axis, in float64."""
    x = np.asarray(logits, dtype=np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    normed: Floats = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return normed


@attrs.frozen
class Expected:
    """What a request should give.

    Attributes:
        tokens: generated.
        cold: log-probabilities [tokens, vocabulary] by one forward over prompt and output, without a cache.
        single: the same by mlx-lm's single run: the prompt in one forward, then token by token on its own caches.
    """

    tokens: Sequence[int]
    cold: Floats
    single: Floats

    def first(self, count: int) -> Expected:
        """Return the first `count` tokens' part."""
        return Expected(self.tokens[:count], self.cold[:count], self.single[:count])


class Reference:
    """Runs a stock model alone; results are kept by prompt, so a table of runs costs each sequence once."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._experts = ExpertWatch(model)
        self._ties: dict[tuple[int, ...], int | None] = {}
        self._noise: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
        self._greedy: dict[tuple[int, ...], Expected] = {}
        self._forced: dict[tuple[tuple[int, ...], tuple[int, ...]], Expected] = {}

    @classmethod
    def load(cls, path: Path, prepare: Callable[[nn.Module], object] | None = None) -> Reference:
        """Load a checkpoint in the dtype that it has, and let `prepare` change the model."""
        model, _ = load_model(path)
        if prepare is not None:
            prepare(model)
        return cls(model)

    def greedy(self, prompt: Sequence[int], count: int) -> Expected:
        """Return the likeliest continuation of `count` tokens and its log-probabilities."""
        key = tuple(prompt)
        known = self._greedy.get(key)
        if known is None or len(known.tokens) < count:
            tokens, single = self._single_run(prompt, None, count)
            known = self._greedy[key] = Expected(tokens, self.cold(prompt, tokens), single)
        return known.first(count)

    def forced(self, prompt: Sequence[int], output: Sequence[int]) -> Expected:
        """Return the log-probabilities of an output that is given."""
        key = tuple(prompt), tuple(output)
        if key not in self._forced:
            _, single = self._single_run(prompt, output, len(output))
            self._forced[key] = Expected(list(output), self.cold(prompt, output), single)
        return self._forced[key]

    def first_tie(self, prompt: Sequence[int], output: Sequence[int]) -> int | None:
        """Return the first token of prompt and output whose experts hang on rounding, or None."""
        key = (*prompt, *output[:-1])
        if key not in self._ties:
            self._ties[key] = self._experts.first_tie(key)
        return self._ties[key]

    def noise(self, prompt: Sequence[int], output: Sequence[int]) -> float:
        """Return how far one rounding of each weight moves a log-probability of an output that is given."""
        key = tuple(prompt), tuple(output)
        if key not in self._noise:
            plain, moved = self.cold(prompt, output), [0.0]
            for seed in range(NOISE_TRIES):
                with nudged(self._model, ROUNDING, seed):
                    moved.append(float(np.abs(self.cold(prompt, output) - plain).max()))
            self._noise[key] = max(moved)
        return self._noise[key]

    def cold(self, prompt: Sequence[int], output: Sequence[int]) -> Floats:
        """Return the log-probabilities of an output that is given, by one forward without a cache."""
        logits = self._model(mx.array([[*prompt, *output[:-1]]]))[0, len(prompt) - 1 :]
        return log_softmax(np.array(logits.astype(mx.float32)))

    def _single_run(self, prompt: Sequence[int], output: Sequence[int] | None, count: int) -> tuple[list[int], Floats]:
        caches = make_prompt_cache(self._model)
        fed, tokens, rows = list(prompt), list[int](), list[Floats]()
        while len(tokens) < count:
            logits = self._model(mx.array([fed]), cache=caches)[0, -1].astype(mx.float32)
            rows.append(log_softmax(np.array(logits)))
            tokens.append(int(rows[-1].argmax()) if output is None else output[len(tokens)])
            fed = tokens[-1:]
        return tokens, np.stack(rows)


def in_float32(model: nn.Module) -> None:
    """Widen a model's floating-point weights; their values stay as they are."""
    model.update(
        tree_map(lambda w: w.astype(mx.float32) if mx.issubdtype(w.dtype, mx.floating) else w, model.parameters())
    )
