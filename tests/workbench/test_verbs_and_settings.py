"""The verbs write waits, splits, messages, contact data, and the settings of an automation."""

from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inapp.wallet import evm_wallet
from tests.language.strategies import sound_graphs
from tests.workbench.test_verbs import branching, edges, new
from workbench import Automation, InvalidArgumentError
from workbench.duration import seconds_of
from workbench.language.channel import EmailMessage
from workbench.language.check import errors
from workbench.language.codec import normalize
from workbench.language.run import State

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
CONTACT = {"walletAddress": evm_wallet("A11CE"), "email": "ada@example.com"}


def winback() -> Automation:
    return (
        new("Win back")
        .on("deposit")
        .delay(days=3)
        .wait_for("purchase", within="2d", where={"plan": "pro", "size": {"is_in": [1, 2]}})
        .then(lambda b: b.add_tag("buyer"))
        .otherwise(lambda b: b.send_email("Miss you", "<p>Come back</p>"))
        .split({"a": 50, "b": 50})
        .branch("b", lambda b: b.send_webhook("https://example.com", {"size": "{{ size }}"}))
        .add_tag("done")
    )


def node(automation: Automation, number: int = -1) -> dict[str, Any]:
    written = automation.to_json()["graph"]["nodes"][number]
    return {"id": written["id"], "type": written["type"]} | {
        key: written["data"][key] for key in written["data"] if key != "actionType"
    }


@pytest.mark.parametrize(
    ("write", "written"),
    [
        (
            lambda a: a.send_email("s", "b"),
            {"id": "send_email", "type": "send_email", "subject": "s", "body": "b", "onMissing": "skip"},
        ),
        (
            lambda a: a.send_webhook("https://a.co"),
            {"id": "send_webhook", "type": "send_webhook", "url": "https://a.co", "onMissing": "skip"},
        ),
        (
            lambda a: a.send_webhook("https://a.co", body=[1], on_missing="fail"),
            {"id": "send_webhook", "type": "send_webhook", "url": "https://a.co", "body": [1]},
        ),
        (lambda a: a.remove_tag("VIP"), {"id": "remove_tag_vip", "type": "remove_tag", "tag": "VIP"}),
        (
            lambda a: a.update_contact({"a-b": 1}, tier="gold"),
            {"id": "update_contact", "type": "update_contact", "attributes": {"a-b": 1, "tier": "gold"}},
        ),
        (lambda a: a.delay(days=3), {"id": "delay_3_days", "type": "delay", "seconds": 259_200}),
        (lambda a: a.delay(hours=1, minutes=30), {"id": "delay_1_hour_30_minutes", "type": "delay", "seconds": 5_400}),
        (lambda a: a.delay("90s"), {"id": "delay_1_minute_30_seconds", "type": "delay", "seconds": 90}),
        (lambda a: a.delay(timedelta(weeks=1)), {"id": "delay_7_days", "type": "delay", "seconds": 604_800}),
        (
            lambda a: a.wait_for("Purchase", within="1h", where={"a": 1}),
            {
                "id": "wait_for_purchase",
                "type": "wait_for_event",
                "event": "purchase",
                "timeoutSeconds": 3_600,
                "filters": [{"path": "a", "operator": "eq", "value": 1}],
            },
        ),
        (
            lambda a: a.wait_until("09:00", weekdays=["mon", "fri"]),
            {"id": "wait_until", "type": "wait_until", "time": "09:00", "weekdays": [1, 5]},
        ),
        (
            lambda a: a.wait_until("09:00", date="contact.trial_ends", shift="-3d", timezone="tz"),
            {
                "id": "wait_until_trial_ends",
                "type": "wait_until",
                "time": "09:00",
                "attribute": "contact.trial_ends",
                "offsetSeconds": -259_200,
                "timezoneAttribute": "tz",
            },
        ),
        (
            lambda a: a.wait_until(date="payload.due", shift=timedelta(hours=2)),
            {"id": "wait_until_payload_due", "type": "wait_until", "attribute": "payload.due", "offsetSeconds": 7_200},
        ),
        (
            lambda a: a.collect("2h", key="orderId", max=3),
            {"id": "collect", "type": "collect", "seconds": 7_200, "key": "orderId", "max": 3},
        ),
        (lambda a: a.collect(until="18:00"), {"id": "collect", "type": "collect", "until": "18:00"}),
        (
            lambda a: a.split({"a": 30, "b": 70}),
            {
                "id": "split",
                "type": "split",
                "branches": [{"handle": "a", "percent": 30}, {"handle": "b", "percent": 70}],
            },
        ),
    ],
)
def test_each_verb_writes_the_node_of_the_design(write: Any, written: dict[str, Any]) -> None:
    assert node(write(new().on("deposit"))) == written


