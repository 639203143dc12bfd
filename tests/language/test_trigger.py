"""Triggers match events by name and filters (docs/contract.md 2.7 and 4.7.1 to 4.7.4)."""

from typing import Any

import pytest

from tests.language.strategies import NOW
from workbench.language.codec import decode, encode
from workbench.language.event import Event, Identifiers
from workbench.language.filter import Filter
from workbench.language.problem import Problem
from workbench.language.trigger import (
    Trigger,
    check_sample,
    containment_patterns,
    fires,
    flat_context,
    needs_email,
    read_later_event,
    read_sample,
    read_trigger,
)

WHO = Identifiers("0xa", "ann@b.co", "u1", "0xA")


def problems(spec: Any) -> list[str]:
    problems = read_trigger(spec)
    assert isinstance(problems, tuple), problems
    return [problem.field for problem in problems]


@pytest.mark.parametrize("alias", ["app_event", "custom_event", "app-event", "custom-event", "appevent"])
def test_i5_aliases_all_mean_app_event(alias: str) -> None:
    assert read_trigger({"type": alias, "event": "Paid"}) == Trigger(frozenset({"paid"}))


@pytest.mark.parametrize("kind", [None, "", "App_Event", "onchain", 5, [], {}, True, "\0"])
def test_other_types_are_refused(kind: Any) -> None:
    assert problems({"type": kind, "event": "paid"})[0] in ("triggerSpec.type", "triggerSpec")


@pytest.mark.parametrize("spec", [None, [], "app_event", 5])
def test_a_trigger_is_an_object(spec: Any) -> None:
    assert problems(spec) == ["triggerSpec"]


def test_names_come_from_both_fields_in_lower_case() -> None:
    trigger = read_trigger({"type": "app_event", "event": "Paid", "eventNames": ["Refund", "paid"]})
    assert trigger == Trigger(frozenset({"paid", "refund"}))


@pytest.mark.parametrize("spec", [{}, {"event": None, "eventNames": None}, {"eventNames": []}])
def test_a_trigger_without_names_is_the_wildcard(spec: dict[str, Any]) -> None:
    trigger = read_trigger({"type": "app_event"} | spec)
    assert trigger == Trigger()
    assert isinstance(trigger, Trigger)
    assert (trigger.type, trigger.is_wildcard) == ("app_event", True)
    assert not Trigger(frozenset({"paid"})).is_wildcard
    assert fires(trigger, "anything", {}, NOW)


def test_e3_a_name_matches_whatever_its_case() -> None:
    trigger = read_trigger({"type": "app_event", "event": "First_Deposit"})
    assert isinstance(trigger, Trigger)
    assert fires(trigger, "first_deposit", {}, NOW)
    assert not fires(trigger, "deposit", {}, NOW)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"event": 5}, "triggerSpec.event"),
        ({"eventNames": "paid"}, "triggerSpec.eventNames"),
        ({"eventNames": ["paid", 5]}, "triggerSpec.eventNames"),
        ({"eventNames": [""]}, "triggerSpec.eventNames"),
        ({"filters": {}}, "triggerSpec.filters"),
        ({"filters": [5]}, "triggerSpec.filters[0]"),
        ({"filters": [{"operator": "eq", "value": 1}]}, "triggerSpec.filters[0].path"),
        ({"filters": [{"path": "", "operator": "eq", "value": 1}]}, "triggerSpec.filters[0].path"),
        ({"filters": [{"path": "a", "operator": 5, "value": 1}]}, "triggerSpec.filters[0].operator"),
        ({"filters": [{"path": "a", "operator": "eq"}]}, "triggerSpec.filters[0].value"),
        ({"filters": [{"path": "a", "operator": "exists"}, {"path": []}]}, "triggerSpec.filters[1].path"),
        ({"filters": [{"path": "a\0", "operator": "exists"}]}, "triggerSpec"),
    ],
)
def test_every_problem_is_named(spec: dict[str, Any], field: str) -> None:
    assert problems({"type": "app_event"} | spec) == [field]


def test_an_empty_name_is_the_wildcard_and_is_known_as_such() -> None:
    trigger = read_trigger({"type": "app_event", "event": ""})
    assert trigger == Trigger(empty_name=True)
    assert isinstance(trigger, Trigger)
    assert fires(trigger, "anything", {}, NOW)


def test_an_unknown_operator_needs_no_value() -> None:
    trigger = read_trigger({"type": "app_event", "filters": [{"path": "a", "operator": "gt"}]})
    assert trigger == Trigger(filters=(Filter("a", "gt"),))


def test_null_is_a_value_and_exists_needs_no_value() -> None:
    filters = [{"path": "a", "operator": "eq", "value": None}, {"path": "b", "operator": "exists"}]
    trigger = read_trigger({"type": "app_event", "filters": filters})
    assert trigger == Trigger(filters=(Filter("a", "eq", None), Filter("b", "exists", None)))


