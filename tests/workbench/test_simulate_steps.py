"""Simulations advance through delays, waits, quiet hours and caps on a virtual clock, and show their messages."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.running import Running
from tests.workbench.test_verbs import new, thanks
from tests.workbench.test_verbs_and_settings import CONTACT, winback
from workbench import InvalidArgumentError
from workbench.language.run import State
from workbench.simulate import Simulation

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)


def simulation(**payload: Any) -> Simulation:
    return winback().simulate({"payload": payload}, contact=CONTACT, now=NOW)


def test_a_simulation_runs_to_the_end_until_it_is_advanced() -> None:
    assert simulation(size=1).state is State.COMPLETED
    run = simulation(size=1).advance("1d")
    assert (run.state, run.waiting_at, run.now) == (State.WAITING, "delay_3_days", NOW + timedelta(days=1))
    assert repr(run).startswith(
        "After 1 day: nothing sent or changed yet. Waiting at delay_3_days until 2026-11-23 10:00 UTC."
    )
    assert run.advance("2d").waiting_at == "wait_for_purchase"
    assert run.advance("30d").state is State.COMPLETED


def test_an_event_sent_during_a_wait_counts() -> None:
    waiting = simulation(size=1).advance("3d")
    bought = waiting.send({"event": "purchase", "payload": {"plan": "pro", "size": 2}}, after="1h")
    assert "add_tag_buyer" in bought.path
    assert bought.tags[0] == "buyer"
    assert "send_email" in waiting.advance("2d").path
    assert waiting.waiting_at == "wait_for_purchase"  # the first simulation does not change


def test_an_event_that_does_not_end_the_wait_is_explained() -> None:
    run = simulation(size=1).advance("3d").send({"event": "purchase", "payload": {"plan": "Pro", "size": 2}})
    assert run.waiting_at == "wait_for_purchase"
    assert (
        "purchase did not end the wait at wait_for_purchase, which requires that plan is “pro”, but it is “Pro”, "
        "not “pro”: letter case" in repr(run)
    )
    assert "Why purchase did not end the wait at wait_for_purchase" in run._repr_html_()


def test_quiet_hours_and_caps_follow_the_virtual_clock() -> None:
    night = datetime(2026, 11, 20, 23, tzinfo=UTC)
    automation = (
        new().on("a").quiet_hours("22:00", "08:00").frequency_cap(1, per="1d").send_email("1", "b").send_email("2", "b")
    )
    run = automation.simulate({}, contact=CONTACT, now=night)
    assert run.advance("8h").waiting_at == "send_email"
    morning = run.advance("9h")
    assert [(step.node_id, step.outcome) for step in morning.steps[-2:]] == [
        ("send_email", "sent"),
        ("send_email_2", "skipped"),
    ]
    assert morning.now == night + timedelta(hours=9)


def test_later_events_arrive_at_their_time() -> None:
    bought = {"event": "purchase", "after": "4d", "payload": {"plan": "pro", "size": 2}}
    run = winback().simulate({"payload": {"size": 1}}, contact=CONTACT, now=NOW, events=[bought])
    assert run.advance("3d 23h").waiting_at == "wait_for_purchase"
    assert "add_tag_buyer" in run.advance("4d").path


def test_an_event_that_would_start_another_entry_is_noted() -> None:
    assert "Deposit also starts this automation" in repr(simulation().send("Deposit"))


def test_advancing_does_not_start_an_entry() -> None:
    run = thanks().simulate({"payload": {"amountUsd": 1}}, contact=CONTACT, now=NOW).advance("1d").send("purchase")
    assert (run.matched, run.now) == (False, NOW + timedelta(days=1, seconds=1))


@pytest.mark.parametrize(
    ("go", "words"),
    [
        (lambda run: run.advance("soon"), "not a duration"),
        (lambda run: run.advance(), r"'span'.*\.advance\(\"7d\"\)"),
        (lambda run: run.send(5), "an event is written by its name"),
        (lambda run: run.send({"payload": {}}), "the event has no name: write"),
        (lambda run: run.send({"event": "a", "payload": 1}), "would be refused"),
    ],
)
def test_wrong_calls_raise_an_error_that_shows_the_right_one(go: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        go(simulation())


def test_each_message_is_shown_as_its_receiver_sees_it() -> None:
    automation = (
        new()
        .on("a")
        .send_inapp("Hi", "toast", data={"open": "/home"})
        .send_email("Plain", "as text")
        .send_email("Rich", "<p>{{ name }}</p>")
        .send_webhook("https://a.co/hook", {"n": "{{ n }}"})
    )
    event = {"payload": {"name": "</iframe><script>alert(1)</script>", "n": 1}}
    page = automation.simulate(event, contact=CONTACT, now=NOW)._repr_html_()
    for part in (
        "<code>{&#34;open&#34;:&#34;/home&#34;}</code>",
        '<div class="said">as text</div>',
        "<td>ada@example.com</td>",
        "the sender address of your server",
        '<iframe sandbox="" ',
        "&lt;p&gt;&amp;lt;/iframe&amp;gt;&amp;lt;script",
        "default-src &#39;none&#39;",
        "content-type: application/json",
        "{&#34;n&#34;:1}</pre>",
    ):
        assert part in page
    assert "<script" not in page


def test_with_a_server_the_stored_contact_and_the_sender_are_used(running: Running) -> None:
    wb = running.workbench()
    automation = wb.automation("Going on").on("going:on").delay(days=1).send_email("Hi", "there")
    run = automation.simulate({"contact": {"email": "go@example.com"}})
    assert run.advance("23h").waiting_at == "delay_1_day"
    assert "workbench@localhost" in run.advance("2d")._repr_html_()
