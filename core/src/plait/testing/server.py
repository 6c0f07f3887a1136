"""A real server on a free port, for tests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from plait.engine.thread import EngineThread
from plait.server.app import Server, create_app, listen
from plait.server.options import ServerOptions


@contextlib.contextmanager
def serving(engine: EngineThread, name: str = "tiny", options: ServerOptions | None = None) -> Iterator[str]:
    """Serve an engine over HTTP while the block runs; the engine is shut down at its end.

    Args:
        engine: ready.
        name: under which the model is served.
        options: of the server.

    Yields:
        The server's address, without a path.
    """
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = Server(create_app(engine, name, options), engine)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="plait-server", daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server ended while it started; its log says why")
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
        engine.shutdown()
