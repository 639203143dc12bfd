"""Everything that takes an event takes the same keywords and the same JSON."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.running import Running
from workbench import Automation, InvalidArgumentError
from workbench.draft import Draft
from workbench.event_json import describe_event, event_body

KEYWORDS: dict[str, Any] = {
    "external_id": "u1",
    "wallet_address": "0xa1",
    "payload": {"amount": 5},
    "attributes": {"plan": "pro"},
    "occurred_at": datetime(2026, 11, 1, tzinfo=UTC),
    "idempotency_key": "k",
}
JSON = {
    "event": "deposit",
    "contact": {"externalId": "u1", "walletAddress": "0xa1"},
    "payload": {"amount": 5},
    "attributes": {"plan": "pro"},
    "occurredAt": "2026-11-01T00:00:00+00:00",
    "idempotencyKey": "k",
}


def test_keywords_and_json_are_the_same_event() -> None:
    assert event_body("deposit", KEYWORDS) == event_body(JSON, {}) == JSON  # type: ignore[arg-type]
    changed = event_body(JSON, {"external_id": "u2", "payload": {}, "test": True})
    assert changed == JSON | {"contact": {"externalId": "u2", "walletAddress": "0xa1"}, "payload": {}, "test": True}
    assert describe_event(None, {}) == {}
    assert describe_event({"event": "deposit", "test": True}, {"test": False}) == {"event": "deposit", "test": False}


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (
            {"event": "deposit", "email": "a@example.com"},
            'email .* put it into "contact": {"email": …}, or pass email=',
        ),
        ({"event": "deposit", "wallet_address": "0xa1"}, "wallet_address is not a field"),
        ({"event": "deposit", "walletAddress": "0xa1"}, "walletAddress .* or pass wallet_address="),
        ({"event": "deposit", "contact": {"email": "a@example.com"}, "occurred_at": ""}, 'write "occurredAt"'),
        ({"event": "deposit", "contact": "ada"}, "contact must be an object"),
        ({"event": "deposit"}, "has no contact"),
        (7, "written by its name"),
    ],
)
def test_an_error_names_the_field(event: Any, named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        event_body(event, {})


def test_a_simulation_takes_the_event_that_was_sent() -> None:
    automation = (
        Automation(Draft("spelt")).on("deposit").where("amount", gte=5).wait_for("trade", within="1d").add_tag("x")
    )
    spellings = [
        automation.simulate("deposit", **{**KEYWORDS, "occurred_at": None}),
        automation.simulate({**JSON, "occurredAt": datetime.now(UTC).isoformat()}),
        automation.simulate(external_id="u1", payload={"amount": 5}),
    ]
    assert [(run.matched, run.outcome) for run in spellings] == [(True, "completed")] * 3
    waiting = spellings[0].advance("1h")
    by_name, by_json = waiting.send("trade", payload={"a": 1}), waiting.send({"event": "trade", "payload": {"a": 1}})
    assert by_name.steps == by_json.steps
    with pytest.raises(InvalidArgumentError, match="external_id is not a field"):
        automation.simulate({"event": "deposit", "external_id": "u1"})


def test_a_test_send_takes_the_event_that_was_sent(running: Running) -> None:
    mail = running.workbench().automation("spelt mail").on("deposit").send_email("{{ amount }}", "Hi").save()
    to = {"email": "me@example.com"}
    now, address = datetime.now(UTC), "spelt@example.com"
    by_name = mail.send_test("deposit", to=to, **KEYWORDS | {"occurred_at": now, "email": address})
    by_json = mail.send_test(
        JSON | {"occurredAt": now.isoformat(), "contact": {"externalId": "u1", "email": address}}, to=to
    )
    assert [(message.outcome, message.title) for message in (*by_name, *by_json)] == [("sent", "5")] * 2


def test_a_stored_contact_explains_the_same_event(running: Running) -> None:
    wb = running.workbench()
    gift = wb.automation("spelt gift").on("spelt:deposit").where("amount", eq=5).add_tag("gift").save()
    assert wb.events.send(
        {"event": "spelt:deposit", "contact": {"externalId": "spelt"}, "payload": {"amount": 4}}
    ).accepted
    contact = wb.contact(external_id="spelt")
    [stored] = contact.explain(gift)
    [by_id] = contact.explain(gift, stored.event_id)
    [by_name] = contact.explain(gift, "spelt:deposit", payload={"amount": 5})
    [by_json] = contact.explain(gift, {"event": "spelt:deposit", "payload": {"amount": 5}})
    assert (stored.matched, by_id, by_name.matched, by_name.reasons) == (False, stored, True, by_json.reasons)
    [by_whole] = contact.explain(
        gift, JSON | {"event": "spelt:deposit", "occurredAt": datetime.now(UTC).isoformat()}
    )  # as it is sent, with its contact and key
    assert (by_whole.matched, by_whole.reasons) == (True, by_json.reasons)
    with pytest.raises(InvalidArgumentError, match="payload cannot be changed"):
        contact.explain(gift, stored.event_id, payload={})
