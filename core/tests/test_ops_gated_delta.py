"""The gated delta rule's three forms against NumPy in float64, one another, and mlx-lm's loop."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pytest

import plait  # noqa: F401  before MLX
from plait.ops import gated_delta_chunked, gated_delta_sequential, gated_delta_step

import mlx.core as mx  # isort: skip
from mlx_lm.models.gated_delta import gated_delta_ops  # isort: skip

Floats = npt.NDArray[np.float64]
Result = tuple[mx.array, mx.array]
Tokens = tuple[mx.array, mx.array, mx.array, mx.array, mx.array]

LENGTHS = [1, 2, 3, 5, 16, 17, 63, 64, 65, 130]
KINDS = ["head", "channel"]


@attrs.frozen
class Shape:
    """Sizes of one case."""

    batch: int = 1
    length: int = 65
    key_heads: int = 1
    value_heads: int = 2
    key_dim: int = 24
    value_dim: int = 16


@attrs.frozen
class Case:
    """Inputs of `gated_delta_chunked`, in its order."""

    q: mx.array
    k: mx.array
    v: mx.array
    g: mx.array
    beta: mx.array
    state: mx.array

    def tokens(self, start: int, end: int) -> Tokens:
        span = slice(start, end)
        return self.q[:, span], self.k[:, span], self.v[:, span], self.g[:, span], self.beta[:, span]

    def row(self, row: int) -> Case:
        return Case(*(x[row : row + 1] for x in attrs.astuple(self, recurse=False)))

    def all(self) -> tuple[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array]:
        return self.q, self.k, self.v, self.g, self.beta, self.state


def make(shape: Shape, kind: str, strongest: float = -2.0, seed: int = 0) -> Case:
    """Unit q and k, beta in [0, 1], log decay in [strongest, 0], and a state that is not zero."""
    rng = np.random.default_rng(seed)
    s = shape

    def unit(*size: int) -> Floats:
        x = rng.standard_normal(size)
        return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))

    tokens, heads = (s.batch, s.length), (s.value_heads,)
    arrays = (
        unit(*tokens, s.key_heads, s.key_dim),
        unit(*tokens, s.key_heads, s.key_dim),
        rng.standard_normal((*tokens, *heads, s.value_dim)),
        strongest * rng.random((*tokens, *heads) if kind == "head" else (*tokens, *heads, s.key_dim)),
        rng.random((*tokens, *heads)),
        rng.standard_normal((s.batch, *heads, s.value_dim, s.key_dim)),
    )
    return Case(*(mx.array(x.astype(np.float32)) for x in arrays))


def array64(x: mx.array) -> Floats:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def truth(case: Case) -> tuple[Floats, Floats]:
    """The definition, token by token in float64."""
    q, k, v, g, beta, state = (array64(x) for x in case.all())
    q, k = (np.repeat(x, v.shape[2] // x.shape[2], axis=2) for x in (q, k))
    ys = []
    for t in range(v.shape[1]):
        decay = np.exp(g[:, t])
        state = state * (decay[..., None, None] if g.ndim == 3 else decay[..., None, :])
        delta = beta[:, t, :, None] * (v[:, t] - np.einsum("bhvk,bhk->bhv", state, k[:, t]))
        state = state + np.einsum("bhv,bhk->bhvk", delta, k[:, t])
        ys.append(np.einsum("bhvk,bhk->bhv", state, q[:, t]))
    return np.stack(ys, axis=1), state


def by_steps(case: Case) -> Result:
    state, ys = case.state, []
    for t in range(case.v.shape[1]):
        q, k, v, g, beta = (x[:, 0] for x in case.tokens(t, t + 1))
        y, state = gated_delta_step(q, k, v, g, beta, state)
        ys.append(y)
    return mx.stack(ys, axis=1), state


def in_chunks_of_64(case: Case) -> Result:
    return gated_delta_chunked(*case.all(), chunk_size=64)


def mlx_lm_loop(case: Case) -> Result:
    """mlx-lm takes the decay itself where ours take its logarithm."""
    y, state = gated_delta_ops(case.q, case.k, case.v, mx.exp(case.g), case.beta, case.state)
    return y, state


FORMS: dict[str, Any] = {
    "chunked": lambda case: gated_delta_chunked(*case.all()),
    "chunks of 64": in_chunks_of_64,
    "sequential": lambda case: gated_delta_sequential(*case.all()),
    "steps": by_steps,
}


def error(got: mx.array, want: Floats) -> float:
    """Largest error relative to the largest entry; anything that is not finite counts as infinite."""
    have = array64(got)
    assert have.shape == want.shape
    if not np.isfinite(have).all():
        return float("inf")
    return float(np.abs(have - want).max() / max(np.abs(want).max(), 1e-30))


def check(case: Case, others: dict[str, Any] | None = None) -> None:
    """Every form within 1e-5, and the chunked ones no worse than the loop by more than rounding luck."""
    want = truth(case)
    forms = FORMS | (others or {})
    found = {name: max(error(x, w) for x, w in zip(form(case), want, strict=True)) for name, form in forms.items()}
    assert max(found.values()) < 1e-5, found
    assert max(found["chunked"], found["chunks of 64"]) < max(4 * found["sequential"], 1.5e-6), found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(kind: str, length: int) -> None:
    case = make(Shape(batch=2, length=length, key_heads=2, value_heads=4), kind, seed=length)
    check(case, {"mlx-lm": mlx_lm_loop})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("key_heads", "value_heads"), [(1, 1), (1, 3), (2, 2), (2, 6)])
@pytest.mark.parametrize(("key_dim", "value_dim"), [(24, 48), (48, 24), (100, 32), (1, 5), (5, 1)])
def test_heads_and_sizes(kind: str, key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> None:
    check(make(Shape(1, 37, key_heads, value_heads, key_dim, value_dim), kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [0.0, -5.0, -50.0, -1e4])
@pytest.mark.parametrize("beta", [None, 0.0, 1.0])
def test_constant_decay_and_rate(kind: str, decay: float, beta: float | None) -> None:
    case = make(Shape(length=70), kind)
    case = attrs.evolve(case, g=mx.full(case.g.shape, decay))
    check(case if beta is None else attrs.evolve(case, beta=mx.full(case.beta.shape, beta)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", [0.999, 1.0])
@pytest.mark.parametrize("strongest", [0.0, -0.01, -5.0])
def test_identical_keys(kind: str, beta: float, strongest: float) -> None:
    """The inverse has large powers that cancel; a sum of powers loses every digit here."""
    case = make(Shape(length=130, key_dim=48), kind, strongest)
    k = mx.broadcast_to(case.k[:, :1], case.k.shape)
    check(attrs.evolve(case, k=k, beta=mx.full(case.beta.shape, beta)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strongest", [-5.0, -50.0])
def test_random_strong_decay(kind: str, strongest: float) -> None:
    check(make(Shape(batch=2, length=130, key_dim=48), kind, strongest), {"mlx-lm": mlx_lm_loop})


@pytest.mark.parametrize("kind", KINDS)
def test_weak_decay_after_a_wall(kind: str) -> None:
    """A difference of cumulative sums is off by the rounding of the wall (-3000), a thousand times what is allowed."""
    case = make(Shape(length=96), kind, strongest=-0.01)
    wall = mx.array(np.where(np.arange(96) % 24 == 3, -3000.0, 0.0).astype(np.float32))
    check(attrs.evolve(case, g=case.g + wall.reshape(1, 96, *[1] * (case.g.ndim - 2))))


def test_channels_of_unlike_decay() -> None:
    """Some channels keep everything while others forget at once: no one reference point serves both."""
    case = make(Shape(length=130, key_dim=24), "channel")
    scale = mx.array(np.geomspace(1e-4, 60.0, 24).astype(np.float32))
    check(attrs.evolve(case, g=mx.broadcast_to(-scale, case.g.shape)))


@pytest.mark.parametrize("kind", KINDS)
def test_rates_up_to_two(kind: str) -> None:
    """Models with negative eigenvalues use beta in [0, 2]."""
    case = make(Shape(length=130), kind)
    check(attrs.evolve(case, beta=2 * case.beta))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [gated_delta_chunked, gated_delta_sequential])
def test_split_anywhere_equals_whole(kind: str, form: Any) -> None:
    case = make(Shape(length=70, key_heads=1, value_heads=2), kind)
    whole = [array64(x) for x in form(*case.all())]
    for split in (1, 2, 31, 32, 33, 69):
        first, state = form(*case.tokens(0, split), case.state)
        second, state = form(*case.tokens(split, 70), state)
        assert error(mx.concatenate([first, second], axis=1), whole[0]) < 2e-6, split
        assert error(state, whole[1]) < 2e-6, split


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 4, 16, 128])
def test_chunk_sizes(kind: str, size: int) -> None:
    case = make(Shape(length=67), kind)
    got = gated_delta_chunked(*case.all(), chunk_size=size)
    assert max(error(x, want) for x, want in zip(got, truth(case), strict=True)) < 1.5e-6


@pytest.mark.parametrize("kind", KINDS)
def test_filling_leaves_the_state_alone(kind: str) -> None:
    """Nothing is written by 33 tokens of beta 0 and no decay, filled up to 64: not one bit of the state changes."""
    case = make(Shape(length=33), kind)
    case = attrs.evolve(case, g=mx.zeros_like(case.g), beta=mx.zeros_like(case.beta))
    _, state = gated_delta_chunked(*case.all(), chunk_size=64)
    assert mx.array_equal(state, case.state)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_inputs_keep_a_float32_state(kind: str) -> None:
    case = make(Shape(length=40), kind)
    q, k, v, g, beta = (x.astype(mx.bfloat16) for x in case.tokens(0, 40))
    half = Case(q, k, v, g, beta, case.state)
    want = truth(half)
    for name in ("chunked", "sequential", "steps"):
        y, state = FORMS[name](half)
        assert (y.dtype, state.dtype) == (mx.bfloat16, mx.float32)
        assert error(y, want[0]) < 4e-3, name
        assert error(state, want[1]) < 2e-6, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_strided_state_is_read_where_it_lies(kind: str) -> None:
    case = make(Shape(batch=3, length=1, key_heads=2, value_heads=4), kind)
    around = mx.stack([mx.full(case.state.shape, float("nan")), case.state, mx.full(case.state.shape, 7.0)], axis=1)
    backwards = mx.contiguous(case.state.swapaxes(-1, -2)).swapaxes(-1, -2)
    want = truth(case)
    for state in (around[:, 1], backwards):
        strided = attrs.evolve(case, state=state)
        for name in ("chunked", "sequential", "steps"):
            assert max(error(x, w) for x, w in zip(FORMS[name](strided), want, strict=True)) < 1.5e-6, name


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_do_not_meet(kind: str) -> None:
    case = make(Shape(batch=3, length=50), kind)
    spoiled = attrs.evolve(case, v=mx.concatenate([case.v[:1], case.v[1:2] * float("nan"), case.v[2:]]))
    y, state = gated_delta_chunked(*spoiled.all())
    for row in (0, 2):
        want = truth(case.row(row))
        assert max(error(y[row : row + 1], want[0]), error(state[row : row + 1], want[1])) < 1.5e-6
    assert mx.isnan(y[1]).all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    case = make(Shape(length=4, key_heads=2, value_heads=4), "head")
    q, k, v, g, beta, state = case.all()
    for bad in (
        (q, k[..., :5], v, g, beta, state),
        (q[:, :, :1], k[:, :, :1], v[:, :, :3], g, beta, state),
        (q, k, v, g[..., None], beta, state),
        (q, k, v, g, beta, state.swapaxes(-1, -2)),
        (q, k, v, g, beta[:, :3], state),
        (*case.tokens(0, 0), state),
    ):
        with pytest.raises(ValueError, match=r"gated_delta_chunked: q .* do not fit"):
            gated_delta_chunked(*bad)
    with pytest.raises(ValueError, match=r"gated_delta_step: q \(1, 4, 2, 24\)"):
        gated_delta_step(q, k, v, g, beta, state)
    with pytest.raises(ValueError, match="chunk_size 48 is not a power of two"):
        gated_delta_chunked(q, k, v, g, beta, state, chunk_size=48)
