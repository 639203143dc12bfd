"""A notebook can write automations that start from logs of a contract."""

import json
from typing import Any

import pytest

from workbench.automation import Automation
from workbench.chain import abi
from workbench.changes import changes
from workbench.draft import Draft
from workbench.errors import InvalidArgumentError

CONTRACT = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
ANN = "0x" + "ab" * 20
SOLIDITY = "event Transfer(address indexed from, address indexed to, uint256 value); event Paused(bool on);"


def thanks(**changes: Any) -> Automation:
    arguments = {"contract": CONTRACT, "event": "Transfer(address,address,uint256)", "to_contact": "to", "chain_id": 1}
    started = Automation(Draft("Thanks")).on_chain(**arguments | changes)
    return started.send_inapp(title="You have got {{ value }}", body="In {{ txHash }}")


def test_an_onchain_automation_is_described() -> None:
    written = thanks(confirmations=12, create_contacts=False)
    assert written.describe().splitlines()[0] == (
        f"When contract {CONTRACT} on chain 1 emits “Transfer(address,address,uint256)” for the known wallet in “to”, "
        "after 12 confirmations:"
    )
    assert written.to_json()["triggerSpec"] == {
        "type": "onchain_event",
        "chainId": 1,
        "contract": CONTRACT,
        "signature": "Transfer(address,address,uint256)",
        "walletArg": "to",
        "confirmations": 12,
        "createContacts": False,
    }
    assert written.check() == ()
    assert "svg" in written._repr_html_()


@pytest.mark.parametrize(
    "changes",
    [{}, {"confirmations": 1}, {"confirmations": 1_000}, {"confirmations": 12, "create_contacts": True, "node": "log"}],
)
def test_sentences_and_python_are_lossless(changes: dict[str, Any]) -> None:
    written = thanks(**changes).where("value", neq="0").add_tag("holder")
    text = written.describe()
    assert "eside" not in text + written.to_python()
    assert Automation.from_sentences(text, name="Thanks").to_json() == written.to_json()
    assert ".on_chain(" in written.to_python()


def test_a_plan_shows_a_changed_trigger_type() -> None:
    before, after = Automation(Draft("Thanks")).on("deposit"), thanks()
    (start, step) = changes(before.to_json(), after.to_json()).lines()[:2]
    assert start.startswith(f"  ~ trigger: When contract {CONTRACT} on chain 1 emits ")
    assert start.endswith(", before: When a deposit event arrives")
    assert step.startswith("  + send_inapp")
    (moved,) = changes(after.to_json(), thanks(to_contact="from").to_json()).lines()
    assert moved == "  ~ trigger: walletArg: “from”, before: “to”"


def test_an_invalid_parameter_in_sentences_is_rejected_with_its_line() -> None:
    text = thanks().describe().replace("“to”", "“value”", 1)
    with pytest.raises(InvalidArgumentError, match="line 2: to_contact value is uint256, not an address"):
        Automation.from_sentences(f"\n{text}", name="Thanks")


def test_an_onchain_automation_is_simulated_with_parameters_of_a_log() -> None:
    tried = thanks().where("value", eq="1000").simulate({"to": ANN, "value": 1000})
    assert [message.title for message in tried.messages] == ["You have got 1000"]  # type: ignore[union-attr]
    other = thanks().where("value", eq="1000").simulate({"args": {"to": ANN, "value": 1}, "blockNumber": 5})
    assert not other.matched
    assert "value is “1000”" in other.reason()
    with pytest.raises(InvalidArgumentError, match=r"event\.args\.amount: is not a parameter"):
        thanks().simulate({"to": ANN, "amount": 1})


def test_logs_are_waited_for_by_contract_and_event() -> None:
    log = f"{CONTRACT}:Transfer"
    written = (
        Automation(Draft("Back"))
        .on("deposit")
        .goal(f"{CONTRACT}:Burn")
        .wait_for(log, within="2d", where={"value": "7"})
    )
    written = written.then(lambda b: b.send_inapp("Welcome back", "x"))
    assert Automation.from_sentences(written.describe(), name="Back").to_json() == written.to_json()
    event = {"contact": {"walletAddress": ANN}}
    later = [{"event": log, "after": f"{hours}h", "payload": {"value": value}} for hours, value in ((1, "5"), (2, "7"))]
    simulation = written.simulate(event, events=later)
    assert [step.outcome for step in simulation.steps] == ["entered", "waiting", "matched", "sent"]
    reached = written.simulate(event, events=[{"event": f"{CONTRACT}:Burn", "after": "1h"}])
    assert reached.outcome == "goal"


def test_a_log_is_waited_for_by_its_name_alone() -> None:
    with pytest.raises(InvalidArgumentError, match="is not an event name"):
        Automation(Draft("Back")).on("deposit").wait_for(f"{CONTRACT}:Transfer(address)", within="2d")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"to_contact": "value"}, "to_contact value is uint256, not an address; its addresses are from, to"),
        ({"to_contact": "owner"}, "to_contact Transfer has no parameter 'owner'"),
        ({"contract": CONTRACT.lower()[:-1]}, "contract must be an address"),
        ({"contract": CONTRACT.replace("aAe", "aae")}, "contract has a wrong checksum"),
        ({"event": "Transfer(IERC20)"}, "event has the type 'IERC20'"),
        ({"chain_id": "mainnet"}, "chain_id must be a whole number"),
        ({"confirmations": -1}, "confirmations must be a whole number"),
    ],
)
def test_errors_name_the_argument_of_the_verb(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        thanks(**changes)
    assert expected in str(refused.value)


def test_filters_that_never_pass_cause_a_warning() -> None:
    (remark,) = thanks().where("value", eq=1000).check()
    assert "write '1000'" in remark.message


def test_events_come_from_a_pasted_abi() -> None:
    events = abi(SOLIDITY)
    assert [event.name for event in events] == ["Transfer", "Paused"]
    assert events["Transfer"].wallets == ("from", "to")
    assert thanks(event=events["Transfer"]).to_json()["triggerSpec"]["signature"] == events["Transfer"].signature
    entry = {"type": "event", "name": "Paused", "inputs": [{"name": "on", "type": "bool", "indexed": False}]}
    assert [event.signature for event in abi(json.dumps([entry]))] == ["Paused(bool on)"]
    assert "Transfer" in events._repr_html_()


@pytest.mark.parametrize("text", ["", "[", "{}", "[]", "nonsense", "event A(address a); event B("])
def test_an_invalid_abi_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        abi(text)


def test_an_unknown_event_is_rejected_with_the_known_names() -> None:
    with pytest.raises(InvalidArgumentError, match="Its events are Transfer, Paused"):
        abi(SOLIDITY)["Minted"]
