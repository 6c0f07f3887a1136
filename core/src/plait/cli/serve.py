"""`plait serve`: an HTTP server with OpenAI's API."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from plait.cli.parameters import MODEL
from plait.cli.settings import engine_settings


def serve(
    ctx: typer.Context,
    model: Annotated[str, MODEL],
    settings: dict[str, Any],
    options: dict[str, Any],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(help="The model's name in the API; by default as MODEL is given.")
    ] = None,
) -> None:
    """Serve a model over HTTP with OpenAI's API."""
    asked = engine_settings(model, settings, options)
    from plait.engine.thread import EngineThread
    from plait.server.app import listen, run

    with contextlib.closing(listen(host, port)) as listener:
        run(EngineThread(asked, ctx.obj), served_model_name or model, listener)
