"""Sampling parameters: ranges, and the whole text of every refusal."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import plait  # noqa: F401  before MLX
from plait.engine.sampling_params import MAX_LOGPROBS, MAX_SEED, UNSUPPORTED, SamplingParams
from plait.errors import RequestError


def refusal(**values: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**values)
    assert caught.value.status == 400
    return caught.value


def test_defaults_are_vllms() -> None:
    defaults = SamplingParams()
    assert {**attrs.asdict(defaults), "stop_token_ids": list(defaults.stop_token_ids)} == {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "seed": None,
        "max_tokens": 16,
        "stop": [],
        "stop_token_ids": [],
        "ignore_eos": False,
        "logprobs": None,
        "skip_special_tokens": True,
        "include_stop_str_in_output": False,
    }
    assert SamplingParams.of() == SamplingParams()


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0},
        {"temperature": 100},
        {"top_p": 1e-9},
        {"top_k": -1},
        {"top_k": 10**9},
        {"seed": -MAX_SEED - 1},
        {"seed": MAX_SEED},
        {"max_tokens": 1},
        {"max_tokens": None},
        {"logprobs": 0},
        {"logprobs": MAX_LOGPROBS},
        {"stop_token_ids": [1, 2]},
        {"stop": ["a", "\n"]},
    ],
)
def test_what_is_taken(values: dict[str, Any]) -> None:
    params = SamplingParams.of(**values)
    assert {name: getattr(params, name) for name in values} == values


@pytest.mark.parametrize(("stop", "listed"), [("end", ["end"]), (("a", "b"), ["a", "b"]), (None, []), ([], [])])
def test_stop_may_be_one_text_or_several(stop: Any, listed: list[str]) -> None:
    assert SamplingParams(stop=stop).stop == listed


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; wanted at least 0 and at most 100."),
        ({"temperature": 101}, "temperature is 101; wanted at least 0 and at most 100."),
        ({"temperature": float("inf")}, "temperature is inf; wanted at least 0 and at most 100."),
        ({"temperature": float("nan")}, "temperature is nan; wanted a number."),
        ({"temperature": "1"}, "temperature is '1'; wanted a number."),
        ({"temperature": True}, "temperature is True; wanted a number."),
        ({"temperature": None}, "temperature is None; wanted a number."),
        ({"top_p": 0}, "top_p is 0; wanted more than 0 and at most 1."),
        ({"top_p": 1.01}, "top_p is 1.01; wanted more than 0 and at most 1."),
        ({"top_k": -2}, "top_k is -2; wanted at least -1."),
        ({"top_k": 1.0}, "top_k is 1.0; wanted a whole number."),
        ({"top_k": True}, "top_k is True; wanted a whole number."),
        ({"seed": 2**63}, f"seed is {2**63}; wanted from {-(2**63)} to {2**63 - 1}."),
        ({"seed": "7"}, "seed is '7'; wanted a whole number."),
        ({"max_tokens": 0}, "max_tokens is 0; wanted at least 1."),
        ({"max_tokens": 2.5}, "max_tokens is 2.5; wanted a whole number."),
        ({"logprobs": -1}, "logprobs is -1; wanted from 0 to 20."),
        ({"logprobs": 21}, "logprobs is 21; wanted from 0 to 20."),
        ({"stop": ["a", ""]}, "stop holds ''; wanted texts of one character or more."),
        ({"stop": [3]}, "stop holds 3; wanted texts of one character or more."),
        ({"stop_token_ids": ["a"]}, "stop_token_ids holds 'a'; wanted token ids."),
        ({"stop_token_ids": [True]}, "stop_token_ids holds True; wanted token ids."),
    ],
)
def test_refusals(values: dict[str, Any], text: str) -> None:
    error = refusal(**values)
    assert str(error) == text
    assert [error.param] == list(values)


def test_no_stop_tokens_may_be_said_with_none() -> None:
    """As vLLM's own default has it, and as a null in JSON arrives."""
    assert list(SamplingParams.of(stop_token_ids=None).stop_token_ids) == []


@pytest.mark.parametrize("values", [{"stop": 5}, {"stop_token_ids": 1.5}], ids=repr)
def test_lists_that_are_none(values: dict[str, Any]) -> None:
    error = refusal(**values)
    assert [error.param] == list(values) and "5" in str(error)


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_row_129_what_is_not_supported_is_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams.of(**{name: 3})
    assert str(caught.value) == f"{name} is not supported yet (got 3). Leave it out."
    assert caught.value.param == name
    # Saying nothing by it is no request.
    assert SamplingParams.of(**{name: UNSUPPORTED[name]}, top_k=4) == SamplingParams(top_k=4)
    assert SamplingParams.of(**{name: None}) == SamplingParams()


def test_the_list_of_what_is_not_supported() -> None:
    assert sorted(UNSUPPORTED) == [
        "bad_words",
        "best_of",
        "frequency_penalty",
        "logit_bias",
        "min_p",
        "min_tokens",
        "n",
        "presence_penalty",
        "prompt_logprobs",
        "repetition_penalty",
        "structured_outputs",
    ]
    assert not set(UNSUPPORTED) & {field.name for field in attrs.fields(SamplingParams)}


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams.of(temprature=1)
    assert str(caught.value) == (
        "temprature is not a sampling parameter. Known: ignore_eos, include_stop_str_in_output, logprobs, max_tokens, "
        "seed, skip_special_tokens, stop, stop_token_ids, temperature, top_k, top_p."
    )
    assert caught.value.param == "temprature"


@pytest.mark.parametrize(
    ("values", "greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 9e-6}, True),
        ({"temperature": 1e-5}, False),
        ({"top_k": 1}, True),
        ({"top_k": 1, "temperature": 2}, True),
        ({"top_k": 2}, False),
        ({"top_p": 1e-6}, False),
        ({}, False),
    ],
)
def test_greedy(values: dict[str, Any], greedy: bool) -> None:
    assert SamplingParams(**values).greedy is greedy
