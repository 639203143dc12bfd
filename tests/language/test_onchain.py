"""A trigger can start from logs: its spec is read, its problems are reported, and samples of logs match it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from workbench.language.check import check
from workbench.language.codec import decode
from workbench.language.contact import ContactState
from workbench.language.event import Event
from workbench.language.graph import Graph, read_graph
from workbench.language.onchain import LogSource, read_log_sample
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
    remarks = [diagnostic.message for diagnostic in check(trigger(filters=filters), Graph())]
    assert "value must be of type uint256, as a string of its digits: write '5'" in remarks
    assert f"to must be in lower case: write {ANN.lower()}" in remarks


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
