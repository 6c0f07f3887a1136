"""Logs: readable or JSON, from a level on, with request ids, and libraries' own in the same form."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from plait import logs

REPORT = ["plait 0.1.0: some model", "families: attention", "", "sites  growth"]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)


def test_the_report_is_one_event_with_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    structlog.get_logger("x").info("engine started", report=REPORT)
    out, err = capsys.readouterr()
    first, *lines = err.splitlines()
    assert out == "" and "engine started" in first and "report" not in first
    assert lines == ["  plait 0.1.0: some model", "  families: attention", "", "  sites  growth"]


def test_json_has_one_object_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(as_json=True)
    log = structlog.get_logger("x")
    log.info("engine started", report=REPORT)
    try:
        raise ValueError("odd")
    except ValueError as error:
        log.error("step failed", exc_info=error, thing=object)
    started, failed = map(json.loads, capsys.readouterr().err.splitlines())
    assert (started["event"], started["level"], started["report"]) == ("engine started", "info", REPORT)
    assert "Traceback" in failed["exception"] and "ValueError: odd" in failed["exception"]


def test_a_level_drops_what_is_below(capsys: pytest.CaptureFixture[str]) -> None:
    for level in logs.LEVELS:
        logs.configure(level)
        for each in logs.LEVELS:
            getattr(structlog.get_logger("x"), each)("event")
        assert len(capsys.readouterr().err.splitlines()) == len(logs.LEVELS) - logs.LEVELS.index(level)


def test_request_ids_are_in_events(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(as_json=True)
    log = structlog.get_logger("x")
    log.info("request finished", request_id="r1")
    with structlog.contextvars.bound_contextvars(request_id="r2"):
        log.info("request received")
    log.info("idle")
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [event.get("request_id") for event in events] == ["r1", "r2", None]


@pytest.mark.parametrize("as_json", [False, True])
def test_logs_of_libraries_look_the_same(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", as_json=as_json)
    logs.adopt_stdlib("info", as_json=as_json)
    logging.getLogger("uvicorn.error").info("Startup %s.", "complete", extra={"color_message": "x"})
    logging.getLogger("httpx").info("a library's detail")
    logging.getLogger("httpx").warning("a library's worry")
    lines = capsys.readouterr().err.splitlines()
    assert (
        len(lines) == 2
        and "Startup complete." in lines[0]
        and "color_message" not in lines[0]
        and "a library's worry" in lines[1]
    )
    if as_json:
        assert json.loads(lines[0])["level"] == "info"


def test_a_program_that_has_its_own_logs_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    logs.configure_once()
    structlog.get_logger("x").info("theirs")
    assert capsys.readouterr().out == "event='theirs'\n"
    structlog.reset_defaults()
    logs.configure_once()
    structlog.get_logger("x").info("ours")
    assert "ours" in capsys.readouterr().err
