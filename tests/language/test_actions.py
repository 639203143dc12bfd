"""The data of a node is read as the action of its kind, or as problems."""

from datetime import time, timedelta
from decimal import Decimal
from typing import Any

import pytest

from workbench.language.actions import (
    MAX_ID_LENGTH,
    MAX_URL,
    MAX_WAIT,
    NODE_KINDS,
    AddTag,
    Branch,
    Collect,
    Condition,
    Delay,
    Exit,
    InvalidAction,
    RemoveTag,
    SendEmail,
    SendInapp,
    SendVia,
    SendWebhook,
    Split,
    TriggerNode,
    UpdateContact,
    WaitForEvent,
    WaitUntil,
    handles_of,
    is_valid_id,
    is_webhook_url,
    longest_wait,
    read_action,
    side_handles,
    templates_in,
)
from workbench.language.filter import Filter
from workbench.language.local_time import MAX_CLOCK_SETBACK

HALVES = [{"handle": "a", "percent": 50}, {"handle": "b", "percent": 50}]
HOOK = "https://example.com/hook"


@pytest.mark.parametrize(
    ("kind", "data", "action"),
    [
        ("app_event", {}, TriggerNode()),
        ("onchain_event", {}, TriggerNode()),
        ("segment_entered", {}, TriggerNode()),
        ("segment_left", {}, TriggerNode()),
        ("broadcast", {}, TriggerNode()),
        ("schedule", {}, TriggerNode()),
        ("send_inapp", {"title": "t", "body": "b", "data": {"k": 1}}, SendInapp("t", "b", {"k": 1})),
        ("send_email", {"subject": "s", "body": "b"}, SendEmail("s", "b")),
        ("send_email", {"subject": "s", "body": "b", "onMissing": "skip"}, SendEmail("s", "b", on_missing="skip")),
        ("send_email", {"subject": "s", "body": "b", "trackClicks": True}, SendEmail("s", "b", track_clicks=True)),
        ("send_webhook", {"url": HOOK}, SendWebhook(HOOK)),
        ("send_webhook", {"url": HOOK, "body": {"a": [1]}}, SendWebhook(HOOK, {"a": [1]})),
        ("send_via", {"connection": "chat", "fields": {"text": "{{ a }}"}}, SendVia("chat", {"text": "{{ a }}"})),
        ("add_tag", {"tag": "vip"}, AddTag("vip")),
        ("remove_tag", {"tag": "vip"}, RemoveTag("vip")),
        ("update_contact", {"attributes": {"tier": "gold"}}, UpdateContact({"tier": "gold"})),
        ("condition", {"filters": [{"path": "a", "operator": "exists"}]}, Condition((Filter("a", "exists"),))),
        ("delay", {"seconds": 60}, Delay(timedelta(minutes=1))),
        ("wait_for_event", {"event": "Paid", "timeoutSeconds": 1}, WaitForEvent("paid", (), timedelta(seconds=1))),
        ("wait_until", {"time": "09:00", "weekdays": [1, 7]}, WaitUntil(time(9), (1, 7))),
        (
            "wait_until",
            {"attribute": "trial_ends", "offsetSeconds": -86_400, "timezoneAttribute": "tz"},
            WaitUntil(date="contact.trial_ends", shift=timedelta(days=-1), zone="tz"),
        ),
        ("collect", {"seconds": 60}, Collect(timedelta(minutes=1))),
        ("collect", {"until": "09:00", "key": "payload.a.b", "max": 5}, Collect(None, time(9), "a.b", 5)),
        ("split", {"branches": HALVES}, Split((Branch("a", 50), Branch("b", 50)))),
        ("exit", {}, Exit()),
    ],
)
def test_each_kind_is_read_as_its_action(kind: str, data: dict[str, Any], action: Any) -> None:
    assert read_action(kind, data, "n") == action


def test_every_kind_has_a_case_above() -> None:
    assert NODE_KINDS == (
        "app_event",
        "onchain_event",
        "segment_entered",
        "segment_left",
        "broadcast",
        "schedule",
        "send_inapp",
        "send_email",
        "send_webhook",
        "send_via",
        "add_tag",
        "remove_tag",
        "update_contact",
        "condition",
        "delay",
        "wait_for_event",
        "wait_until",
        "collect",
        "split",
        "exit",
    )