@pytest.mark.parametrize(
    ("write", "name", "written"),
    [
        (lambda a: a.reentry("once"), "reentry", {"policy": "once"}),
        (lambda a: a.reentry(every="7d"), "reentry", {"policy": "once_per", "days": 7}),
        (lambda a: a.reentry("once").reentry("after_exit"), "reentry", {"policy": "not_while_running"}),
        (
            lambda a: a.goal("Paid", where={"a": {"exists": True}}),
            "goal",
            {"event": "paid", "filters": [{"path": "a", "operator": "exists"}]},
        ),
        (
            lambda a: a.quiet_hours("22:00", "08:00"),
            "quietHours",
            {"from": "22:00", "to": "08:00", "timezoneAttribute": "timezone"},
        ),
        (lambda a: a.frequency_cap(3, per="1d"), "frequencyCap", {"messages": 3, "seconds": 86_400}),
        (
            lambda a: a.frequency_cap(1, per="day", timezone="tz"),
            "frequencyCap",
            {"messages": 1, "per": "day", "timezoneAttribute": "tz"},
        ),
        (lambda a: a.goal("paid").holdout(10), "holdout", 10),
        (lambda a: a.timezone("Europe/Zurich"), "timezone", "Europe/Zurich"),
    ],
)
def test_a_rule_is_a_setting_of_the_graph(write: Any, name: str, written: dict[str, Any]) -> None:
    automation = write(new().on("deposit")).add_tag("x")
    assert automation.to_json()["graph"]["settings"][name] == written
    assert automation.check() == ()


def test_settings_combine_and_round_trip() -> None:
    automation = (
        winback()
        .reentry("once")
        .goal("purchase")
        .quiet_hours("22:00", "08:00", timezone="tz")
        .frequency_cap(1, per="1w")
        .holdout(10)
    )
    payload = automation.to_json()
    assert list(payload["graph"]["settings"]) == ["reentry", "goal", "quietHours", "frequencyCap", "holdout"]
    assert Automation.from_json(payload).to_json() == payload
    assert "settings" not in automation.on("trade").to_json()["graph"]
    assert not errors(automation.check())


def test_waits_and_splits_branch_and_join() -> None:
    assert edges(winback()) == {
        ("trigger", None, "delay_3_days"),
        ("delay_3_days", None, "wait_for_purchase"),
        ("wait_for_purchase", "matched", "add_tag_buyer"),
        ("wait_for_purchase", "timeout", "send_email"),
        ("add_tag_buyer", None, "split"),
        ("send_email", None, "split"),
        ("split", "a", "add_tag_done"),
        ("split", "b", "send_webhook"),
        ("send_webhook", None, "add_tag_done"),
    }


def test_both_handles_of_a_wait_without_branches_lead_to_the_next_step() -> None:
    automation = new().on("a").wait_for("b", within="1h").add_tag("c")
    assert edges(automation) >= {("wait_for_b", "matched", "add_tag_c"), ("wait_for_b", "timeout", "add_tag_c")}


def test_steps_after_a_date_are_for_contacts_that_reach_it() -> None:
    dated = new().on("a").wait_until(date="contact.ends")
    only = dated.add_tag("c")
    assert edges(only) == {("trigger", None, "wait_until_ends"), ("wait_until_ends", "reached", "add_tag_c")}
    assert edges(Automation.from_json(dated.to_json()).add_tag("c")) == edges(only)
    both = dated.otherwise(lambda b: b).add_tag("c")
    assert edges(both) == {*edges(only), ("wait_until_ends", "missed", "add_tag_c")}


