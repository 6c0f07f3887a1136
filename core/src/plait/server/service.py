"""What the endpoints share: the engine, the model's name, metrics, and the way from prompts to a response."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import attrs
import structlog
from fastapi import Request
from fastapi.responses import Response

from plait.engine.async_engine import AsyncEngine
from plait.engine.sampling_params import SamplingParams
from plait.errors import RequestError
from plait.server.answer import Answer, Writer
from plait.server.metrics import Clock, Metrics
from plait.server.options import ServerOptions
from plait.server.protocol import GenerationBody
from plait.server.response import EventStream, whole_response

log = structlog.get_logger(__name__)


@attrs.frozen
class Service:
    """One served model.

    Attributes:
        engine: runs the requests.
        model: the name under which it is served.
        created: when serving began, in seconds since 1970.
        metrics: of the server.
        options: of the server.
    """

    engine: AsyncEngine
    model: str
    created: int
    metrics: Metrics
    options: ServerOptions

    def check_model(self, asked: str | None) -> None:
        """Refuse another model's name; no name means the one there is. Raises `RequestError`."""
        if asked is not None and asked != self.model:
            raise RequestError(
                f"The model {asked!r} is not served here; {self.model!r} is.",
                param="model",
                status=404,
                code="model_not_found",
            )

    async def room(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[int]:
        """Return how many tokens each prompt leaves room for. Raises `RequestError` if there is none for one."""
        unbound = attrs.evolve(params, max_tokens=None)
        return await asyncio.to_thread(lambda: [self.engine.engine.check(tokens, unbound)[1] for tokens in prompts])

    async def begin(
        self,
        request: Request,
        call_id: str,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        clock: Clock,
    ) -> Answer:
        """Start the requests of a call. Raises `RequestError` if one cannot be served; then none runs."""
        generation = await self.engine.start(prompts, params, call_id)
        log.info(
            "call started",
            request_id=request.state.request_id,
            call_id=call_id,
            prompts=len(prompts),
            prompt_tokens=sum(map(len, prompts)),
        )
        return Answer(generation, prompts, params[0], clock)

    async def respond(self, request: Request, body: GenerationBody, answer: Answer, writer: Writer) -> Response:
        """Return an answer in one piece or as a stream, as the body asks."""
        if body.stream:
            seconds = self.options.keep_alive_seconds
            return EventStream(answer, writer, usage=body.wants_usage_chunk, keep_alive_seconds=seconds)
        return await whole_response(request, answer, writer)
