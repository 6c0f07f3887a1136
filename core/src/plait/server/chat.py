"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from plait.engine.outputs import Delta
from plait.engine.sampling_params import SamplingParams
from plait.errors import RequestError
from plait.server.answer import Answer, Writer
from plait.server.body import read_body
from plait.server.logprobs import chat_logprobs
from plait.server.messages import chat_prompt, template_messages
from plait.server.parameters import refuse_extras, sampling_params
from plait.server.protocol import (
    Chat,
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatMessage,
    Usage,
)
from plait.server.service import Service


async def chat(service: Service, request: Request) -> Response:
    """Answer a chat. Raises `RequestError`."""
    clock = service.metrics.clock()
    body = await read_body(request, ChatBody, service.options.max_body_bytes)
    service.check_model(body.model)
    refuse_extras(body)
    call_id = f"chatcmpl-{uuid.uuid4().hex}"
    try:
        params = sampling_params(body, _max_tokens(body), _logprobs(body))
        messages = template_messages(body.messages)
        variables = body.chat_template_kwargs or {}
        tokens = await service.engine.with_tokenizer(lambda tokenizer: chat_prompt(tokenizer, messages, variables))
        answer = await service.begin(request, call_id, [tokens], [params], clock)
    except RequestError as error:
        error.param = _own_name(error.param, body)
        raise
    writer = ChatWriter(call_id, service.model, service.engine.engine.tokenizer, params)
    return await service.respond(request, body, answer, writer)


class ChatWriter(Writer):
    """Writes the assistant's message."""

    def __init__(self, call_id: str, model: str, tokenizer: Any, params: SamplingParams) -> None:
        self._id = call_id
        self._model = model
        self._created = int(time.time())
        self._tokenizer = tokenizer
        self._params = params

    def whole(self, answer: Answer) -> Chat:
        """See `Writer`."""
        done = answer.outputs[0].outputs[0]
        choice = ChatChoice(
            index=0,
            message=ChatMessage(content=done.text),
            logprobs=chat_logprobs(self._tokenizer, self._params, done.token_ids, done.logprobs),
            finish_reason=done.finish_reason,
            stop_reason=done.stop_reason,
        )
        usage = answer.usage()
        return Chat(id=self._id, created=self._created, model=self._model, choices=[choice], usage=usage)

    def opening(self) -> Sequence[ChatChunk]:
        """See `Writer`."""
        return [self._chunk({"role": "assistant", "content": ""})]

    def chunks(self, index: int, delta: Delta) -> Sequence[ChatChunk]:
        """See `Writer`."""
        chunks = []
        logprobs = chat_logprobs(self._tokenizer, self._params, delta.token_ids, delta.logprobs)
        if delta.text or logprobs is not None:
            chunks.append(self._chunk({"content": delta.text}, logprobs))
        if delta.finish_reason is not None:
            chunks.append(self._chunk({}, None, delta.finish_reason, delta.stop_reason))
        return chunks

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        """See `Writer`."""
        return ChatChunk(id=self._id, created=self._created, model=self._model, choices=[], usage=usage)

    def _chunk(
        self,
        delta: dict[str, str],
        logprobs: ChatLogprobs | None = None,
        reason: str | None = None,
        stop: int | str | None = None,
    ) -> ChatChunk:
        choice = ChatChunkChoice(index=0, delta=delta, logprobs=logprobs, finish_reason=reason, stop_reason=stop)
        return ChatChunk(id=self._id, created=self._created, model=self._model, choices=[choice])


def _max_tokens(body: ChatBody) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens is {old} and max_completion_tokens is {new}; send one of them.", param="max_tokens"
        )
    return old if new is None else new


def _logprobs(body: ChatBody) -> int | None:
    """Return the number of likely tokens to give for each token, or None for no log-probabilities at all."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise RequestError(f"top_logprobs is {body.top_logprobs}, but logprobs is not true.", param="top_logprobs")
    return None


def _own_name(param: str | None, body: ChatBody) -> str | None:
    """Return the name that the chat's caller gave a parameter."""
    names = {"prompt": "messages"}
    if body.max_tokens is None:
        names["max_tokens"] = "messages" if body.max_completion_tokens is None else "max_completion_tokens"
    if body.top_logprobs is not None:
        names["logprobs"] = "top_logprobs"
    return names.get(param or "", param)
