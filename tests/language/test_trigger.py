"""Triggers match events by name and filters (docs/contract.md 2.7 and 4.7.1 to 4.7.4)."""

from typing import Any

import pytest

from tests.language.strategies import NOW
from workbench.language.event import Identifiers
from workbench.language.filter import Filter
from workbench.language.trigger import Trigger, fires, flat_context, needs_email, read_trigger

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
