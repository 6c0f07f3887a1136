"""The routes, and the way to serve them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from plait import __version__
from plait.engine.async_engine import AsyncEngine
from plait.engine.thread import EngineThread
from plait.errors import PlaitError, RequestError
from plait.server.access import Access
from plait.server.chat import chat
from plait.server.completions import complete
from plait.server.errors import on_http_exception, on_request_error
from plait.server.metrics import Metrics
from plait.server.options import ServerOptions
from plait.server.service import Service

log = structlog.get_logger(__name__)

GRACE_SECONDS = 10  # for clients to take their last bytes when the server ends


def create_app(engine: EngineThread, served_model_name: str, options: ServerOptions | None = None) -> FastAPI:
    """Return the application that serves an engine.

    Args:
        engine: stays the caller's, who shuts it down.
        served_model_name: what clients call the model.
        options: of the server.
    """
    options = options or ServerOptions()
    wrapped = AsyncEngine(engine, tick_seconds=options.tick_seconds, stall_seconds=options.stall_seconds)
    service = Service(wrapped, served_model_name, int(time.time()), Metrics(engine), options)
    app = FastAPI(title="Plait", version=__version__, openapi_url=None)
    app.add_middleware(Access)
    app.add_exception_handler(PlaitError, on_request_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    _add_generation(app, service)
    _add_models(app, service)
    _add_health(app, service)
    return app


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions")
    async def post_completions(request: Request) -> Response:
        return await complete(service, request)

    @app.post("/v1/chat/completions")
    async def post_chat_completions(request: Request) -> Response:
        return await chat(service, request)


def _add_models(app: FastAPI, service: Service) -> None:
    card: dict[str, Any] = {
        "id": service.model,
        "object": "model",
        "created": service.created,
        "owned_by": "plait",
        "max_model_len": service.engine.engine.plan.request.max_model_len,
    }

    @app.get("/v1/models")
    async def get_models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{model:path}")
    async def get_model(model: str) -> dict[str, Any]:
        service.check_model(model)
        return card


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def get_health() -> Response:
        if not service.engine.engine.alive:
            raise RequestError("The engine has stopped.", status=503, code="engine_shut_down")
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def get_metrics() -> Response:
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.get("/version")
    async def get_version() -> dict[str, str]:
        return {"version": __version__}


class Server(uvicorn.Server):
    """Uvicorn's server, which ends the engine before it waits for connections to close."""

    def __init__(self, app: FastAPI, engine: EngineThread) -> None:
        """Make a server for `app`; nothing listens yet."""
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=GRACE_SECONDS
        )
        super().__init__(config)
        self._engine = engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: running requests are aborted and their clients told so, then connections close."""
        log.info("server ends", running=self._engine.load[0], waiting=self._engine.load[1])
        await asyncio.to_thread(self._engine.shutdown)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one. Raises `PlaitError` if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise PlaitError(f"cannot listen on {host} port {port}: {error}. Choose another --host or --port.") from error


def run(
    engine: EngineThread, served_model_name: str, listener: socket.socket, options: ServerOptions | None = None
) -> None:
    """Serve until SIGINT or SIGTERM comes; the engine is shut down then.

    Args:
        engine: ready.
        served_model_name: what clients call the model.
        listener: what `listen` returned; made before the engine, a taken port costs no loading.
        options: of the server.
    """
    host, port = listener.getsockname()[:2]
    log.info("serving", model=served_model_name, url=f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")
    try:
        # Uvicorn raises an interrupt again when it has ended.
        with contextlib.suppress(KeyboardInterrupt):
            Server(create_app(engine, served_model_name, options), engine).run(sockets=[listener])
    finally:
        engine.shutdown()
