"""Broadcasts from a notebook: preview, send, watch and stop, with a running engine."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from tests.installation import until
from tests.running import Running
from workbench import InvalidArgumentError, Workbench
from workbench.canvas.widget import Canvas
from workbench.language.lift import LiftGroup


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


@pytest.fixture(scope="module")
def recipients(wb: Workbench, running: Running) -> str:
    """A segment: two contacts that get emails, and one for each reason for which a contact gets none."""
    wb.topics.save("results", "Results")
    names = ("kim", "max", "out", "bounced", "declined")
    for name in names:
        wb.events.send("results_joined", external_id=f"results-{name}", email=f"results-{name}@example.com")
    wb.events.send("results_joined", external_id="results-nobody")
    find = {name: wb.contact(external_id=f"results-{name}") for name in names}
    find["out"].opt_out("email")
    find["declined"].set_preferences(topics={"results": False})
    report = {"type": "bounced", "email": "results-bounced@example.com", "status": "5.1.1"}
    headers = {"authorization": f"Bearer {running.keys['live']}"}
    httpx.post(f"{running.url}/api/v1/bounces", json=report, headers=headers).raise_for_status()
    wb.segments.define("results", sql="SELECT contact_id FROM app_events WHERE event = 'results_joined'")
    return "results"


def test_the_results_of_a_broadcast_are_what_its_preview_said(wb: Workbench, recipients: str) -> None:
    news = wb.automation("Results").on_broadcast().goal("results_bought")
    news = (
        news.send_email("Hi", "b", topic="results", on_missing="skip")
        .send_inapp("Hi", "b", on_missing="skip")
        .publish()
    )
    preview = news.preview_send(recipients)
    assert (preview.contacts, preview.sampled) == (6, 6)
    unreachable = {(item.node_id, item.cause): item.contacts for item in preview.unreachable}
    causes = {"opted_out": 2, "declined_topic": 1, "no_email": 1}
    assert unreachable == {("send_email", c): n for c, n in causes.items()} | {("send_inapp", "no_wallet"): 6}
    assert "send_email does not reach 1 contact: the contact declined the topic" in repr(preview)
    sent = preview.send()
    until(
        lambda: sent.refresh().state == "done" and not {"pending", "running"} & {*sent.results().entries}, "it is sent"
    )
    wb.events.send("results_bought", external_id="results-kim")
    report = sent.results()
    assert (report.counted, report.entries) == (6, {"completed": 6})
    email, inapp = report.messages
    assert (email.sent, email.failed, email.skipped) == (2, 0, causes)
    assert (inapp.sent, inapp.skipped) == (0, {"no_wallet": 6})
    assert report.goal is not None
    assert (report.goal.goal, report.goal.treated, report.goal.lift) == ("results_bought", LiftGroup(6, 1), None)
    assert "6 entries: 6 completed." in repr(report)
    assert "the contact declined the topic: 1" in repr(report)
    assert "reached by 1 of 6 contacts (16.7%)" in report._repr_html_()
    assert tuple(news.stats().messages) == report.messages


def test_clicks_and_bounces_are_in_the_results_of_their_broadcast(
    wb: Workbench, running: Running, recipients: str
) -> None:
    body = "Look: https://example.com/offer"
    news = (
        wb.automation("Clicked").on_broadcast().send_email("Hi", body, track_clicks=True, on_missing="skip").publish()
    )
    first, second = news.send_to(recipients), news.send_to(recipients)
    for sent in (first, second):
        until(lambda sent=sent: sent.results().entries == {"completed": 6}, "it is sent")
    sql = (
        "SELECT m.id, c.external_id FROM messages m JOIN automations a ON a.id = m.automation_id "
        "JOIN contacts c ON c.id = m.contact_id WHERE m.status = 'sent' AND a.name = 'Clicked'"
    )
    owners = dict(wb.sql(sql).rows())
    assert len(owners) == 6
    clicked_id, bounced_id = sorted(owners)[:2]
    for number in range(2):
        wb.events.send(
            "link.clicked",
            external_id=owners[clicked_id],
            payload={"messageId": clicked_id, "url": "https://example.com/offer", "number": number},
        )
    report = {
        "type": "bounced",
        "email": f"{owners[bounced_id]}@example.com",
        "messageId": bounced_id,
        "status": "5.2.2",
    }
    headers = {"authorization": f"Bearer {running.keys['live']}"}
    httpx.post(f"{running.url}/api/v1/bounces", json=report, headers=headers).raise_for_status()
    results = [sent.results().messages[0] for sent in (first, second)]
    assert (sum(item.clicked for item in results), sum(item.bounced for item in results)) == (1, 1)
    assert (sum(item.sent for item in results), sum(item.failed for item in results)) == (5, 1)
    stats, shown = news.stats(), Canvas(news)
    (step,) = stats.messages
    assert (step.sent, step.failed, step.clicked, step.bounced) == (5, 1, 1, 1)
    assert step.skipped == {cause: 2 * number for cause, number in results[0].skipped.items()}
    assert "bounced" in stats._repr_html_()
    shown._poll(news._server)
    counts = shown.counts["nodes"]["send_email"]
    assert counts["figures"] == [("sent", 5), ("clicked", 1), ("bounced", 1), ("skipped", sum(step.skipped.values()))]
    assert ("not sent: the contact has no email address", 2) in counts["messages"]
