"""A log record is one line of JSON for any values."""

import json
import logging
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest

from api import process

ODD = "a\nb\x1b[31m\x7f\u2028\x85\udc80"


@pytest.fixture
def output() -> Iterator[StringIO]:
    """A stream with the log; afterwards logging is restored."""
    root, ours = logging.getLogger(), logging.getLogger(process.LOGGER)
    handlers, levels = root.handlers[:], (root.level, ours.level)
    root.handlers = []  # pytest's own must not be closed
    stream = StringIO()
    process.install_logging(stream)
    yield stream
    logging.captureWarnings(capture=False)
    root.handlers = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def lines(output: StringIO) -> list[dict[str, Any]]:
    text = output.getvalue()
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    return [json.loads(line) for line in text.removesuffix("\n").split("\n") if line]


def test_a_record_is_one_line_for_any_values(output: StringIO) -> None:
    logging.getLogger("workbench.ingest").info("refused", extra={"reason": ODD, "events": 3, ODD: set})
    (line,) = lines(output)
    assert (line["level"], line["logger"], line["word"]) == ("info", "workbench.ingest", "refused")
    assert (line["reason"], line["events"], line[ODD]) == (ODD, 3, "<class 'set'>")
    assert line["time"].endswith("+00:00")


def test_an_exception_is_text_within_the_line(output: StringIO) -> None:
    try:
        raise ValueError(ODD)
    except ValueError:
        logging.getLogger("workbench.api").exception("request_failed", extra={"request_id": "r1"})
    (line,) = lines(output)
    assert (line["word"], line["request_id"]) == ("request_failed", "r1")
    assert "Traceback" in line["exception"]
    assert ODD in line["exception"]


def test_libraries_are_logged_from_warnings_on(output: StringIO) -> None:
    for name in ("sanic.root", "psycopg.pool", "workbench"):
        logging.getLogger(name).debug("debug")
        logging.getLogger(name).info("info")
        logging.getLogger(name).warning("%s", "warning")
    assert [(line["logger"], line["word"]) for line in lines(output)] == [
        *(("sanic.root", "warning"), ("psycopg.pool", "warning"), ("workbench", "info"), ("workbench", "warning"))
    ]
