"""The messages of a chat, and the prompt that the model's chat template makes of them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from plait.errors import RequestError
from plait.server.parameters import shorten

ROLES = ("system", "developer", "user", "assistant", "tool")
FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"}
RESERVED = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
"""Names of the function that renders templates; a template's own variables must not take them."""


def chat_prompt(tokenizer: Any, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> list[int]:
    """Return the token ids of a chat, up to where the assistant's answer begins.

    Args:
        tokenizer: as mlx-lm wraps it.
        messages: what `template_messages` returned.
        variables: passed on to the template.

    Raises:
        RequestError: there is no template, or it refuses the messages or the variables.
    """
    if not tokenizer.has_chat_template:
        raise RequestError(
            "The model has no chat template, so messages cannot be put into a prompt. Use /v1/completions, or add "
            "chat_template.jinja to the checkpoint.",
            param="messages",
            code="no_chat_template",
        )
    if taken := sorted(RESERVED & set(variables)):
        raise RequestError(f"chat_template_kwargs cannot set {', '.join(taken)}.", param="chat_template_kwargs")
    # Templates that do not know OpenAI's younger name for the system's role would drop the message or fail.
    if "developer" not in str(tokenizer.chat_template):
        messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
    try:
        tokens = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=True, **variables)
    except Exception as error:  # templates are programs of their own: they raise what they like
        raise RequestError(f"The chat template refused the messages: {error}", param="messages") from error
    return list(tokens)


def template_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Check messages and return them as templates want them: text parts joined, arguments of calls as objects.

    Raises:
        RequestError: there is none, or one is not of the form, or has a part that is no text.
    """
    if not messages:
        raise RequestError("messages is empty; send at least one message.", param="messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RequestError(f"{place} is {shorten(message)}; wanted an object.", param=place)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(f"{place}.role is {shorten(role)}; wanted one of {', '.join(ROLES)}.", param=f"{place}.role")
    given = {name: value for name, value in message.items() if value is not None}
    for name in given.keys() - FIELDS:
        raise RequestError(f"{place}.{name} is not supported. Leave it out.", param=f"{place}.{name}")
    for name in given.keys() - {"content", "tool_calls"}:
        if not isinstance(given[name], str):
            raise RequestError(f"{place}.{name} is {shorten(given[name])}; wanted a text.", param=f"{place}.{name}")
    if "tool_calls" in given:
        given["tool_calls"] = _tool_calls(given["tool_calls"], f"{place}.tool_calls")
    if "content" not in given and not (role == "assistant" and given.get("tool_calls")):
        raise RequestError(f"{place}.content is missing.", param=f"{place}.content")
    given["content"] = _text(given.get("content", ""), f"{place}.content")
    return given


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{place} is {shorten(content)}; wanted a text or a list of text parts.", param=place)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise RequestError(
                f"{place}[{index}] is a part of type {shorten(kind)}; only text parts are supported.",
                param=f"{place}[{index}]",
                code="unsupported_content",
            )
        if not isinstance(part.get("text"), str):
            raise RequestError(f"{place}[{index}].text is missing or not a text.", param=f"{place}[{index}].text")
        texts.append(part["text"])
    return "".join(texts)


def _tool_calls(calls: Any, place: str) -> list[dict[str, Any]]:
    """Return earlier calls with their arguments parsed: templates write them out themselves."""
    if not isinstance(calls, list):
        raise RequestError(f"{place} is {shorten(calls)}; wanted a list.", param=place)
    parsed = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(f"{place}[{index}] has no function with a name.", param=f"{place}[{index}]")
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except (TypeError, ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise RequestError(
                f"{place}[{index}].function.arguments is {shorten(function['arguments'])}; wanted the JSON text of an "
                "object.",
                param=f"{place}[{index}].function.arguments",
            )
        parsed.append({**call, "function": {**function, "arguments": arguments}})
    return parsed
