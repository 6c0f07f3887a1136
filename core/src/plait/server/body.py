"""Request bodies: read up to a limit, then checked against a model."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from plait.errors import RequestError

Body = TypeVar("Body", bound=BaseModel)

INLINE_BYTES = 64 << 10  # a larger body is parsed on a worker thread
DRAINED = 4  # times the limit: so much is read and dropped, so that a client that is still sending sees the answer


async def read_body(request: Request, kind: type[Body], limit: int) -> Body:
    """Return the body of a request.

    Args:
        request: whose body was not read yet.
        kind: the model that it must meet.
        limit: bytes.

    Raises:
        RequestError: the body is too large (413), no JSON, not an object, or does not meet the model (400).
    """
    data = await _read(request, limit)
    if len(data) > INLINE_BYTES:
        return await asyncio.to_thread(parse_body, data, kind)
    return parse_body(data, kind)


def parse_body(data: bytes, kind: type[Body]) -> Body:
    """Parse and check a body. Raises `RequestError`."""
    try:
        return kind.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=False)[0]) from None


async def _read(request: Request, limit: int) -> bytes:
    data = bytearray()
    size = 0
    async for part in request.stream():
        size += len(part)
        if size <= limit:
            data += part
        elif size > DRAINED * limit:
            break
    if size > limit:
        raise RequestError(
            f"The body has {'more than ' if size > DRAINED * limit else ''}{size:,} bytes; the limit is {limit:,}.",
            status=413,
            code="request_too_large",
        )
    return bytes(data)


def _refusal(error: Any) -> RequestError:
    """Return the refusal for what pydantic found wrong first."""
    if error["type"] == "json_invalid":
        return RequestError(f"The body is not valid JSON: {error['msg'].removeprefix('Invalid JSON: ')}.")
    if not error["loc"]:
        return RequestError(f"The body is a {type(error['input']).__name__}; wanted a JSON object.")
    place = _place(error["loc"])
    if error["type"] == "missing":
        return RequestError(f"{place} is missing.", param=place, code="missing_required_parameter")
    shown = repr(error["input"])
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    wanted = error["msg"].replace("Input should be", "wanted")
    return RequestError(f"{place} is {shown}; {wanted}.", param=place, code="invalid_type")


def _place(path: tuple[str | int, ...]) -> str:
    """Write a path as OpenAI does: stop[2], stream_options.include_usage."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