def test_e23_an_unknown_operator_is_kept_and_always_passes() -> None:
    trigger = read_trigger({"type": "app_event", "filters": [{"path": "a", "operator": "gt", "value": 5}]})
    assert isinstance(trigger, Trigger)
    assert fires(trigger, "paid", {}, NOW)


def test_the_flat_context_has_the_payload_and_the_built_ins() -> None:
    assert flat_context("paid", "c1", WHO, {"amount": 5}) == {
        "event": "paid",
        "contactId": "c1",
        "walletAddress": "0xa",
        "email": "ann@b.co",
        "externalId": "u1",
        "amount": 5,
    }


def test_e22_a_payload_key_overrides_the_built_in() -> None:
    payload: dict[str, Any] = {"event": "mine", "contactId": None, "email": 5, "walletAddress": [], "externalId": {}}
    assert flat_context("paid", "c1", WHO, payload) == payload


def test_an_unknown_built_in_is_missing() -> None:
    assert flat_context("paid", "c1", Identifiers(), {}) == {"event": "paid", "contactId": "c1"}


def test_all_filters_of_a_trigger_must_pass() -> None:
    trigger = Trigger(frozenset({"paid"}), (Filter("amount", "eq", 5), Filter("email", "exists")))
    assert needs_email(trigger)
    assert fires(trigger, "paid", {"amount": 5, "email": "a@b.co"}, NOW)
    assert not fires(trigger, "paid", {"amount": 5}, NOW)
    assert not fires(trigger, "refund", {"amount": 5, "email": "a@b.co"}, NOW)


CONTRACT = "0x" + "ab" * 20
LOGS = {
    "type": "onchain_event",
    "chainId": 1,
    "contract": CONTRACT,
    "signature": "Transfer(address from,address to,uint256 value)",
    "walletArg": "to",
    "confirmations": 3,
    "createContacts": True,
}


def read(spec: dict[str, Any]) -> Trigger:
    trigger = read_trigger(spec)
    assert isinstance(trigger, Trigger), trigger
    return trigger


def test_what_a_trigger_for_events_says_about_itself() -> None:
    trigger = read({"type": "app_event", "eventNames": ["paid", "Bought", "no name"], "where": "a > 1"})
    assert (trigger.type, trigger.confirmations, trigger.creates_contacts) == ("app_event", 0, False)
    assert trigger.shown_values == {"events": ["bought", "no name", "paid"], "filters": trigger.filters}
    assert trigger.shown_names == ("bought", "no name", "paid")
    assert trigger.awaitable_names == ("bought", "paid")
    assert trigger.concerns({}, None)
    assert trigger.payload_of({"args": {}}, None) == {"args": {}}
    assert not trigger.continues(trigger)


def test_what_a_trigger_for_logs_says_about_itself() -> None:
    trigger = read(LOGS)
    assert (trigger.type, trigger.confirmations, trigger.creates_contacts) == ("onchain_event", 3, True)
    assert trigger.shown_values == {
        "events": [],
        "filters": (),
        "chainId": 1,
        "contract": CONTRACT,
        "signature": "Transfer",
        "walletArg": "to",
        "confirmations": 3,
        "createContacts": True,
    }
    assert trigger.shown_names == trigger.awaitable_names == (f"{CONTRACT}:Transfer",)


def test_what_a_trigger_for_a_segment_says_about_itself() -> None:
    trigger = read({"type": "segment_left", "segment": "vip"})
    assert (trigger.type, trigger.confirmations, trigger.creates_contacts) == ("segment_left", 0, False)
    assert trigger.shown_values == {"events": [], "filters": (), "segment": "vip"}
    assert trigger.shown_names == ("segment_left",)
    assert trigger.concerns({}, None)


@pytest.mark.parametrize(
    ("later", "continues"),
    [
        (LOGS, True),
        (LOGS | {"walletArg": "from", "confirmations": 0}, True),
        (LOGS | {"chainId": 2}, False),
        ({"type": "app_event"}, False),
    ],
)
def test_a_version_continues_an_earlier_one_that_follows_the_same_logs(later: dict[str, Any], continues: bool) -> None:
    assert read(later).continues(read(LOGS)) is continues
    assert read(LOGS).continues(read(later)) is continues


@pytest.mark.parametrize(
    ("to", "wallet", "concerns"),
    [
        ("0xa", "0xa", True),
        ("0xa", "0xb", False),
        ("0xa", None, False),
        (None, None, False),
        ("0x" + "0" * 40,) * 2 + (False,),
    ],
)
def test_a_log_concerns_the_wallet_in_its_parameter(to: str | None, wallet: str | None, concerns: bool) -> None:
    assert read(LOGS).concerns({"args": {"to": to, "from": "0xb"}}, wallet) is concerns


