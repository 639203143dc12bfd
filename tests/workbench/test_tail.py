"""A notebook shows recent events, rejected events with their reasons, and the live tail."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from urllib.parse import parse_qs, urlsplit

import polars as pl
import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.http_server import Handler, serving
from tests.installation import until
from tests.running import Running
from workbench import AuthenticationError, ConnectionFailedError, InvalidRequestError, Workbench
from workbench.connection import Connection
from workbench.tail import EventTail

CANARY = "canary-7d1f"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def refuse(wb: Workbench, event: str) -> None:
    """Send an event with an invalid email address, and wait until the rejection is stored."""
    with pytest.raises(InvalidRequestError, match=r"contact\.email: not a valid email address"):
        wb.events.send(event, email=CANARY, payload={"amountUsd": 5, "card": CANARY})
    until(lambda: event in wb.events.rejected()["event"], "the refusal is kept")


@contextmanager
def sending(wb: Workbench, event: str) -> Iterator[None]:
    """Send an event every 0.1 s until the block ends."""
    stopped = threading.Event()

    def send() -> None:
        while not stopped.wait(0.1):
            wb.events.send(event, external_id="u1")

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_one_call_shows_why_an_event_is_missing(wb: Workbench) -> None:
    refuse(wb, "Why:Not")
    frame = wb.events.rejected(limit=500)
    assert frame.columns == ["at", "event", "field", "error", "body"]
    assert frame.schema["at"] == pl.Datetime("us", "UTC")
    (row,) = frame.filter(pl.col("event") == "Why:Not").drop("at").rows()
    assert row[:3] == ("Why:Not", "contact.email", "contact.email: not a valid email address")
    assert json.loads(row[3])["payload"] == {"amountUsd": "number", "card": "string"}
    for shown in (repr(frame), frame._repr_html_()):
        assert "contact.email: not a valid email address" in shown
        assert CANARY not in shown


def test_refusals_are_a_table_in_sql(wb: Workbench) -> None:
    refuse(wb, "why:sql")
    frame = wb.sql("SELECT * FROM rejected_events WHERE event = :event", event="why:sql")
    assert frame.select("event", "field", "reason").rows() == [
        ("why:sql", "contact.email", "not a valid email address")
    ]
    assert CANARY not in str(frame.to_dicts())


def test_the_newest_events_are_a_frame_with_their_outcomes(wb: Workbench) -> None:
    wb.automation("recent").on("recent:a").add_tag("x").publish()
    for options in ({}, {}, {"test": True}):
        wb.events.send("recent:a", external_id="u1", idempotency_key="recent-1", payload={"n": 1}, **options)
    until(lambda: "recent-1" in wb.events.recent("deduplicated")["idempotency_key"], "the duplicate is kept")
    frame = wb.events.recent(["accepted", "deduplicated", "dry_run"], limit=500)
    of_key = frame.filter(pl.col("idempotency_key") == "recent-1")
    assert of_key.select("outcome", "event", "payload", "entries", "matched_automations").rows() == [
        ("accepted", "recent:a", '{"n":1}', 1, None),
        ("deduplicated", "recent:a", None, None, None),
        ("dry_run", "recent:a", '{"n":1}', None, 1),
    ]
    for shown in (repr(frame), frame._repr_html_()):
        assert "started 1 automation" in shown
        assert "would start 1 automation" in shown
        assert "a duplicate by its idempotency key" in shown


def test_a_tail_yields_events_as_they_arrive(wb: Workbench) -> None:
    with sending(wb, "tail:a"):
        events = [
            event for event, _ in zip((e for e in wb.events.tail(20) if e.event == "tail:a"), range(3), strict=False)
        ]
    assert [event.outcome for event in events] == ["accepted"] * 3
    assert len({event.id for event in events}) == 3
    assert repr(events[0]).endswith("accepted      tail:a: started nothing")


def test_a_tail_ends_after_its_seconds(wb: Workbench) -> None:
    assert list(wb.events.tail(seconds=0.5, outcome="rejected")) == []


def test_at_the_end_of_a_cell_a_tail_prints_arriving_events(wb: Workbench, capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    shell.push({"wb": wb})
    with sending(wb, "tail:cell"):
        shell.run_cell('wb.events.tail(seconds=2, outcome="accepted")')
    assert "accepted      tail:cell: started nothing" in capsys.readouterr().out


def test_a_wrong_outcome_is_refused_with_the_message_of_the_service(wb: Workbench) -> None:
    for ask in (wb.events.recent, lambda outcome: list(wb.events.tail(1, outcome))):
        with pytest.raises(InvalidRequestError, match="outcome: must be one or more of accepted, dedup"):
            ask("lost")


# A server with scripted answers


class Script(HTTPServer):
    """Gives the scripted answers to GET requests in order, and records the cursors."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        self.answers: list[Callable[[Handler], None]] = []
        self.cursors: list[str | None] = []

    def tail(self) -> EventTail:
        return EventTail(Connection(f"http://127.0.0.1:{self.server_port}", "wb_x"), None, 20)


class _Line(Handler):
    server: Script

    def do_GET(self) -> None:
        self.server.cursors.append(parse_qs(urlsplit(self.path).query).get("after", [None])[0])
        self.server.answers.pop(0)(self)
        self.close_connection = True


def streaming(*event_ids: str, broken: bool = False) -> Callable[[Handler], None]:
    """Return an answer with events; a broken one ends before its length."""
    fields = {"at": "2026-11-20T10:00:00Z", "outcome": "accepted", "event": "e"}
    texts = [f"id: after-{event_id}\ndata: {json.dumps(fields | {'id': event_id})}\n\n" for event_id in event_ids]
    text = "id: begin\n\n:\n\n" + "".join(texts)
    headers = {"Content-Type": "text/event-stream"} | ({"Content-Length": "10000"} if broken else {})
    return lambda line: line.answer(200, text.encode(), headers)


def refusing(line: Handler) -> None:
    line.answer_json(401, {"error": "the secret key is missing, invalid or revoked"})


@pytest.fixture
def script() -> Iterator[Script]:
    with serving(Script()) as server:
        yield server


def test_a_broken_tail_resumes_at_its_cursor(script: Script) -> None:
    script.answers = [streaming("1", "2", broken=True), streaming("3"), refusing]
    tail = iter(script.tail())
    assert [next(tail).id for _ in "123"] == ["1", "2", "3"]
    with pytest.raises(AuthenticationError):
        next(tail)
    assert script.cursors == [None, "after-2", "after-3"]


def test_a_response_of_another_service_is_an_error_at_once(script: Script) -> None:
    script.answers = [lambda line: line.answer(200, b"<p>hello", {"Content-Type": "text/html"})]
    with pytest.raises(ConnectionFailedError, match="not an Event Workbench"):
        list(script.tail())
