"""Logs on stderr: a line per event for people, or JSON. The start-up report is one event, shown line by line.

An event about a request carries its `request_id`: by argument, or bound with `structlog.contextvars` for all events
that follow.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LEVELS = ("debug", "info", "warning", "error", "critical")

SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S"),
)


class ReadableRenderer:
    """Renders an event as one line, and under it the lines of its `report`, as they are."""

    def __init__(self) -> None:
        self._line = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        """See `structlog.typing.Processor`."""
        report = event.pop("report", ())
        return "\n".join([str(self._line(logger, name, event)).rstrip(), *(f"  {line}".rstrip() for line in report)])


def configure(level: str = "info", *, as_json: bool = False) -> None:
    """Set up structlog for this process, whatever it was before.

    Args:
        level: one of `LEVELS`; what is below is dropped.
        as_json: one JSON object per event.
    """
    structlog.configure(
        processors=[*SHARED, *_renderers(as_json)],
        wrapper_class=structlog.make_filtering_bound_logger(_number(level)),
        # Made anew for each event: sys.stderr may have been replaced meanwhile.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def configure_once() -> None:
    """Set up structlog unless the program that uses Plait has done so."""
    if not structlog.is_configured():
        configure()


def adopt_stdlib(level: str = "info", *, as_json: bool = False) -> None:
    """Bring logs of the standard library's kind into the same form: warnings of all libraries, uvicorn from `level`."""
    handler = _StderrHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=SHARED,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(as_json)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(_number(level), logging.WARNING))
    logging.getLogger("uvicorn").setLevel(_number(level))


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)


def _renderers(as_json: bool) -> list[Processor]:
    if as_json:
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=_plain)]
    return [ReadableRenderer()]


def _plain(value: Any) -> str:
    return str(value)


def _number(level: str) -> int:
    return int(logging.getLevelNamesMapping()[level.upper()])