def test_a_log_has_the_parameters_of_the_trigger_that_sees_it() -> None:
    stored = {"chainId": 1, "signature": "?", "args": {"to": "0xa", "receiver": "0xa"}}
    assert read(LOGS).payload_of(stored, "1:0x") == {"chainId": 1, "to": "0xa"}
    assert read({"type": "app_event"}).payload_of(stored, "1:0x") == {"chainId": 1, "to": "0xa", "receiver": "0xa"}
    assert read(LOGS).payload_of(stored, None) is stored


WHO_SENT = {"contact": {"externalId": "u1"}}
SECOND_US = 1_000_000
WEEK_US = 7 * 86_400 * SECOND_US


@pytest.mark.parametrize(("now_us", "is_read"), [(8 * 86_400 * SECOND_US, True), (0, False)])
def test_a_sample_cannot_have_occurred_later_than_now(now_us: int, is_read: bool) -> None:
    described = encode({"event": "paid", "occurredAt": "1970-01-09T00:00:00Z", **WHO_SENT})
    assert isinstance(read_sample(described, Trigger(), now_us), Event) is is_read


def test_a_later_event_is_read_as_posted_or_by_the_name_of_a_log() -> None:
    event = read_later_event({"event": "Paid", "payload": {"a": 1}, **WHO_SENT}, 0)
    assert isinstance(event, Event)
    assert (event.name, event.identifiers.external_id, decode(event.payload)) == ("paid", "u1", {"a": 1})
    name = f"0x{'AB' * 20}:Transfer"
    assert read_later_event({"event": name, "payload": {"a": 1}}, 0) == Event(
        name.lower(), Identifiers(), payload=b'{"a":1}'
    )
    assert read_later_event({"event": name}, 0) == Event(name.lower(), Identifiers(), payload=b"{}")
    for refused in ({"event": name, "payload": 5}, {"event": 5, **WHO_SENT}, {"payload": {}}):
        assert isinstance(read_later_event(refused, 0), tuple)


def test_a_later_event_cannot_have_occurred_later_than_it_is_received() -> None:
    described = {"event": "paid", "occurredAt": "1970-01-09T00:00:00Z", **WHO_SENT}
    assert isinstance(read_later_event(described, 8 * 86_400 * SECOND_US), Event)
    assert isinstance(read_later_event(described, 0), tuple)


def test_a_sample_is_checked_for_any_trigger_and_any_time() -> None:
    assert check_sample({"event": "paid", "occurredAt": "1970-01-01T00:00:00Z", **WHO_SENT}, 9 * WEEK_US) == ()
    assert check_sample({"type": "onchain_event"}, 0) == ()
    problems = check_sample({"event": "paid", "occurredAt": "2026-01-01T00:00:00Z"}, 0)
    assert [problem.field for problem in problems] == ["contact", "occurredAt"]


@pytest.mark.parametrize(
    ("filter_", "patterns"),
    [
        (Filter("asset", "eq", "USDC"), ({"asset": "USDC"},)),
        (
            Filter("a.b.c", "in", [1, None]),
            ({"a.b.c": 1}, {"a": {"b": {"c": 1}}}, {"a.b.c": None}, {"a": {"b": {"c": None}}}),
        ),
        (Filter("asset", "in", []), ()),
        (Filter("asset", "in", list(range(20))), tuple({"asset": number} for number in range(20))),
        (Filter("asset", "in", list(range(21))), ()),
        (Filter("asset", "neq", "USDC"), ()),
        (Filter("email", "eq", "a@b.co"), ()),
    ],
)
def test_what_rows_contain_that_pass_a_filter(filter_: Filter, patterns: tuple[dict[str, Any], ...]) -> None:
    assert containment_patterns(filter_) == patterns


def test_paths_into_other_roots_cannot_be_selected() -> None:
    assert containment_patterns(Filter("contact.plan", "eq", 1), ("contact",)) == ()
    assert containment_patterns(Filter("email", "eq", 1), ("contact",)) == ({"email": 1},)


def test_filters_that_are_not_an_array_are_named_and_the_rest_is_read() -> None:
    filters = [5, {"path": "", "operator": "eq"}, {"path": "a", "operator": "eq"}, {"path": "a", "operator": "exists"}]
    assert read_trigger({"type": "app_event", "filters": {}, "where": 5}) == (
        Problem("triggerSpec.filters", "must be an array of filters"),
        Problem("triggerSpec.where", "must be a text, such as amountUsd > 500"),
    )
    assert read_trigger({"type": "app_event", "filters": filters}) == (
        Problem("triggerSpec.filters[0]", "must be an object with path, operator and value"),
        Problem("triggerSpec.filters[1].path", "must be a non-empty string"),
        Problem("triggerSpec.filters[2].value", "is required for eq"),
    )