@pytest.mark.parametrize(
    ("action", "handles"),
    [
        (AddTag("a"), (None,)),
        (Condition(()), ("true", "false")),
        (WaitForEvent("e", (), timedelta(1)), ("matched", "timeout")),
        (WaitUntil(time(9)), (None,)),
        (WaitUntil(date="payload.due"), ("reached", "missed")),
        (Split((Branch("a", 1), Branch("b", 99))), ("a", "b")),
        (Exit(), ()),
        (InvalidAction(()), (None,)),
    ],
)
def test_an_action_has_its_handles(action: Any, handles: tuple[str | None, ...]) -> None:
    assert action.handles == handles


def split(*percents: Any) -> dict[str, Any]:
    return {"branches": [{"handle": str(index), "percent": percent} for index, percent in enumerate(percents)]}


@pytest.mark.parametrize(
    ("kind", "data", "fields"),
    [
        ("teleport", {}, ["n.type"]),
        ("send_email", {"subject": "s"}, ["n.data.body"]),
        ("send_email", {"subject": "{{", "body": "{% do %}"}, ["n.data.subject", "n.data.body"]),
        ("send_email", {"subject": "s", "body": "b", "onMissing": None}, ["n.data.onMissing"]),
        ("send_email", {"subject": "s", "body": "b", "trackClicks": "yes"}, ["n.data.trackClicks"]),
        ("send_webhook", {}, ["n.data.url"]),
        ("send_webhook", {"url": HOOK, "body": ""}, ["n.data.body"]),
        ("send_webhook", {"url": HOOK, "body": {"a": ["{{ x"]}}, ["n.data.body"]),
        ("send_via", {}, ["n.data.connection", "n.data.fields"]),
        ("send_via", {"connection": "Chat", "fields": {"a b": 1}}, ["n.data.connection", "n.data.fields.a b"]),
        ("send_via", {"connection": "chat", "fields": {}, "locales": {"de": {}}}, ["n.data.locales.de"]),
        ("send_via", {"connection": "chat", "fields": {}, "locales": {"de": {"a": 1}}}, ["n.data.locales.de.a"]),
        ("send_via", {"connection": "chat", "fields": {"a": ["{{ x"]}}, ["n.data.fields.a"]),
        ("remove_tag", {"tag": "x" * 65}, ["n.data.tag"]),
        ("update_contact", {}, ["n.data.attributes"]),
        ("update_contact", {"attributes": {}}, ["n.data.attributes"]),
        ("update_contact", {"attributes": dict.fromkeys(map(str, range(51)), 1)}, ["n.data.attributes"]),
        ("update_contact", {"attributes": {"a": None}}, ["n.data.attributes.a"]),
        ("update_contact", {"attributes": {"a": [1]}}, ["n.data.attributes.a"]),
        ("update_contact", {"attributes": {"a": "x" * 1_025}}, ["n.data.attributes.a"]),
        ("update_contact", {"attributes": {"a" * 129: 1}}, ["n.data.attributes"]),
        ("update_contact", {"attributes": {"a": "{{ x"}}, ["n.data.attributes"]),
        ("delay", {}, ["n.data.seconds"]),
        ("delay", {"seconds": 0}, ["n.data.seconds"]),
        ("delay", {"seconds": -1}, ["n.data.seconds"]),
        ("delay", {"seconds": True}, ["n.data.seconds"]),
        ("delay", {"seconds": Decimal("1.5")}, ["n.data.seconds"]),
        ("delay", {"seconds": "60"}, ["n.data.seconds"]),
        ("delay", {"seconds": 10**300}, ["n.data.seconds"]),
        ("wait_for_event", {"event": "a b", "timeoutSeconds": 1}, ["n.data.event"]),
        ("wait_for_event", {"timeoutSeconds": 1}, ["n.data.event"]),
        ("wait_for_event", {"event": "a"}, ["n.data.timeoutSeconds"]),
        ("wait_for_event", {"event": "a", "timeoutSeconds": 1, "filters": [5]}, ["n.data.filters[0]"]),
        ("wait_until", {}, ["n.data.time"]),
        ("wait_until", {"time": "9:00"}, ["n.data.time"]),
        ("wait_until", {"time": "24:00", "weekdays": [0]}, ["n.data.time", "n.data.weekdays"]),
        ("wait_until", {"time": "09:00", "weekdays": []}, ["n.data.weekdays"]),
        ("wait_until", {"time": "09:00", "weekdays": [1, 1]}, ["n.data.weekdays"]),
        ("wait_until", {"time": "09:00", "offsetSeconds": 86_400}, ["n.data.offsetSeconds"]),
        ("wait_until", {"time": "09:00", "attribute": "a", "offsetSeconds": 3_600}, ["n.data.offsetSeconds"]),
        ("wait_until", {"attribute": "a", "offsetSeconds": 367 * 86_400}, ["n.data.offsetSeconds"]),
        ("wait_until", {"attribute": "a,b"}, ["n.data.attribute"]),
        ("wait_until", {"attribute": 5, "timezoneAttribute": ""}, ["n.data.attribute", "n.data.timezoneAttribute"]),
        ("split", {}, ["n.data.branches"]),
        ("split", split(100), ["n.data.branches"]),
        ("split", split(50, 51), ["n.data.branches"]),
        ("split", split(50, 49), ["n.data.branches"]),
        ("split", split(50, "50"), ["n.data.branches[1].percent"]),
        ("split", split(Decimal("33.3"), 67), ["n.data.branches[0].percent"]),
        ("split", {"branches": [HALVES[0], HALVES[0]]}, ["n.data.branches"]),
        ("split", {"branches": [HALVES[0], {"percent": 50}]}, ["n.data.branches[1].handle"]),
        ("split", {"branches": [HALVES[0], 5]}, ["n.data.branches[1].handle"]),
    ],
)
def test_problems_name_their_field(kind: str, data: dict[str, Any], fields: list[str]) -> None:
    action = read_action(kind, data, "n")
    assert isinstance(action, InvalidAction)
    assert [problem.field for problem in action.problems] == fields


