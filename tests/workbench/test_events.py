"""Sending to a busy, unavailable or failing server uses one key and bounded retries, and returns the outcome."""

import json
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from http.server import HTTPServer
from typing import Any

import pytest

from tests.http_server import Handler, serving
from workbench import (
    AuthenticationError,
    ConnectionFailedError,
    InvalidArgumentError,
    InvalidRequestError,
    UnavailableError,
    UnknownOutcomeError,
)
from workbench.events import Events, Receipts, SendRetries

BREAK = object()
OK = (202, {"accepted": True, "deduplicated": False, "idempotencyKey": "k"})
BUSY = (429, {"error": "rate limit exceeded", "code": "RATE_LIMITED"})
AWAY = (503, {"error": "try later", "code": "INGEST_UNAVAILABLE"})
RETRIES = SendRetries(attempts=4, first_s=0.001, longest_s=0.002)


class Script(HTTPServer):
    """A server that gives scripted answers in order and records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        self.answers: list[Any] = []
        self.bodies: list[Any] = []

    @property
    def events(self) -> Events:
        return Events(f"http://127.0.0.1:{self.server_port}", "sk_live_x", RETRIES)

    @property
    def keys(self) -> set[str]:
        return {body["idempotencyKey"] for body in self.bodies}


class _Line(Handler):
    server: Script

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.read_body()))
        answer = self.server.answers.pop(0)
        if answer is BREAK:
            self.close_connection = True
            return
        self.answer_json(*answer)


@pytest.fixture
def script() -> Iterator[Script]:
    with serving(Script()) as server:
        yield server


def test_a_busy_server_is_retried_with_the_same_key(script: Script) -> None:
    script.answers = [BUSY, AWAY, OK]
    assert script.events.send("deposit", email="ada@example.com").accepted
    assert len(script.bodies) == 3
    assert len(script.keys) == 1


def test_a_broken_connection_is_retried_with_the_same_key(script: Script) -> None:
    script.answers = [BREAK, OK]
    assert script.events.send("deposit", email="ada@example.com").accepted
    assert len(script.keys) == 1


def test_warnings_of_an_accepted_event_are_shown(script: Script) -> None:
    warning = "properties: unknown field, did you mean payload?"
    body = OK[1] | {"warnings": [warning]}
    script.answers = [(202, body), (202, {"results": [OK[1], body]})]
    receipt = script.events.send("deposit", email="ada@example.com")
    assert (receipt.warnings, receipt.sentence()) == ((warning,), f"Accepted. Warning: {warning}")
    receipts = script.events.send_many([{"event": "deposit"}] * 2)
    assert receipts.warnings == [(1, warning)]
    assert repr(receipts).startswith("2 accepted, 0 duplicates, 0 not stored, 1 warning\n")
    assert receipts.frame()["warnings"].to_list() == [[], [warning]]
    assert warning in receipts._repr_html_()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"amount": float("nan")}, r"^payload.amount: nan is not a number that JSON has"),
        ({"amounts": [1, Decimal("Infinity")]}, r"^payload.amounts\[1\]: Infinity is not a number"),
        ({"order": {"at": datetime(2026, 1, 1)}}, r"^payload.order.at: a time needs its zone"),  # noqa: DTZ001
    ],
)
def test_a_value_that_json_would_change_is_refused(script: Script, payload: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        script.events.send("deposit", external_id="1", payload=payload)
    with pytest.raises(InvalidArgumentError, match=message):
        script.events.curl("deposit", external_id="1", payload=payload)
    assert script.bodies == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"payload": {"amount": float("nan")}}, "events[239].payload.amount: nan is not a number that JSON has"),
        ({"payload": {"amount": object()}}, "events[239] cannot be written as JSON: "),
    ],
)
def test_an_event_that_json_would_change_does_not_stop_the_others(
    script: Script, wrong: dict[str, Any], error: str
) -> None:
    script.answers = [(202, {"results": [OK[1]] * size}) for size in (100, 100, 49)]
    events: list[Any] = [{"event": "deposit", "payload": {"number": number}} for number in range(250)]
    events[239] = {"event": "deposit", "idempotencyKey": "mine"} | wrong
    receipts = script.events.send_many(events)
    ((index, receipt),) = receipts.failed
    assert (len(receipts), index, receipt.idempotency_key) == (250, 239, "mine")
    assert str(receipt.error).startswith(error)
    assert not receipt.unknown
    sent = [event["payload"]["number"] for body in script.bodies for event in body["events"]]
    assert sent == [number for number in range(250) if number != 239]


def test_an_event_that_is_not_an_object_does_not_stop_the_other_events(script: Script) -> None:
    script.answers = [(202, {"results": [OK[1]]})]
    receipts = script.events.send_many([{"event": "deposit"}, "deposit"])  # type: ignore[list-item]
    assert [receipt.accepted for receipt in receipts] == [True, False]
    assert str(receipts[1].error).startswith("an event must be an object")


def test_a_refused_event_does_not_hide_that_the_server_stopped_responding(script: Script) -> None:
    script.answers = [BREAK] * 4
    events = [{"event": "x"}] * 99 + [{"event": "x", "payload": float("inf")}] * 101 + [{"event": "x"}] * 5
    receipts = script.events.send_many(events)
    assert len(script.bodies) == 4
    assert [receipts[index].unknown for index in (98, 99, 199, 200)] == [True, False, False, False]
    assert str(receipts[199].error).startswith("events[199].payload: inf")
    assert str(receipts[204].error).startswith("NOT_SENT")


def test_each_call_has_its_own_key(script: Script) -> None:
    script.answers = [OK, OK]
    events = script.events
    events.send("deposit", external_id="1")
    events.send("deposit", external_id="1")
    assert len(script.keys) == 2


def test_retries_against_a_busy_server_end_and_report_that_nothing_was_stored(script: Script) -> None:
    script.answers = [BUSY] * 4
    with pytest.raises(UnavailableError, match="Nothing was stored"):
        script.events.send("deposit", external_id="1")
    assert script.answers == []


@pytest.mark.parametrize(
    "answers",
    [[BREAK, BUSY, BUSY, BUSY], [AWAY] * 4, [BUSY, AWAY, BUSY, BUSY], [BREAK] * 4, [(502, {})] * 4],
    ids=["broke off, then busy", "503", "one 503 among 429", "broke off", "gateway"],
)
def test_an_unknown_outcome_is_reported_with_the_idempotency_key(script: Script, answers: list[Any]) -> None:
    script.answers = answers
    with pytest.raises(UnknownOutcomeError, match="It is unknown whether this was stored") as unknown:
        script.events.send("deposit", external_id="1", idempotency_key="mine")
    assert 'Retry with idempotency_key="mine"' in str(unknown.value)
    assert "othing was stored" not in str(unknown.value)


def test_a_response_from_another_service_is_an_unknown_outcome(script: Script) -> None:
    script.answers = [(200, ["hello"])]
    with pytest.raises(UnknownOutcomeError, match="not from an Event Workbench server"):
        script.events.send("deposit", external_id="1")


def test_a_refusal_is_final(script: Script) -> None:
    script.answers = [(400, {"error": "contact.email: not a valid email address", "field": "contact.email"})]
    with pytest.raises(InvalidRequestError, match=r"contact\.email") as refused:
        script.events.send("deposit", email="nope")
    assert [problem.field for problem in refused.value.problems] == ["contact.email"]


def test_a_refused_connection_is_reported() -> None:
    with pytest.raises(ConnectionFailedError, match=r"make up.*Nothing was stored.*idempotency_key="):
        Events("http://127.0.0.1:9", "sk_live_x", RETRIES).send("deposit", external_id="1")


def test_only_the_rate_limited_events_of_a_batch_are_sent_again(script: Script) -> None:
    fine, later = {"accepted": True, "deduplicated": False}, {"accepted": False, "error": "RATE_LIMITED: slow down"}
    wrong = {"accepted": False, "error": "contact: is required"}
    script.answers = [(202, {"results": [fine, wrong, later]}), (202, {"results": [fine]})]
    receipts = script.events.send_many([{"event": name, "contact": {"externalId": "1"}} for name in "abc"])
    assert [receipt.accepted for receipt in receipts] == [True, False, True]
    assert [[event["event"] for event in body["events"]] for body in script.bodies] == [["a", "b", "c"], ["c"]]
    assert script.bodies[0]["events"][2] == script.bodies[1]["events"][0]


def test_an_event_of_a_batch_that_may_be_stored_has_an_unknown_outcome(script: Script) -> None:
    away = {"accepted": False, "error": "INGEST_UNAVAILABLE: try again"}
    busy = {"accepted": False, "error": "RATE_LIMITED: slow down"}
    script.answers = [(202, {"results": [away, busy]}), *[(202, {"results": [busy, busy]})] * 3]
    receipts = script.events.send_many([{"event": name, "contact": {"externalId": "1"}} for name in "ab"])
    assert [receipt.unknown for receipt in receipts] == [True, False]
    assert "Outcome unknown" in repr(receipts[0])
    assert f'idempotency_key="{receipts[0].idempotency_key}"' in repr(receipts[0])
    assert repr(receipts[1]).startswith("Not stored: RATE_LIMITED")
    assert repr(receipts).startswith("0 accepted, 0 duplicates, 1 not stored, 1 of unknown outcome")


def test_a_batch_is_sent_at_most_as_often_as_a_single_event(script: Script) -> None:
    limited = (202, {"results": [{"accepted": False, "error": "RATE_LIMITED: slow down"}]})
    script.answers = [AWAY, limited, AWAY, limited]
    receipts = script.events.send_many([{"event": "a", "contact": {"externalId": "1"}}])
    assert len(script.bodies) == RETRIES.attempts
    assert [receipt.unknown for receipt in receipts] == [True]


def test_events_are_sent_in_batches_of_a_hundred(script: Script) -> None:
    fine = {"accepted": True, "deduplicated": False, "idempotencyKey": "k"}
    script.answers = [(202, {"results": [fine] * size}) for size in (100, 100, 30)]
    receipts = script.events.send_many({"event": "x", "contact": {"externalId": str(n)}} for n in range(230))
    assert len(receipts) == 230
    assert receipts.failed == []
    assert receipts.frame().height == 230


def test_receipts_say_how_long_the_rate_limit_delayed_them(script: Script) -> None:
    over = {"accepted": False, "deduplicated": False, "error": "RATE_LIMITED: rate limit exceeded"}
    script.answers = [(202, {"results": [OK[1], over]}), (202, {"results": [OK[1]]}), (202, {"results": [OK[1]]})]
    receipts = script.events.send_many([{"event": "deposit"}] * 2)
    assert 0 < receipts.limited_s < 1
    assert script.events.send_many([{"event": "deposit"}]).limited_s == 0
    assert repr(Receipts([*receipts], 9.7)).endswith("; 10 s of pauses because of the server's WORKBENCH_INGEST_RATE")


def test_receipts_list_the_events_stored_before_the_server_failed(script: Script) -> None:
    fine = {"accepted": True, "deduplicated": False}
    script.answers = [(202, {"results": [fine] * 100}), BREAK, BREAK, BREAK, BREAK]
    receipts = script.events.send_many({"event": "x", "contact": {"externalId": str(n)}} for n in range(230))
    assert [index for index, _ in receipts.failed] == list(range(100, 230))
    assert "It is unknown" in str(receipts[100].error)
    assert [receipts[index].unknown for index in (0, 100, 200)] == [False, True, False]
    assert "NOT_SENT" in str(receipts[200].error)
    assert len(script.bodies) == 5


REVOKED = (401, {"error": "the secret key is revoked"})


def test_a_batch_that_is_refused_loses_no_receipts_of_the_batches_before(script: Script) -> None:
    over = {"accepted": False, "error": "RATE_LIMITED: slow down"}
    limited = (202, {"results": [OK[1]] * 99 + [over]})
    script.answers = [(202, {"results": [OK[1]] * 100}), limited, REVOKED, (413, {"error": "the body is too large"})]
    receipts = script.events.send_many({"event": "x", "contact": {"externalId": str(n)}} for n in range(230))
    assert [index for index, _ in receipts.failed] == list(range(199, 230))
    assert str(receipts[199].error).startswith("REFUSED: the server does not know this key, or it was revoked")
    assert str(receipts[200].error) == "REFUSED: the body is too large"
    assert {receipt.unknown for receipt in receipts} == {False}
    assert receipts[229].idempotency_key == script.bodies[3]["events"][29]["idempotencyKey"]


def test_a_first_batch_that_is_refused_is_an_error(script: Script) -> None:
    script.answers = [REVOKED]
    with pytest.raises(AuthenticationError):
        script.events.send_many([{"event": "x"}] * 230)
    assert len(script.bodies) == 1


def test_a_refusal_after_a_lost_response_is_an_unknown_outcome(script: Script) -> None:
    script.answers = [BREAK, REVOKED, BREAK, REVOKED]
    with pytest.raises(UnknownOutcomeError, match=r'revoked.*Retry with idempotency_key="mine"'):
        script.events.send("deposit", external_id="1", idempotency_key="mine")
    (receipt,) = script.events.send_many([{"event": "deposit"}])
    assert receipt.unknown
