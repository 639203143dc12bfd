"""Contacts can be changed, exported and erased from a notebook, against the real service."""

from datetime import timedelta

import httpx
import polars as pl
import pytest

from tests.inapp.wallet import evm_wallet
from tests.installation import until
from tests.running import Running
from workbench import (
    Contact,
    InvalidArgumentError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    Workbench,
)

SCOPES = "contacts:read,contacts:erase,automations:write,automations:publish,events:read,sql:read,pii:read"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    """A workbench with a key that has all scopes for contacts."""
    return running.workbench_with(SCOPES)


def create_contact(wb: Workbench, name: str) -> Contact:
    wb.events.send("care:seen", email=f"{name}@care.example", payload={"note": name}, attributes={"plan": "pro"})
    return wb.contact(email=f"{name}@care.example")


def test_a_contact_is_opened_by_its_identifiers(wb: Workbench) -> None:
    ann = create_contact(wb, "ann")
    assert (ann.email, ann.attributes, ann.opted_out) == ("ann@care.example", {"plan": "pro"}, ())
    assert wb.contact(ann.id).id == ann.id
    assert "attribute plan  pro" in repr(ann)
    assert ann.id in ann._repr_html_()


def test_without_pii_read_the_address_is_masked(wb: Workbench, running: Running) -> None:
    reader = running.workbench()
    mia = reader.contact(create_contact(wb, "mia").id)
    assert mia.email == "m•••@care.example"
    assert "m•••@care.example (masked: this key lacks pii:read)" in repr(mia)
    frame = reader.sql("SELECT email FROM contacts WHERE id = :id", id=mia.id)
    for shown in (repr(frame), frame._repr_html_()):
        assert "Email addresses are masked, because this key lacks the scope pii:read." in shown
    assert "masked" not in repr(reader.sql("SELECT '•••' AS dots"))


def test_tags_and_opt_outs_are_added_and_removed(wb: Workbench) -> None:
    ben = create_contact(wb, "ben")
    assert ben.tag("vip", "new").untag("new").tags == ("vip",)
    assert ben.opt_out("email", "inapp").opted_out == ("email", "inapp")
    assert ben.opt_in("email").refresh().opted_out == ("inapp",)
    frame = wb.sql("SELECT tags, opted_out FROM contacts WHERE id = :id", id=ben.id)
    assert frame.rows() == [(["vip"], ["inapp"])]


def test_the_address_of_a_bounced_email_is_suppressed_until_the_contact_is_opted_in(
    wb: Workbench, running: Running
) -> None:
    lea = create_contact(wb, "lea")
    report = {"type": "bounced", "email": lea.email, "status": "5.1.1"}
    headers = {"authorization": f"Bearer {running.keys['live']}"}
    httpx.post(f"{running.url}/api/v1/bounces", json=report, headers=headers).raise_for_status()
    assert (lea.refresh().suppressed, lea.opted_out) == ("bounced", ("email",))
    assert "emails suppressed" in repr(lea)
    suppressions = "SELECT channel, cause FROM suppressions WHERE contact_id = :id"
    assert wb.sql(suppressions, id=lea.id).rows() == [("email", "bounced")]
    assert lea.events()["event"][0] == "email.bounced"
    assert lea.opt_in("email").suppressed is None
    assert wb.sql(suppressions, id=lea.id).is_empty()
    assert "suppressed" not in repr(lea)


def test_an_opted_out_contact_is_skipped_and_the_simulation_predicts_it(wb: Workbench) -> None:
    create_contact(wb, "cleo").opt_out("email")
    letter = wb.automation("care letter").on("care:letter").send_email(subject="Hi", body="there").publish()
    event = {"event": "care:letter", "contact": {"email": "cleo@care.example"}}
    foretold = [(step.outcome, step.detail) for step in letter.simulate(event).steps]
    wb.events.send("care:letter", email="cleo@care.example")
    entry = letter.entries().latest.wait()
    assert [(step.outcome, step.detail) for step in entry.steps] == foretold
    assert foretold[-1] == ("skipped", {"cause": "opted_out"})
    assert "the contact has unsubscribed" in entry._repr_html_()
    outcomes = wb.sql(
        "SELECT o.channel, o.outcome, o.reason FROM message_outcomes o JOIN messages m ON m.id = o.message_id"
        " WHERE m.entry_id = :id",
        id=entry.id,
    )
    assert outcomes.rows() == [("email", "skipped", "opted_out")]