def test_branches_can_be_written_in_any_order() -> None:
    automation = new().on("a").wait_for("b", within="1h").otherwise(lambda b: b.exit()).then(lambda b: b.add_tag("c"))
    assert edges(automation) >= {("wait_for_b", "matched", "add_tag_c"), ("wait_for_b", "timeout", "exit")}


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda a: a.delay(), "not a duration"),
        (lambda a: a.delay("soon"), "not a duration"),
        (lambda a: a.delay(3), "not a duration"),
        (lambda a: a.delay(days=-1), "not a duration"),
        (
            lambda a: a.wait_for("b"),
            r"'within'.*\.wait_for\(\"purchase\", within=\"2d\"\).*\.wait_for_entry\(receipt\)",
        ),
        (lambda a: a.wait_for("two words", within="1d"), "not an event name"),
        (lambda a: a.wait_for("b", within="1d", where="x"), "write"),
        (lambda a: a.wait_for("b", within="1d", where={"a": {"is_in": "x"}}), "takes a list"),
        (lambda a: a.add_tag("x").then(lambda b: b), r"\.then\(…\) comes right after \.wait_for"),
        (lambda a: a.wait_for("b", within="1d").then(lambda b: b).then(lambda b: b), "comes right after"),
        (lambda a: a.wait_for("b", within="1d").add_tag("x").otherwise(lambda b: b), "comes right after"),
        (lambda a: a.split({"a": 100}).branch("b", lambda b: b), "with a branch 'b'"),
        (lambda a: a.split(["a", "b"]), "is written like"),
        (lambda a: a.split({"a": 50, "b": 50}).branch("a", "x"), "is a function"),
        (lambda a: a.reentry(every="3651d"), "reentry.days must be"),
        (lambda a: a.reentry(every="12h"), "must be whole days"),
        (lambda a: a.reentry(), "write one of"),
        (lambda a: a.timezone("Zurich"), "timezone must be the name of a time zone"),
        (lambda a: a.wait_until("09:00", weekdays=["monday"]), "weekdays has 'monday'"),
        (lambda a: a.wait_until(date="contact.a", shift="3"), "shift='3' is not a duration"),
        (lambda a: a.quiet_hours("22", "08:00"), "quietHours.from must be a time of day"),
        (lambda a: a.quiet_hours("22:00", "22:00"), "must differ"),
        (lambda a: a.frequency_cap(0, per="1d"), "frequencyCap.messages must be"),
        (lambda a: a.frequency_cap(1, per="1d", timezone="tz"), 'has no effect without per="day"'),
        (lambda a: a.holdout(60), "holdout must be a whole percentage from 1 to 50"),
        (lambda a: a.goal("two words"), "not an event name"),
        (lambda a: new().reentry("once"), "start with the event"),
        (lambda a: a.when("a", eq=1).reentry("once"), r"write \.then"),
        (lambda a: a.wait_for("b", within="1d").then(lambda b: b.reentry("once")), "method not found: .reentry"),
    ],
)
def test_wrong_calls_raise_an_error_that_shows_the_right_one(write: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        write(new().on("deposit"))


def test_check_reports_percentages_that_do_not_sum_to_100() -> None:
    (remark,) = errors(new().on("a").split({"a": 50, "b": 49}).add_tag("x").check())[:1]
    assert (remark.node_id, remark.message) == ("split", "the percentages sum to 99, not to 100")


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        ("30s", 30),
        ("15m", 900),
        ("2h", 7_200),
        ("3d", 259_200),
        ("1w", 604_800),
        ("1h 30m", 5_400),
        ("1.5H", 5_400),
        ("3 days", 259_200),
        ("1 Hour 30 minutes", 5_400),
        (timedelta(days=1), 86_400),
    ],
)
def test_durations_are_parsed(span: Any, seconds: int) -> None:
    assert seconds_of(span, "x") == seconds


@pytest.mark.parametrize("span", ["", "d", "3", "-1d", "1y", "3 months", "0s", "9" * 400 + "d", None, 5, timedelta(0)])
def test_invalid_durations_are_refused(span: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="not a duration"):
        seconds_of(span, "x")


def test_a_simulation_passes_delays_and_shows_the_time_of_each_step() -> None:
    simulation = winback().simulate({"payload": {"size": 1}}, contact=CONTACT, now=NOW)
    assert simulation.state is State.COMPLETED
    assert isinstance(simulation.messages[0], EmailMessage)
    assert "delay_3_days: waited (+3 days)" in repr(simulation)
    assert "send_email: message sent (+5 days)" in repr(simulation)
    page = simulation._repr_html_()
    for words in ("+3 days", "delay_3_days", "timed out", "email to ada@example.com", "until 2026-11-25 10:00 UTC"):
        assert words in page


def test_a_later_event_takes_the_other_branch() -> None:
    bought = {"event": "purchase", "after": "4d", "payload": {"plan": "pro", "size": 2}}
    simulation = winback().simulate({"payload": {"size": 1}}, contact=CONTACT, now=NOW, events=[bought])
    assert "add_tag_buyer" in simulation.path
    assert simulation.headline().startswith("Would ")


