"""How one request is sampled; the names are vLLM's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from plait.errors import RequestError

UNSUPPORTED = {
    "n": 1,
    "best_of": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_p": 0.0,
    "logit_bias": None,
    "prompt_logprobs": None,
    "min_tokens": 0,
    "bad_words": None,
    "structured_outputs": None,
}
"""Parameters of vLLM that are not supported yet, with the value that asks for nothing."""

MAX_LOGPROBS = 20
GREEDY_BELOW = 1e-5  # a temperature that leaves nothing to chance in float32
MAX_SEED = 2**63 - 1


def _listed(value: Any) -> Any:
    """Return a list of what was given: nothing, one text, or several items; anything else stays, to be refused."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else value


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How one request is sampled.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_k: only the k likeliest tokens are sampled; 0 or -1 is no limit.
        top_p: only the likeliest tokens whose probabilities add up to this are sampled.
        seed: makes the request's own randomness repeatable; None draws one.
        max_tokens: tokens to generate; None generates up to what fits.
        stop: texts that end the output; they are not part of it.
        stop_token_ids: tokens that end the output.
        ignore_eos: go on after the end-of-sequence token.
        logprobs: give the log-probability of each token, and of this many likeliest (0 to 20); None gives none.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the stop text.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: list[str] = attrs.field(factory=list, converter=_listed)
    stop_token_ids: Sequence[int] = attrs.field(factory=list, converter=_listed)
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    @classmethod
    def of(cls, **values: Any) -> SamplingParams:
        """Build from names and values, refusing by name what is unknown or not supported yet.

        Raises:
            RequestError: an unknown name, or a value that asks for something not supported.
        """
        known = {field.name for field in attrs.fields(cls)}
        for name in list(values):
            if name in UNSUPPORTED:
                value = values.pop(name)
                if value != UNSUPPORTED[name] and value is not None and value != {} and value != []:
                    raise RequestError(f"{name} is not supported yet (got {value!r}). Leave it out.", param=name)
            elif name not in known:
                raise RequestError(
                    f"{name} is not a sampling parameter. Known: {', '.join(sorted(known))}.", param=name
                )
        return cls(**values)

    def __attrs_post_init__(self) -> None:
        """Refuse values out of range. Raises `RequestError` with the name, the value and the range."""
        _check_number(self, "temperature", 0.0, 100.0)
        _check_number(self, "top_p", 0.0, 1.0, open_below=True)
        _check_int(self, "top_k", -1, None)
        _check_int(self, "seed", -MAX_SEED - 1, MAX_SEED, optional=True)
        _check_int(self, "max_tokens", 1, None, optional=True)
        _check_int(self, "logprobs", 0, MAX_LOGPROBS, optional=True)
        for name in ("stop", "stop_token_ids"):
            if not isinstance(getattr(self, name), list):
                raise RequestError(f"{name} is {getattr(self, name)!r}; wanted a list.", param=name)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise RequestError(f"stop holds {text!r}; wanted texts of one character or more.", param="stop")
        for token in self.stop_token_ids:
            if isinstance(token, bool) or not isinstance(token, int):
                raise RequestError(f"stop_token_ids holds {token!r}; wanted token ids.", param="stop_token_ids")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1


def _check_number(params: SamplingParams, name: str, low: float, high: float, *, open_below: bool = False) -> None:
    value = getattr(params, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise RequestError(f"{name} is {value!r}; wanted a number.", param=name)
    if not low <= value <= high or (open_below and value == low):
        raise RequestError(
            f"{name} is {value}; wanted {'more than' if open_below else 'at least'} {low:g} and at most {high:g}.",
            param=name,
        )


def _check_int(params: SamplingParams, name: str, low: int, high: int | None, *, optional: bool = False) -> None:
    value = getattr(params, name)
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} is {value!r}; wanted a whole number.", param=name)
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name} is {value}; wanted {limits}.", param=name)