def test_all_stored_data_is_exported_and_then_erased(wb: Workbench) -> None:
    dan = create_contact(wb, "dan")
    exported = dan.export()
    assert [event["payload"] for event in exported["events"]] == [{"note": "dan"}]
    assert exported["contact"]["email"] == "dan@care.example"
    assert dan.erase().startswith("Erased")
    assert repr(dan) == f"Contact {dan.id}: erased"
    with pytest.raises(NotFoundError, match="erased"):
        _ = dan.email
    with pytest.raises(NotFoundError, match="contact not found"):
        wb.contact(email="dan@care.example")
    remaining = wb.sql(
        "SELECT e.event, e.payload::text AS payload, c.erased_at IS NULL AS known FROM app_events e"
        " JOIN contacts c ON c.id = e.contact_id WHERE c.id = :id",
        id=dan.id,
    )
    assert remaining.rows() == [("care:seen", "{}", False)]


def test_an_entry_of_an_erased_contact_keeps_no_details(wb: Workbench) -> None:
    fay = create_contact(wb, "fay")
    greeted = wb.automation("care greeted").on("care:greeted").add_tag("greeted").delay(days=1).publish()
    wb.events.send("care:greeted", email="fay@care.example")
    until(lambda: greeted.entries().latest.state.value == "waiting", "it waits")
    fay.erase()
    entry = wb.entry(greeted.entries().latest.id)
    assert (entry.state.value, entry.outcome) == ("cancelled", "contact_erased")
    assert [(step.outcome, step.detail) for step in entry.steps][-2:] == [("tagged", {}), ("waiting", {})]
    assert "None" not in entry._repr_html_()
    assert "until" not in entry._repr_html_()


def test_errors_are_explained_in_words(wb: Workbench, running: Running) -> None:
    eve = create_contact(wb, "eve")
    with pytest.raises(InvalidArgumentError, match="Pass an id or an identifier"):
        wb.contact()
    with pytest.raises(InvalidArgumentError, match="at least one channel"):
        eve.opt_out()
    with pytest.raises(InvalidRequestError, match="must name a channel"):
        eve.opt_out("fax")
    with pytest.raises(PermissionDeniedError, match="contacts:erase"):
        running.workbench().contact(eve.id).erase()


def test_sent_messages_are_counted_by_channel(wb: Workbench) -> None:
    before = dict(wb.usage().select("channel", "messages").iter_rows())
    wb.automation("care push").on("care:push").send_inapp(title="Hi", body="there").publish()
    wb.events.send("care:push", wallet_address=evm_wallet("Ca2e"))
    until(
        lambda: dict(wb.usage().select("channel", "messages").iter_rows())["inapp"] > before["inapp"], "it is counted"
    )
    frame = wb.usage(month="2020-01")
    assert frame.schema == {"month": pl.String, "channel": pl.String, "messages": pl.Int64}
    assert frame.rows() == [("2020-01", channel, 0) for channel in ("inapp", "email", "webhook", "connection")]
    assert "2020-01: 0 messages sent" in repr(frame)
    with pytest.raises(InvalidRequestError, match="month: must be a month, like 2026-11"):
        wb.usage(month="November")


def test_the_history_shows_old_and_new_values_with_their_causes(wb: Workbench) -> None:
    eve = create_contact(wb, "eve")
    assert eve.history().height == 0
    wb.events.send("care:seen", email="eve@care.example", attributes={"plan": "max", "seats": 3})
    eve.tag("vip")
    history = eve.history()
    assert history.select("field", "old", "new", "cause").rows() == [
        ("tags", "[]", '["vip"]', "person"),
        ("attributes.seats", None, "3", "event"),
        ("attributes.plan", '"pro"', '"max"', "event"),
    ]
    assert "History: 3 changes" in repr(history)
    assert eve.history(limit=1).rows() == history.rows()[:1]
    earlier = "SELECT metadata ->> 'plan', tags FROM contacts_at(:moment) WHERE id = :id"
    moment = history["at"].to_list()[-1] - timedelta(microseconds=1)
    assert wb.sql(earlier, moment=moment, id=eve.id).rows() == [("pro", [])]
