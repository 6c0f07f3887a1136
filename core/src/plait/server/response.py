"""Answers on the wire: in one piece, or as server-sent events; both end at once when the client goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from plait.engine.async_engine import Generation
from plait.server.answer import Answer, Writer
from plait.server.errors import CLIENT_CLOSED, describe

KEEP_ALIVE = ": keep-alive\n\n"  # a comment, which clients pass over (server-sent events, WHATWG HTML 9.2)
DONE = "data: [DONE]\n\n"


@contextlib.contextmanager
def closing_with_client(receive: Receive, generation: Generation) -> Iterator[None]:
    """Take a call's requests out as soon as its client is gone, and in any case on leaving."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.close()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        generation.close()


async def whole_response(request: Request, answer: Answer, writer: Writer) -> Response:
    """Wait for an answer and return it in one piece."""
    with closing_with_client(request.receive, answer.generation):
        async for _ in answer.events():
            pass
    if not answer.generation.finished:
        return Response(status_code=CLIENT_CLOSED)
    return Response(writer.whole(answer).model_dump_json(), media_type="application/json")


class EventStream(Response):
    """An answer as server-sent events, sent as it comes."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, writer: Writer, *, usage: bool, keep_alive_seconds: float) -> None:
        """Make a stream that has not begun.

        Args:
            answer: what is sent.
            writer: makes chunks of it.
            usage: end with a chunk that has the usage.
            keep_alive_seconds: a silence of that length is broken by a comment.
        """
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._answer = answer
        self._writer = writer
        self._usage = usage
        self._keep_alive_seconds = keep_alive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything; the head and the first bytes go out before there is any token."""
        with closing_with_client(receive, self._answer.generation):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for text in self._events(scope["state"]["request_id"]):
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, request_id: str) -> AsyncIterator[str]:
        now = asyncio.get_running_loop().time
        yield "".join(map(self._data, self._writer.opening())) or KEEP_ALIVE
        sent = now()
        try:
            async for event in self._answer.events():
                text = "" if event is None else "".join(map(self._data, self._writer.chunks(*event)))
                if not text and now() - sent >= self._keep_alive_seconds:
                    text = KEEP_ALIVE
                if text:
                    yield text
                    sent = now()
        except Exception as error:  # the head is out, so that the error has to be told in the stream
            _, body = describe(error, request_id)
            yield f"event: error\ndata: {json.dumps(body)}\n\n"
            return
        if self._usage:
            yield self._data(self._writer.usage_chunk(self._answer.usage()))
        yield DONE

    def _data(self, chunk: BaseModel) -> str:
        # Where usage was asked for, the other chunks have it too, as null.
        return f"data: {chunk.model_dump_json(exclude=None if self._usage else {'usage'})}\n\n"
