"""A trigger can start from logs: its spec is read, its problems are reported, and samples of logs match it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from workbench.language.check import Diagnostic, check
from workbench.language.codec import decode
from workbench.language.contact import ContactState
from workbench.language.event import Event, Identifiers
from workbench.language.filter import Filter
from workbench.language.graph import Graph, read_graph
from workbench.language.onchain import (
    ZERO_ADDRESS,
    LogSource,
    log_payload,
    log_sample,
    read_log_sample,
    read_log_source,
    source_warnings,
)
from workbench.language.problem import Problem
from workbench.language.simulate import SimulatedAutomation, simulate
from workbench.language.trigger import Trigger, fires, read_trigger

CONTRACT = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
SPEC: dict[str, Any] = {
    "type": "onchain_event",
    "chainId": 1,
    "contract": CONTRACT,
    "signature": "Transfer(address,address,uint256)",
    "walletArg": "to",
}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ANN = "0x" + "AB" * 20


def trigger(**changes: Any) -> Trigger:
    parsed = read_trigger(SPEC | changes)
    assert isinstance(parsed, Trigger), parsed
    return parsed


def source() -> LogSource:
    parsed = trigger().source
    assert parsed is not None
    return parsed


def test_a_trigger_spec_is_read_as_a_log_source() -> None:
    parsed = trigger()
    assert parsed.type == "onchain_event"
    assert parsed.source is not None
    assert (parsed.source.contract, parsed.source.wallet_arg) == (CONTRACT.lower(), "to")
    assert (parsed.source.confirmations, parsed.source.creates_contacts) == (0, False)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"chainId": None}, "triggerSpec.chainId: must be a whole number from 1 to 9,007,199,254,740,991"),
        ({"chainId": "1"}, "triggerSpec.chainId: must be a whole number from 1 to 9,007,199,254,740,991"),
        ({"chainId": True}, "triggerSpec.chainId: must be a whole number from 1 to 9,007,199,254,740,991"),
        ({"contract": "usdc.eth"}, "triggerSpec.contract: must be an address: 0x and 40 hexadecimal digits"),
        (
            {"contract": CONTRACT.replace("Ef1", "eF1")},
            "triggerSpec.contract: has a wrong checksum: a digit or its case is wrong. Write it in lower case to skip"
            " the check",
        ),
        (
            {"signature": "Transfer"},
            "triggerSpec.signature: is not complete: write it like Transfer(address,address,uint256)",
        ),
        ({"signature": None}, "triggerSpec.signature: must be a text like Transfer(address,address,uint256)"),
        (
            {"walletArg": None},
            "triggerSpec.walletArg: must name the parameter with the wallet; its addresses are from, to",
        ),
        *(
            (
                {"walletArg": name},
                "triggerSpec.walletArg: must name the parameter with the wallet; its addresses are from, to",
            )
            for name in ("", 5)
        ),
        (
            {"walletArg": "recipient"},
            "triggerSpec.walletArg: Transfer has no parameter 'recipient'; its addresses are from, to",
        ),
        ({"walletArg": "value"}, "triggerSpec.walletArg: value is uint256, not an address; its addresses are from, to"),
        ({"signature": "Ping()"}, "triggerSpec.walletArg: Ping has no parameter 'to'; it has no address"),
        ({"confirmations": -1}, "triggerSpec.confirmations: must be a whole number from 0 to 1,000"),
        ({"createContacts": 1}, "triggerSpec.createContacts: must be true or false"),
        ({"filters": 5}, "triggerSpec.filters: must be an array of filters"),
    ],
)
def test_problems_name_their_field(changes: dict[str, Any], text: str) -> None:
    problems = read_trigger(SPEC | changes)
    assert isinstance(problems, tuple)
    assert "; ".join(map(str, problems)) == text


def test_a_spec_with_a_problem_has_no_source() -> None:
    problems: list[Problem] = []
    assert read_log_source(SPEC | {"chainId": 0}, "spec", problems) is None
    assert [problem.field for problem in problems] == ["spec.chainId"]


def test_custom_events_of_the_same_name_do_not_match() -> None:
    minted = trigger(signature="mint(address to)")
    assert not fires(minted, "mint", {}, NOW)
    assert minted.source is not None
    assert minted.matches_event("mint", minted.source.key)
    assert not Trigger().matches_event("mint", source().key)


def test_filters_that_can_never_pass_are_warnings() -> None:
    filters = [
        {"path": "value", "operator": "eq", "value": 5},
        {"path": "to", "operator": "in", "value": [ANN]},
        {"path": "value", "operator": "neq", "value": "5"},
    ]
    remarks = [item for item in check(trigger(filters=filters), Graph()) if item.field == "triggerSpec.filters"]
    assert remarks == [
        Diagnostic("warning", message, field="triggerSpec.filters")
        for message in (
            "value must be of type uint256, as a string of its digits: write '5'",
            f"to must be in lower case: write {ANN.lower()}",
        )
    ]


def test_a_sample_is_normalized_to_the_form_of_a_log() -> None:
    event = read_log_sample({"type": "onchain_event", "args": {"to": ANN, "value": 10**30}}, source())
    assert isinstance(event, Event)
    assert (event.name, event.identifiers.wallet, event.source) == ("Transfer", ANN.lower(), source().key)
    payload = decode(event.payload)
    assert payload["value"] == str(10**30)
    assert payload.keys() >= {"chainId", "contract", "txHash", "logIndex", "blockNumber", "to"}


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        ({}, "event.args: must be an object with the parameters of Transfer(address from, address to, uint256 value)"),
        ({"args": {}}, "event.args.to: must be an address: 0x and 40 hexadecimal digits"),
        (
            {"args": {"to": ANN, "amount": 1}},
            "event.args.amount: is not a parameter of Transfer(address from, address to, uint256 value)",
        ),
    ],
)
def test_an_invalid_sample_is_refused(sample: dict[str, Any], text: str) -> None:
    problems = read_log_sample(sample, source())
    assert isinstance(problems, tuple)
    assert "; ".join(map(str, problems)) == text


def test_a_stored_log_is_a_sample_under_any_parameter_names() -> None:
    kept = {"signature": "Transfer(address,address,uint256)", "args": {"to": ANN, "value": "5", "amount": "5"}}
    event = read_log_sample(kept, source())
    assert isinstance(event, Event)
    assert "amount" not in decode(event.payload)


def test_the_whole_event_of_a_sample() -> None:
    location = {"txHash": "0x" + "12" * 32, "logIndex": 3, "blockNumber": 4}
    args = {"value": "5", "to": ANN}
    assert log_sample(args) == {"type": "onchain_event", "args": args}
    event = read_log_sample({**log_sample(args), **location}, source())
    key = f"1:{CONTRACT.lower()}:Transfer(address,address,uint256)"
    assert isinstance(event, Event)
    assert (event.name, event.identifiers, event.source) == (
        "Transfer",
        Identifiers(ANN.lower(), None, None, ANN.lower()),
        key,
    )
    assert decode(event.payload) == {
        "to": ANN.lower(),
        "value": "5",
        "chainId": 1,
        "contract": CONTRACT.lower(),
        **location,
    }
    default = read_log_sample(log_sample(args), source())
    assert isinstance(default, Event)
    assert decode(default.payload) == decode(event.payload) | {
        "txHash": "0x" + "0" * 64,
        "logIndex": 0,
        "blockNumber": 0,
    }


def test_a_sample_without_a_wallet_is_about_that_of_its_contact() -> None:
    contact = {"walletAddress": ANN}
    assert read_log_sample({"args": {}, "contact": contact}, source()) == read_log_sample(
        {"args": {"to": ANN}}, source()
    )
    event = read_log_sample({"args": {"to": CONTRACT}, "contact": contact}, source())
    assert isinstance(event, Event)
    assert event.identifiers.wallet == CONTRACT.lower()
    missing = (Problem("event.args.to", "must be an address: 0x and 40 hexadecimal digits"),)
    for nothing in ({"walletAddress": None}, {}, ANN):
        assert read_log_sample({"args": {}, "contact": nothing}, source()) == missing


def test_all_problems_of_a_sample_have_their_paths() -> None:
    sample = {"args": {"to": ZERO_ADDRESS, "from": "x", "value": 1.5, "amount": 1}, "signature": "Burn(uint256)"}
    assert read_log_sample(sample, source(), "later[0].event") == (
        Problem(
            "later[0].event.args.amount", "is not a parameter of Transfer(address from, address to, uint256 value)"
        ),
        Problem("later[0].event.args.from", "must be of type address: 0x and 40 hexadecimal digits"),
        Problem(
            "later[0].event.args.to", "is the zero address, which belongs to no contact: mints and burns start nothing"
        ),
        Problem("later[0].event.args.value", "must be of type uint256, as a string of its digits, like '1000000'"),
    )
    too_large = {"args": {"to": ANN}, "blockNumber": 10**400}
    assert read_log_sample(too_large, source()) == (
        Problem("event", "contains a number outside ±1e308 or of more than 400 digits"),
    )


def test_a_payload_has_the_names_of_one_automation_or_of_all() -> None:
    stored = {"chainId": 1, "txHash": "0x1", "signature": "s", "args": {"to": "a", "recipient": "a", "txHash": "own"}}
    assert log_payload(stored) == {"chainId": 1, "txHash": "own", "to": "a", "recipient": "a"}
    assert log_payload(stored, source().abi_event) == {"chainId": 1, "txHash": "0x1", "to": "a"}


def test_a_sample_prints_its_parameters_in_the_order_of_the_signature() -> None:
    event = read_log_sample({"args": {"value": "5", "to": ANN, "from": ANN}}, source())
    assert isinstance(event, Event)
    assert list(decode(event.payload))[-3:] == ["from", "to", "value"]


def test_a_source_has_a_key_a_name_and_values_for_titles() -> None:
    shown = trigger(confirmations=2, createContacts=True).source
    assert shown is not None
    assert shown.name == f"{CONTRACT.lower()}:Transfer"
    assert shown.shown_values == {
        "chainId": 1,
        "contract": CONTRACT.lower(),
        "signature": "Transfer",
        "walletArg": "to",
        "confirmations": 2,
        "createContacts": True,
    }


@pytest.mark.parametrize(
    ("creates_contacts", "filters", "warnings"),
    [
        (False, (), []),
        (
            True,
            (),
            ["every wallet in to becomes a contact, up to the operator's hourly limit; add a filter to create fewer"],
        ),
        (True, (Filter("value", "eq", "5"), Filter("other", "eq", 5), Filter("value", "exists", True)), []),
        (True, (Filter("value", "contains", 5),), []),
        (
            False,
            (Filter("value", "in", ["5", 6]), Filter("value", "in", 5)),
            ["value {0}: write '6'", "value {0}: write '5'"],
        ),
        (
            False,
            (Filter("value", "eq", ["5"]), Filter("value", "neq", 7)),
            ["value {0}, like '1000000'", "value {0}: write '7'"],
        ),
        (False, (Filter("to", "eq", ZERO_ADDRESS),), ["to {1}"]),
        (False, (Filter("to", "neq", ZERO_ADDRESS), Filter("from", "eq", ZERO_ADDRESS)), []),
    ],
)
def test_the_warnings_of_a_source(creates_contacts: bool, filters: tuple[Filter, ...], warnings: list[str]) -> None:
    parsed = trigger(createContacts=creates_contacts).source
    assert parsed is not None
    digits = "must be of type uint256, as a string of its digits"
    zero = "is the zero address, which belongs to no contact: mints and burns start nothing"
    assert list(source_warnings(parsed, filters)) == [text.format(digits, zero) for text in warnings]


@pytest.mark.parametrize(("name", "largest"), [("chainId", 2**53 - 1), ("confirmations", 1_000)])
def test_the_largest_numbers_of_a_spec(name: str, largest: int) -> None:
    parsed = trigger(**{name: largest}).source
    assert parsed is not None
    assert parsed.shown_values[name] == largest
    assert isinstance(read_trigger(SPEC | {name: largest + 1}), tuple)


def test_a_sample_is_simulated_like_any_event() -> None:
    nodes = [
        {"id": "t", "type": "onchain_event"},
        {"id": "n", "type": "send_inapp", "data": {"title": "{{ value }}", "body": "{{ walletAddress }}"}},
    ]
    graph = read_graph({"nodes": nodes, "edges": [{"source": "t", "target": "n"}]})
    assert isinstance(graph, Graph)
    sample = read_log_sample({"args": {"to": ANN, "value": "7"}}, source())
    assert isinstance(sample, Event)
    trace = simulate(SimulatedAutomation(trigger(), graph), sample, ContactState("c"), NOW)
    assert trace.matched
    assert [(message.title, message.body) for message in trace.messages] == [("7", ANN.lower())]  # type: ignore[union-attr]
