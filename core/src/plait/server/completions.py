"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import attrs
from fastapi import Request
from fastapi.responses import Response

from plait.engine.outputs import Delta
from plait.engine.sampling_params import SamplingParams
from plait.server.answer import Answer, Writer
from plait.server.body import read_body
from plait.server.logprobs import CompletionLogprobsWriter
from plait.server.parameters import refuse_extras, sampling_params
from plait.server.prompts import encode_prompts, prompt_list
from plait.server.protocol import Completion, CompletionBody, CompletionChoice, Usage
from plait.server.service import Service

DEFAULT_MAX_TOKENS = 16


async def complete(service: Service, request: Request) -> Response:
    """Complete the prompts of a call. Raises `RequestError`."""
    clock = service.metrics.clock()
    body = await read_body(request, CompletionBody, service.options.max_body_bytes)
    service.check_model(body.model)
    refuse_extras(body)
    params = sampling_params(body, body.max_tokens, body.logprobs)
    prompts = prompt_list(body.prompt)
    tokens = await service.engine.with_tokenizer(lambda tokenizer: encode_prompts(tokenizer, prompts))
    each = [params] * len(tokens)
    if body.max_tokens is None:
        # Nobody asked for sixteen: a prompt that leaves less room is answered all the same.
        limits = [min(DEFAULT_MAX_TOKENS, room) for room in await service.room(tokens, params)]
        each = [attrs.evolve(params, max_tokens=limit) for limit in limits]
    call_id = f"cmpl-{uuid.uuid4().hex}"
    answer = await service.begin(request, call_id, tokens, each, clock)
    tokenizer = service.engine.engine.tokenizer
    return await service.respond(
        request, body, answer, CompletionWriter(call_id, service.model, tokenizer, params, len(tokens))
    )


class CompletionWriter(Writer):
    """Writes completions."""

    def __init__(self, call_id: str, model: str, tokenizer: Any, params: SamplingParams, prompts: int) -> None:
        self._id = call_id
        self._model = model
        self._created = int(time.time())
        self._logprobs = [CompletionLogprobsWriter(tokenizer, params) for _ in range(prompts)]

    def whole(self, answer: Answer) -> Completion:
        """See `Writer`."""
        choices = []
        for index, output in enumerate(answer.outputs):
            done = output.outputs[0]
            choices.append(
                CompletionChoice(
                    index=index,
                    text=done.text,
                    logprobs=self._logprobs[index].write(done.token_ids, done.logprobs),
                    finish_reason=done.finish_reason,
                    stop_reason=done.stop_reason,
                )
            )
        return self._completion(choices, answer.usage())

    def opening(self) -> Sequence[Completion]:
        """See `Writer`."""
        return []

    def chunks(self, index: int, delta: Delta) -> Sequence[Completion]:
        """See `Writer`."""
        logprobs = self._logprobs[index].write(delta.token_ids, delta.logprobs)
        if not delta.text and logprobs is None and delta.finish_reason is None:
            return []
        choice = CompletionChoice(
            index=index,
            text=delta.text,
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
        )
        return [self._completion([choice])]

    def usage_chunk(self, usage: Usage) -> Completion:
        """See `Writer`."""
        return self._completion([], usage)

    def _completion(self, choices: list[CompletionChoice], usage: Usage | None = None) -> Completion:
        return Completion(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage)
