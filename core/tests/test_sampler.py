"""From logits to tokens, against distributions that NumPy computes; all seeds are fixed, so nothing here is chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import plait  # noqa: F401  before MLX
from plait.engine.sampler import Draw, Sampled, sample
from plait.engine.sampling_params import SamplingParams

import mlx.core as mx  # isort: skip

Floats = npt.NDArray[np.float64]
LOGITS = [2.0, 0.5, 1.5, -1.0, 0.0, 1.0, -3.0, 1.9]
DRAWS = 4000


def draw(seed: int = 0, index: int = 0, **params: Any) -> Draw:
    return Draw(SamplingParams(**params), seed, index)


def tokens_of(sampled: Sampled) -> list[int]:
    assert sampled.tokens.dtype == mx.int32
    found: list[int] = sampled.tokens.tolist()
    return found


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def expected(logits: list[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Floats:
    """Temperature, then the k likeliest, then of these the likeliest that add up to p."""
    p = softmax(np.array(logits) / temperature)
    order = np.argsort(-p)
    kept = order[:top_k] if top_k > 0 else order
    weights = p[kept] / p[kept].sum()
    before = np.cumsum(weights) - weights
    kept = kept[before < top_p]
    result = np.zeros_like(p)
    result[kept] = p[kept] / p[kept].sum()
    return result


def check_frequencies(tokens: list[int], wanted: Floats) -> None:
    """Nothing outside the support, and a chi-square that a right sampler exceeds once in ten thousand times or so."""
    counts = np.bincount(tokens, minlength=len(wanted))
    assert counts[wanted == 0].sum() == 0, f"tokens that were cut: {counts}"
    live = wanted > 0
    mean = wanted[live] * len(tokens)
    chi = ((counts[live] - mean) ** 2 / mean).sum()
    freedom = max(live.sum() - 1, 1)
    assert chi < freedom + 4 * np.sqrt(2 * freedom) + 6, f"chi-square {chi:.1f}: {counts} for {mean.round(1)}"


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.5},
    {"top_k": 3},
    {"top_k": 7, "temperature": 3.0},
    {"top_p": 0.6},
    {"top_p": 0.95},
    {"top_p": 0.999999},
    {"top_k": 4, "top_p": 0.7},
    {"top_k": 5, "top_p": 0.5, "temperature": 1.7},
]


@pytest.mark.parametrize("params", CASES, ids=repr)
def test_distribution_over_seeds(params: dict[str, Any]) -> None:
    logits = mx.broadcast_to(mx.array(LOGITS), (DRAWS, len(LOGITS)))
    tokens = tokens_of(sample(logits, [draw(seed, **params) for seed in range(DRAWS)]))
    check_frequencies(tokens, expected(LOGITS, **params))


@pytest.mark.parametrize("seed", [0, 1, -5, 2**63 - 1])
def test_distribution_over_the_tokens_of_one_request(seed: int) -> None:
    logits = mx.broadcast_to(mx.array(LOGITS), (DRAWS, len(LOGITS)))
    tokens = tokens_of(sample(logits, [draw(seed, index) for index in range(DRAWS)]))
    check_frequencies(tokens, expected(LOGITS))
    pairs = [8 * a + b for a, b in zip(tokens[::2], tokens[1::2], strict=True)]
    check_frequencies(pairs, np.outer(expected(LOGITS), expected(LOGITS)).reshape(-1))


def test_rows_of_one_step_do_not_depend_on_one_another() -> None:
    """Neighbouring seeds at the same index, and neighbouring indices at the same seed, have keys far apart."""
    logits = mx.broadcast_to(mx.array(LOGITS), (DRAWS, len(LOGITS)))
    for places in ([(seed, 3) for seed in range(DRAWS)], [(seed % 2, seed // 2) for seed in range(DRAWS)]):
        tokens = tokens_of(sample(logits, [draw(seed, index) for seed, index in places]))
        pairs = [8 * a + b for a, b in zip(tokens[::2], tokens[1::2], strict=True)]
        check_frequencies(pairs, np.outer(expected(LOGITS), expected(LOGITS)).reshape(-1))
    keys = {tuple(draw(seed, index).key().tolist()) for seed in range(-20, 20) for index in range(50)}
    assert len(keys) == 40 * 50


# Greedy


@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_k": 1}, {"top_k": 1, "temperature": 5.0}], ids=repr)
def test_greedy_takes_the_likeliest(params: dict[str, Any]) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 300)).astype(np.float32)
    tokens = tokens_of(sample(mx.array(logits), [draw(seed, **params) for seed in range(50)]))
    assert tokens == logits.argmax(-1).tolist()


def test_of_equal_logits_greedy_takes_the_first() -> None:
    assert tokens_of(sample(mx.array([[1.0, 3.0, 3.0, 2.0]]), [draw(temperature=0)])) == [1]
    assert tokens_of(sample(mx.array([[1.0, 3.0, 3.0, 2.0]]), [draw(7, top_k=1)])) == [1]


@pytest.mark.parametrize("params", [{"top_p": 1e-9}, {"top_p": 1e-4, "temperature": 10.0}, {"temperature": 1e-5}])
def test_what_leaves_one_token_takes_it(params: dict[str, Any]) -> None:
    logits = np.random.default_rng(1).normal(size=(60, 200)).astype(np.float32)
    tokens = tokens_of(sample(mx.array(logits), [draw(seed, **params) for seed in range(60)]))
    assert tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize("top_k", [0, -1, 8, 9, 10**6])
def test_a_top_k_that_cuts_nothing(top_k: int) -> None:
    logits = mx.broadcast_to(mx.array(LOGITS), (200, len(LOGITS)))
    free = tokens_of(sample(logits, [draw(seed) for seed in range(200)]))
    assert tokens_of(sample(logits, [draw(seed, top_k=top_k) for seed in range(200)])) == free
    # The same where another row makes the batch sort.
    mixed = sample(logits, [draw(seed, top_k=top_k if seed else 2) for seed in range(200)])
    assert tokens_of(mixed)[1:] == free[1:]


def test_ties_with_the_last_token_kept_stay() -> None:
    logits = mx.broadcast_to(mx.array([2.0, 1.0, 1.0, 1.0, 0.0]), (DRAWS, 5))
    tokens = tokens_of(sample(logits, [draw(seed, top_k=2) for seed in range(DRAWS)]))
    weights = np.exp([2.0, 1, 1, 1])
    check_frequencies(tokens, np.append(weights / weights.sum(), 0.0))


def test_logits_of_minus_infinity_are_never_taken() -> None:
    logits = mx.broadcast_to(mx.array([-mx.inf, 0.0, -mx.inf, 1.0]), (500, 4))
    for params in ({}, {"top_p": 0.99}, {"top_k": 3}):
        tokens = tokens_of(sample(logits, [draw(seed, **params) for seed in range(500)]))
        assert set(tokens) == {1, 3}


# Whatever shares the batch


def test_row_127_each_row_is_sampled_by_its_own_parameters() -> None:
    """{greedy, top_k=1, seed 1, seed 1, seed 2, no seed, no seed}, over 40 tokens of the same logits."""
    rng = np.random.default_rng(2)
    rows: list[list[int]] = []
    for index in range(40):
        logits = mx.array(rng.normal(size=(1, 64)).astype(np.float32))
        draws = [
            draw(5, index, temperature=0),
            draw(6, index, top_k=1),
            draw(1, index),
            draw(1, index),
            draw(2, index),
            draw(7361, index),  # the engine draws one for each request that brings none
            draw(9923, index),
        ]
        rows.append(tokens_of(sample(mx.repeat(logits, 7, axis=0), draws)))
        assert rows[-1][0] == rows[-1][1] == int(mx.argmax(logits).item())
        for place, one in enumerate(draws):
            assert tokens_of(sample(logits, [one])) == [rows[-1][place]], "alone as in the batch"
    columns = list(zip(*rows, strict=True))
    assert columns[2] == columns[3]
    assert len({columns[2], columns[4], columns[5], columns[6], columns[0]}) == 5


def test_a_row_is_the_same_in_any_batch() -> None:
    rng = np.random.default_rng(3)
    logits = mx.array(rng.normal(size=(12, 500)).astype(np.float32) * 3)
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0},
        {"top_k": 5},
        {"top_p": 0.4},
        {"temperature": 1.9, "logprobs": 3},
        {"top_k": 40, "top_p": 0.9},
    ]
    draws = [draw(seed, 100 + seed, **kinds[seed % 6]) for seed in range(12)]
    together = tokens_of(sample(logits, draws))
    alone = [tokens_of(sample(logits[row : row + 1], [draws[row]]))[0] for row in range(12)]
    assert together == alone
    for _ in range(10):
        some = rng.permutation(12)[: rng.integers(1, 12)].tolist()
        assert tokens_of(sample(logits[mx.array(some)], [draws[row] for row in some])) == [alone[row] for row in some]


def test_a_row_without_top_p_is_not_cut_because_another_row_has_one() -> None:
    """Over many tokens of like probability a float32 sum reaches 1 before the last of them.

    The row's own noise favours one token, and that token is the unlikeliest by a hair.
    """
    vocabulary = 248_320
    for seed in range(3):
        one = draw(seed, temperature=1.0)
        noise = mx.random.gumbel((vocabulary,), key=one.key())
        chosen = int(mx.argmax(noise).item())
        logits = mx.zeros((vocabulary,))
        logits[chosen] = -1e-3
        assert tokens_of(sample(logits[None], [one])) == [chosen]
        both = sample(mx.stack([logits, logits]), [one, draw(9, top_p=0.5)])
        assert tokens_of(both)[0] == chosen


def test_the_same_token_after_preemption() -> None:
    """The key hangs on seed and place only."""
    logits = mx.array(np.random.default_rng(4).normal(size=(1, 100)).astype(np.float32))
    first = [tokens_of(sample(logits, [draw(11, index)]))[0] for index in range(30)]
    again = [tokens_of(sample(logits, [draw(11, index)]))[0] for index in reversed(range(30))]
    assert first == again[::-1] and len(set(first)) > 10


# Log-probabilities


def test_logprobs_are_of_the_unchanged_distribution() -> None:
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(9, 50)).astype(np.float32) * 2
    counts = [None, 0, 1, 5, 20, 3, None, 2, 5]
    draws = [
        draw(seed, temperature=[0, 0.3, 4.0][seed % 3], top_k=[0, 4][seed % 2], logprobs=count)
        for seed, count in enumerate(counts)
    ]
    sampled = sample(mx.array(logits), draws)
    wanted = logits - np.log(np.exp(logits.astype(np.float64)).sum(-1, keepdims=True))
    tokens = np.array(tokens_of(sampled))
    rows = np.arange(9)
    assert sampled.logprobs is not None and sampled.ranks is not None
    assert sampled.top_ids is not None and sampled.top_logprobs is not None
    np.testing.assert_allclose(np.array(sampled.logprobs), wanted[rows, tokens], atol=1e-5)
    assert sampled.ranks.tolist() == (1 + (logits > logits[rows, tokens][:, None]).sum(-1)).tolist()
    order = np.argsort(-logits, axis=-1)[:, :20]
    assert sampled.top_ids.tolist() == order.tolist()
    np.testing.assert_allclose(np.array(sampled.top_logprobs), np.take_along_axis(wanted, order, -1), atol=1e-5)
    assert [array.shape for array in sampled.arrays()] == [(9,), (9,), (9, 20), (9, 20), (9,)]
    assert all(rank == 1 for rank, one in zip(sampled.ranks.tolist(), draws, strict=True) if one.params.greedy)


def test_nobody_asks_for_logprobs() -> None:
    sampled = sample(mx.array([LOGITS]), [draw()])
    assert [array.size for array in sampled.arrays()] == [1]
    assert sampled.logprobs is sampled.top_ids is sampled.top_logprobs is sampled.ranks is None


def test_only_the_tokens_own_logprob() -> None:
    sampled = sample(mx.array([LOGITS, LOGITS]), [draw(1, logprobs=0), draw(2)])
    assert sampled.top_ids is None and sampled.top_logprobs is None
    assert sampled.logprobs is not None and sampled.logprobs.shape == (2,)


def test_more_logprobs_than_tokens() -> None:
    sampled = sample(mx.array([LOGITS]), [draw(1, logprobs=20)])
    assert sampled.top_ids is not None
    assert sampled.top_ids.tolist() == [np.argsort(-np.array(LOGITS)).tolist()]


def test_logprobs_do_not_change_the_token() -> None:
    logits = mx.broadcast_to(mx.array(LOGITS), (100, len(LOGITS)))
    plain = tokens_of(sample(logits, [draw(seed) for seed in range(100)]))
    assert tokens_of(sample(logits, [draw(seed, logprobs=2) for seed in range(100)])) == plain
