"""Broadcasts from a notebook: preview, send, watch and stop, with a running engine."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.installation import until
from tests.running import Running
from workbench import InvalidArgumentError, Workbench


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def test_contacts_of_the_segment_without_texts_in_their_locale_are_counted(wb: Workbench) -> None:
    for name, locale in (("one", "pt_BR"), ("two", "de")):
        wb.events.send("broadcast_locales", external_id=f"broadcast-{name}", attributes={"tongue": locale})
    sql = "SELECT contact_id FROM app_events WHERE event = 'broadcast_locales'"
    wb.segments.define("broadcast-locales", sql=sql)
    german = {"de": {"title": "Hallo", "body": "b"}}
    news = wb.automation("Broadcast locales").on_segment_entered("broadcast-locales").locale_attribute("tongue")
    texts, addresses = news.send_inapp("Hi", "b", locales=german).check()
    assert texts.message == (
        "has no texts in the locales of 1 of the 2 contacts of the segment 'broadcast-locales': pt-BR (1)."
        " They get the default texts; set defaultLocale if that is their locale"
    )
    assert addresses.message.startswith("is skipped for 2 of the 2 contacts of the segment 'broadcast-locales': wallet")
    sent = wb.automation("Broadcast locales").on_broadcast().locale_attribute("tongue")
    preview = sent.send_inapp("Hi", "b", locales=german).publish().preview_send("broadcast-locales")
    assert [warning.message for warning in preview.warnings] == [texts.message, addresses.message]
    assert f"send_inapp {texts.message}" in repr(preview)


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