@pytest.mark.parametrize(
    ("url", "valid"),
    [
        ("http://a", True),
        ("HTTPS://Example.com:8443/x?y=1#z", True),
        ("https://[2001:db8::1]/x", True),
        ("https://example.com/{{ contact.id | urlencode }}", True),
        ("https://example.com?c={{ contact.id }}&d={% if a %}{{ b }}{% endif %}", True),
        ("https://{{ host }}/x", False),
        ("https://example.com{{ path }}", False),
        ("https://example.com.{{ x }}/", False),
        ("https://user:secret@example.com/", False),
        ("https://example.com\\@evil.com/", False),
        ("https://example.com/a b", False),
        ("https://example.com/\nHost: x", False),
        ("https:///x", False),
        ("https://:80/", False),
        ("//example.com/", False),
        ("file:///etc/passwd", False),
        ("gopher://example.com/", False),
        ("data:text/plain,x", False),
        ("javascript:alert(1)", False),
        (f"https://example.com/{'{{' * 30_000}", False),
    ],
)
def test_k7_a_webhook_has_a_fixed_host_and_uses_http(url: str, valid: bool) -> None:
    assert isinstance(read_action("send_webhook", {"url": url}, "n"), SendWebhook if valid else InvalidAction)


def test_a_body_that_begins_with_a_tag_is_html() -> None:
    assert [SendEmail("s", body).html for body in ("<p>Hi</p>", "\n <!doctype html>", "1 < 2")] == [True, True, False]


def test_templates_in_returns_all_templates_of_an_action() -> None:
    hook = SendWebhook(HOOK, {"a": ["x", 1, {"b": "y"}], "{{ not a text }}": None})
    assert [*templates_in(hook)] == [HOOK, "x", "y"]
    assert [*templates_in(UpdateContact({"a": "x", "b": 1}))] == ["x"]
    assert [*templates_in(SendVia("chat", {"a": ["x"], "b": 1}))] == ["x"]
    assert [*templates_in(SendEmail("s", "b"))] == ["s", "b"]
    assert [*templates_in(AddTag("{{ x }}"))] == []


@pytest.mark.parametrize(
    ("url", "valid"), [("https://a.co/x", True), (f"https://a.co/{'x' * MAX_URL}", False), ("mailto:a@b.co", False)]
)
def test_the_url_of_a_webhook(url: str, valid: bool) -> None:
    assert is_webhook_url(url) is valid


