"""From logits to tokens, each row by its own parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import mlx.core as mx
import numpy as np

from plait.engine.sampling_params import SamplingParams

MASK = 2**64 - 1


@attrs.frozen
class Draw:
    """What one row needs to be sampled.

    Attributes:
        params: of the request.
        seed: of the request; the engine drew it if the user gave none.
        index: number of the token in the output, from 0.
    """

    params: SamplingParams
    seed: int
    index: int

    def key(self) -> mx.array:
        """Return the random key of this token: the same after preemption, whatever shares the batch."""
        # The golden ratio's bits keep the keys of neighbouring seeds and indices apart (Weyl sequence).
        key: mx.array = mx.random.key((self.seed * 0x9E3779B97F4A7C15 + self.index * 0xD1B54A32D192ED03) & MASK)
        return key


@attrs.frozen
class Sampled:
    """Lazy results of sampling; evaluate before reading.

    Attributes:
        tokens: int32 [rows].
        logprobs: log-probability of each token, float32 [rows], or None if no row wants it.
        top_ids: ids of the likeliest tokens, likeliest first, int32 [rows, n], or None.
        top_logprobs: their log-probabilities, float32 [rows, n], or None.
        ranks: number of tokens as likely as the sampled one or likelier, int32 [rows], or None.
    """

    tokens: mx.array
    logprobs: mx.array | None = None
    top_ids: mx.array | None = None
    top_logprobs: mx.array | None = None
    ranks: mx.array | None = None

    def arrays(self) -> list[mx.array]:
        """Return every array, for evaluation."""
        return [a for a in (self.tokens, self.logprobs, self.top_ids, self.top_logprobs, self.ranks) if a is not None]


def sample(logits: mx.array, draws: Sequence[Draw]) -> Sampled:
    """Choose a token per row.

    Args:
        logits: float32 [rows, vocabulary].
        draws: one per row.

    Returns:
        Tokens, and log-probabilities of the unchanged distribution (temperature 1, no cut) where a row wants them.
    """
    tokens = mx.argmax(logits, axis=-1)
    random = [row for row, draw in enumerate(draws) if not draw.params.greedy]
    if random:
        chosen = _sample_random(
            logits if len(random) == len(draws) else logits[mx.array(random)], [draws[r] for r in random]
        )
        if len(random) == len(draws):
            tokens = chosen
        else:
            place = np.zeros(len(draws), dtype=np.int32)
            place[random] = np.arange(len(random), dtype=np.int32)
            mask = np.zeros(len(draws), dtype=bool)
            mask[random] = True
            tokens = mx.where(mx.array(mask), chosen[mx.array(place)], tokens)
    tokens = tokens.astype(mx.int32)
    wanted = [draw.params.logprobs for draw in draws if draw.params.logprobs is not None]
    if not wanted:
        return Sampled(tokens)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    own = mx.take_along_axis(logprobs, tokens[:, None], axis=-1)
    ranks = (logprobs >= own).sum(-1)
    count = min(max(wanted), logits.shape[-1])
    if not count:
        return Sampled(tokens, own[:, 0], ranks=ranks)
    ids = _likeliest(logprobs, count)
    return Sampled(tokens, own[:, 0], ids.astype(mx.int32), mx.take_along_axis(logprobs, ids, axis=-1), ranks)


def _likeliest(values: mx.array, count: int) -> mx.array:
    """Return the ids of the `count` largest values of each row, largest first."""
    ids = mx.argpartition(-values, kth=count - 1, axis=-1)[..., :count]
    order = mx.argsort(-mx.take_along_axis(values, ids, axis=-1), axis=-1)
    return mx.take_along_axis(ids, order, axis=-1)


def _sample_random(logits: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Sample rows by the Gumbel-max trick, each with its own key."""
    vocabulary = logits.shape[-1]
    temperature = mx.array([draw.params.temperature for draw in draws], dtype=mx.float32)[:, None]
    scaled = logits / temperature
    if any(0 < d.params.top_k < vocabulary or d.params.top_p < 1 for d in draws):
        scaled = _cut(scaled, draws)
    noise = mx.stack([mx.random.gumbel((vocabulary,), key=draw.key()) for draw in draws])
    return mx.argmax(scaled + noise, axis=-1)


def _cut(scaled: mx.array, draws: Sequence[Draw]) -> mx.array:
    """Set what top-k and top-p leave out to -inf; ties with the last one kept stay."""
    vocabulary = scaled.shape[-1]
    top_k = [d.params.top_k if 0 < d.params.top_k < vocabulary else vocabulary for d in draws]
    ordered = -mx.sort(-scaled, axis=-1)
    last = mx.take_along_axis(ordered, mx.array(top_k)[:, None] - 1, axis=-1)
    if any(d.params.top_p < 1 for d in draws):
        # top-p applies to what top-k has left.
        kept = mx.where(ordered >= last, ordered, -mx.inf)
        before = mx.cumsum(mx.softmax(kept, axis=-1), axis=-1, inclusive=False)
        # A sum of many probabilities passes 1 before its end: a row without top-p is not compared with it.
        limits = [d.params.top_p if d.params.top_p < 1 else math.inf for d in draws]
        top_p = mx.array(limits, dtype=mx.float32)[:, None]
        count = mx.maximum((before < top_p).sum(-1, keepdims=True), 1)
        last = mx.maximum(last, mx.take_along_axis(ordered, count - 1, axis=-1))
    return mx.where(scaled >= last, scaled, -mx.inf)
