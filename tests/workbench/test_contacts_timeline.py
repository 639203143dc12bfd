"""A contact in a notebook shows its fields, its timeline and its identity conflicts."""

from datetime import UTC, datetime

import polars as pl

from tests.installation import until
from tests.running import Running
from workbench import Contact, Workbench


def create_contact(wb: Workbench) -> Contact:
    """Return a contact with two events, an entry, a message, and an external id that belongs to another contact."""
    wb.automation("timeline welcome").on("timeline:signup").send_inapp(title="Hi", body="there").publish()
    wb.events.send("timeline:signup", wallet_address="0x713e112e", payload={"n": 1}, attributes={"plan": "pro"})
    wb.events.send("timeline:other", external_id="timeline-other")
    wb.events.send("timeline:step", wallet_address="0x713e112e", external_id="timeline-other")
    contact = wb.contact(wallet_address="0x713e112e")
    until(lambda: "message" in contact.timeline["kind"].to_list(), "the message is there")
    return contact


def test_a_contact_displays_its_fields_and_timeline(running: Running) -> None:
    contact = create_contact(running.workbench())
    timeline = contact.timeline
    assert timeline.schema["at"] == pl.Datetime("us", "UTC")
    assert sorted(timeline["kind"]) == ["conflict", "entry", "event", "event", "message"]
    assert timeline["at"].is_sorted(descending=True)
    events = contact.events()
    assert events.select("event", "payload").rows() == [("timeline:step", "{}"), ("timeline:signup", '{"n":1}')]
    assert events["occurred_at"][0] < datetime.now(UTC)
    assert contact.events(limit=1).height == 1
    for shown in (repr(contact), contact._repr_html_()):
        assert "2 events, 1 entry, 1 message, 1 identity conflict" in shown
        assert "sent timeline:signup" in shown
        assert "contained the external id of contact" in shown
        assert "plan" in shown
    assert "<table" in timeline._repr_html_()
