"""Which parameters are served, which change nothing, and which are refused; none is ever ignored in silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plait.engine.sampling_params import UNSUPPORTED, SamplingParams
from plait.errors import RequestError
from plait.server.protocol import GenerationBody, StreamOptions

NO_EFFECT = {
    "metadata",
    "parallel_tool_calls",  # without tools there is nothing to call
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
"""Parameters that do not bear on the answer; they are taken."""

NOT_YET: dict[str, tuple[Any, ...]] = {
    **{name: (value,) for name, value in UNSUPPORTED.items()},
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": (),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1.0,),
    "modalities": (["text"],),
    "prediction": (),
    "priority": (0,),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Parameters of OpenAI and vLLM that are not served, with the values that ask for nothing; null and empty always do."""

STREAM_OPTIONS_NO_EFFECT = {"include_obfuscation"}
STREAM_OPTIONS_NOT_YET: dict[str, tuple[Any, ...]] = {"continuous_usage_stats": (False,)}
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
)
"""Fields of a body that are sampling parameters under the same name."""


def refuse_extras(body: GenerationBody) -> None:
    """Refuse by name what a body asks for and nothing here serves. Raises `RequestError`."""
    _refuse(body.model_extra or {}, NO_EFFECT, NOT_YET, "")
    options = body.stream_options or StreamOptions()
    _refuse(options.model_extra or {}, STREAM_OPTIONS_NO_EFFECT, STREAM_OPTIONS_NOT_YET, "stream_options.")


def sampling_params(body: GenerationBody, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
    """Return how a body wants its tokens sampled. Raises `RequestError` for a value out of range."""
    values = {name: getattr(body, name) for name in SAMPLING}
    given = {name: value for name, value in values.items() if value is not None}
    return SamplingParams.of(max_tokens=max_tokens, logprobs=logprobs, **given)


def shorten(value: object) -> str:
    """Return a value as an error shows it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _refuse(
    extras: Mapping[str, Any], no_effect: set[str], not_yet: Mapping[str, tuple[Any, ...]], prefix: str
) -> None:
    for name, value in extras.items():
        if name in no_effect:
            continue
        if name not in not_yet:
            raise RequestError(
                f"{prefix}{name} is not a parameter of this endpoint. Leave it out.",
                param=prefix + name,
                code="unknown_parameter",
            )
        if not _asks_nothing(value, not_yet[name]):
            raise RequestError(
                f"{prefix}{name} is not supported yet (got {shorten(value)}). Leave it out.",
                param=prefix + name,
                code="unsupported_parameter",
            )


def _asks_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    if value is None or value == [] or value == {}:
        return True
    # In Python True equals 1, in JSON it does not.
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)