def test_a_later_event_of_the_same_moment_ends_a_wait() -> None:
    """`after="0s"`: an event of the same batch, which comes after the one that starts the entry."""
    automation = (
        new()
        .on("deposit")
        .wait_for("paid", within="1d")
        .then(lambda b: b.add_tag("paid"))
        .otherwise(lambda b: b.exit())
    )
    simulation = automation.simulate({}, contact=CONTACT, now=NOW, events=[{"event": "paid", "after": "0s"}])
    assert simulation.tags == ("paid",)
    assert {step.at for step in simulation.steps} == {NOW}


def test_changes_to_the_contact_are_in_the_headline() -> None:
    automation = new().on("a").update_contact(tier="gold").remove_tag("lead")
    simulation = automation.simulate({}, contact=CONTACT, now=NOW)
    assert simulation.headline() == "Would remove the tag “lead” and set tier"
    assert (simulation.removed_tags, simulation.attributes) == (("lead",), {"tier": "gold"})


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ("x", "a later event is written like"),
        ({"event": "b"}, "a later event is written like"),
        ({"event": "b", "after": "soon"}, "not a duration"),
        ({"event": "b", "after": "400d"}, r"events\[0\]\.afterSeconds"),
        ({"event": "b", "after": "1d", "payload": 1}, r"events\[0\]\.event\.payload"),
        ({"event": "b", "after": "1d", "payload": {"a": object()}}, "JSON"),
    ],
)
def test_an_invalid_later_event_is_refused(later: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        winback().simulate({}, contact=CONTACT, now=NOW, events=[later])


def test_an_automation_with_settings_is_described_in_sentences() -> None:
    sentences = (
        winback()
        .reentry(every="7d")
        .goal("purchase")
        .quiet_hours("22:00", "08:00")
        .frequency_cap(3, per="1d")
        .describe()
    )
    assert sentences == (
        "When a deposit event arrives:\n"
        "  (once in 7 days per contact)\n"
        "  (until purchase)\n"
        "  (quiet from 22:00 to 08:00)\n"
        "  (at most 3 messages in 1 day)\n"
        "  • Wait 3 days.\n"
        "  • Wait up to 2 days for purchase, where plan is “pro” and size is one of 1 or 2. If received:\n"
        "    • Add the tag “buyer”.\n"
        "    Otherwise:\n"
        "    • Send the email “Miss you” if nothing is missing: “<p>Come back</p>”.\n"
        "  • Split: 50 % to “a”:\n"
        "    • Nothing more.\n"
        "    50 % to “b”:\n"
        '    • Post to https://example.com if nothing is missing with {"size": "{{ size }}"}.\n'
        "  • Add the tag “done”."
    )


def test_the_largest_numbers_of_rules_are_read_back() -> None:
    automation = winback().reentry(every="3650d").frequency_cap(1_000, per="366d")
    assert "(once in 3650 days per contact)\n  (at most 1000 messages in 366 days)" in automation.describe()
    assert Automation.from_sentences(automation.describe(), name=automation.name).to_json() == automation.to_json()


@pytest.mark.parametrize(
    ("timezone", "rule"),
    [
        (None, "(at most 1 message per calendar day)"),
        ("tz", "(at most 1 message per calendar day, in the time zone of tz)"),
    ],
)
def test_a_cap_by_day_is_read_back(timezone: str | None, rule: str) -> None:
    automation = winback().frequency_cap(1, per="day", timezone=timezone)
    assert rule in automation.describe()
    assert Automation.from_sentences(automation.describe(), name=automation.name).to_json() == automation.to_json()


@given(sound_graphs(), st.text(max_size=20))
def test_any_publishable_graph_can_be_drawn_described_and_simulated(graph: dict[str, Any], name: str) -> None:
    payload = {"name": name, "triggerSpec": {"type": "app_event"}, "graph": normalize(graph)}
    automation = Automation.from_json(payload)
    assert automation.to_json() == payload
    ElementTree.fromstring(automation.svg())
    assert automation.describe()
    simulation = automation.simulate({"event": "paid", "contact": {"externalId": "u"}}, now=NOW)
    assert simulation._repr_html_()
    assert repr(simulation)


def test_the_picture_labels_every_handle_and_every_delay() -> None:
    picture = winback().svg()
    for words in ("Event received", "Timed out", "a 50 %", "b 50 %", "3 days", "up to 2 days"):
        assert words in picture
    assert "yes" in branching().svg()
