"""Errors as OpenAI's API writes them."""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from plait.errors import PlaitError, RequestError

log = structlog.get_logger(__name__)

CLIENT_CLOSED = 499
"""Status, as nginx writes it, of an answer that nobody waits for any more."""


def error_body(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """Return the body of an error: {"error": {"message", "type", "param", "code"}}."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: Exception, request_id: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the body for an exception; one that nobody foresaw is logged and not shown.

    Args:
        error: what was raised.
        request_id: by which the log's entry is found.
    """
    if isinstance(error, RequestError):
        return error.status, error_body(str(error), error.status, error.param, error.code)
    log.error("request failed", request_id=request_id, error=repr(error), exc_info=error)
    if isinstance(error, PlaitError):
        return 500, error_body(str(error), 500)
    text = f"The server failed on this request; its log has the reason under request id {request_id}."
    return 500, error_body(text, 500, code="internal_error")


async def on_request_error(request: Request, error: Exception) -> JSONResponse:
    """Answer a request that cannot be served."""
    status, body = describe(error, request.state.request_id)
    return JSONResponse(body, status)


async def on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Answer what the router refuses: an unknown path, or a method that a path does not have."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    texts = {
        404: f"There is nothing at {what}; see GET /v1/models, POST /v1/completions and POST /v1/chat/completions.",
        405: f"{what} is not allowed; allowed: {(error.headers or {}).get('Allow', 'another method')}.",
    }
    codes = {404: "not_found", 405: "method_not_allowed"}
    text = texts.get(error.status_code, str(error.detail))
    body = error_body(text, error.status_code, code=codes.get(error.status_code))
    return JSONResponse(body, error.status_code, headers=dict(error.headers or {}))
