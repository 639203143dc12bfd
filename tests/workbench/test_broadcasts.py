"""Broadcasts from a notebook: preview, send, watch and stop, with a running engine."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.installation import until
from tests.running import Running
from workbench import InvalidArgumentError, Workbench


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def test_a_broadcast_is_previewed_sent_watched_and_stopped(wb: Workbench) -> None:
    wb.events.send("broadcast_joined", external_id="broadcast-ann")
    wb.events.send("broadcast_joined", external_id="broadcast-bob")
    segment = wb.segments.define(
        "broadcast-joined", sql="SELECT contact_id FROM app_events WHERE event = 'broadcast_joined'"
    )
    news = wb.automation("Broadcast news").on_broadcast().add_tag("informed").publish()
    preview = news.preview_send("broadcast-joined")
    assert (preview.contacts, len(preview.sample)) == (2, 2)
    assert repr(preview).startswith("2 contacts as of ")
    sent = preview.send()
    until(lambda: sent.refresh().state == "done", "the engine sends it")
    assert repr(sent) == "Broadcast to broadcast-joined, done: 2 of 2 contacts"
    assert {entry.contact_id for entry in news.entries()} == set(preview.sample)

    planned = news.send_to(segment, at=datetime.now(UTC) + timedelta(days=1))
    assert "planned: 2 contacts on " in repr(planned)
    assert planned.stop().state == "stopped"
    everyone = news.preview_send(everyone=True)
    assert everyone.contacts >= 2
    assert [item.state for item in wb.broadcasts[:2]] == ["stopped", "done"]
    assert "broadcast-joined" in repr(wb.broadcasts)
    with pytest.raises(InvalidArgumentError, match="name a segment"):
        news.send_to()
    with pytest.raises(InvalidArgumentError, match="time zone"):
        news.send_to("broadcast-joined", at=datetime(2030, 1, 1))  # noqa: DTZ001  what is refused
