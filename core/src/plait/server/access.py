"""What every request gets: an id, a line in the log, and an answer even if the code fails."""

from __future__ import annotations

import re
import time
import uuid

import structlog
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from plait.server.errors import CLIENT_CLOSED, describe

log = structlog.get_logger(__name__)

HEADER = "x-request-id"
SOUND_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
QUIET = {"/health", "/metrics"}  # asked every few seconds by machines


class Access:
    """ASGI middleware: request ids, log, and the last resort for exceptions."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; the id is the client's own if it sent a sound one."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(HEADER, "")
        request_id = sent if SOUND_ID.fullmatch(sent) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        start = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            status = CLIENT_CLOSED
        except Exception as error:
            code, body = describe(error, request_id)
            if status:  # headers are out: all that is left is to break the connection off
                raise
            await JSONResponse(body, code)(scope, receive, send_with_id)
        finally:
            write = log.debug if scope["path"] in QUIET else log.info
            seconds = round(time.perf_counter() - start, 4)
            write(
                "http request",
                request_id=request_id,
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=seconds,
            )
