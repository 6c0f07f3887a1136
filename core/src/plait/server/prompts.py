"""The prompts of a completions call: one or several, as texts or as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plait.errors import RequestError
from plait.server.parameters import shorten

FORMS = "wanted a text, a list of texts, a list of token ids, or a list of such lists"


def prompt_list(value: Any) -> list[str | list[int]]:
    """Return the prompts of a call as a list. Raises `RequestError` where it has none or is a mixture."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise RequestError(f"prompt is {shorten(value)}; {FORMS}.", param="prompt")
    if not value:
        raise RequestError(f"prompt is an empty list; {FORMS}.", param="prompt")
    if all(map(_is_id, value)):
        return [value]
    for index, item in enumerate(value):
        if type(item) is not type(value[0]) or not (isinstance(item, str) or _is_ids(item)):
            raise RequestError(f"prompt[{index}] is {shorten(item)}; {FORMS}.", param="prompt")
    return value


def encode_prompts(tokenizer: Any, prompts: Sequence[str | list[int]]) -> list[list[int]]:
    """Return the token ids of prompts."""
    return [list(tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt for prompt in prompts]


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_id, value))