def test_an_id_has_1_to_128_characters() -> None:
    ids = ["a", "a" * MAX_ID_LENGTH, "", "a" * (MAX_ID_LENGTH + 1), 5]
    assert list(map(is_valid_id, ids)) == [True, True, False, False, False]


def test_the_events_of_a_trigger_node() -> None:
    data = {"event": "a", "eventNames": ["b", "a", "", 5, None]}
    assert read_action("app_event", data, "n") == TriggerNode(("a", "b"))
    assert read_action("app_event", {"event": "a", "eventNames": "b"}, "n") == TriggerNode(("a",))


@pytest.mark.parametrize(
    ("kind", "data", "handles"),
    [
        ("split", {"branches": [{"handle": "a"}, {"handle": "a"}, {"handle": ""}, {"handle": 5}, "b"]}, ("a",)),
        ("split", {"branches": "a"}, (None,)),
        ("split", {}, (None,)),
        ("condition", {}, ("true", "false")),
        ("wait_until", {}, (None,)),
        ("wait_until", {"attribute": "a"}, ("reached", "missed")),
        ("delay", {}, (None,)),
        ("exit", {}, ()),
        ("unknown", {}, (None,)),
    ],
)
def test_a_node_has_its_handles_while_it_is_written(kind: str, data: dict[str, Any], handles: tuple[Any, ...]) -> None:
    assert handles_of(kind, data) == handles


def test_an_invalid_split_keeps_its_handles() -> None:
    action = read_action("split", {"branches": [{"handle": "a"}, {"handle": "b"}]}, "n")
    assert isinstance(action, InvalidAction)
    assert action.handles == ("a", "b")


def test_only_a_missed_date_is_a_side_path() -> None:
    assert [side_handles(kind) for kind in ("wait_until", "split", "unknown")] == [("missed",), (), ()]


@pytest.mark.parametrize(
    ("action", "longest"),
    [
        (Delay(timedelta(hours=1)), timedelta(hours=1)),
        (Exit(), timedelta()),
        (Collect(timedelta(hours=3)), timedelta(hours=3)),
        (Collect(clock=time(9)), timedelta(days=1) + MAX_CLOCK_SETBACK),
        (WaitUntil(time(9)), timedelta(days=1) + MAX_CLOCK_SETBACK),
        (WaitUntil(time(9), (1,)), timedelta(days=7) + MAX_CLOCK_SETBACK),
        (WaitUntil(date="contact.birthday"), MAX_WAIT),
    ],
)
def test_the_longest_wait_of_an_action(action: Any, longest: timedelta) -> None:
    assert longest_wait(action) == longest


@pytest.mark.parametrize(
    ("action", "attributes"),
    [
        (WaitUntil(time(9)), {"timezone"}),
        (WaitUntil(date="contact.plan.end", zone="tz"), {"plan", "tz"}),
        (WaitUntil(date="payload.plan.end"), {"timezone"}),
        (Collect(timedelta(hours=3)), set()),
        (Collect(clock=time(9)), {"timezone"}),
    ],
)
def test_the_attributes_on_which_a_wait_depends(action: WaitUntil | Collect, attributes: set[str]) -> None:
    assert action.attributes == attributes


def test_a_message_in_a_locale_has_only_its_texts() -> None:
    email = SendEmail("Hi", "b", locales={"de": {"subject": "Hallo"}})
    assert email.in_locale("de-AT", "en") == (SendEmail("Hallo", "b"), "de")
    assert email.in_locale("fr") == (SendEmail("Hi", "b"), None)
    via = SendVia("chat", {"a": 1, "b": 2}, locales={"de": {"b": 3}, "en": {"b": 4}})
    assert via.in_locale("de", "en") == (SendVia("chat", {"a": 1, "b": 3}), "de")
    assert via.in_locale("en", "fr") == (SendVia("chat", {"a": 1, "b": 4}), "en")
    assert via.in_locale("fr", "fr") == (SendVia("chat", {"a": 1, "b": 2}), "fr")
    assert via.in_locale("fr") == (SendVia("chat", {"a": 1, "b": 2}), None)
