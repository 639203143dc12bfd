"""Automations that start on a chain, as they are written in a notebook."""

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
    given = {"contract": CONTRACT, "event": "Transfer(address,address,uint256)", "to_contact": "to", "chain_id": 1}
    started = Automation(Draft("Thanks")).on_chain(**given | changes)
    return started.send_inapp(title="You have got {{ value }}", body="In {{ txHash }}")


def test_it_says_what_it_waits_for() -> None:
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
    "changes", [{}, {"confirmations": 1}, {"confirmations": 12, "create_contacts": True, "node": "log"}]
)
def test_sentences_and_python_say_all_of_it(changes: dict[str, Any]) -> None:
    written = thanks(**changes).where("value", neq="0").add_tag("holder")
    told = written.describe()
    assert "eside" not in told + written.to_python()
    assert Automation.from_sentences(told, name="Thanks").to_json() == written.to_json()
    assert ".on_chain(" in written.to_python()


def test_a_plan_says_that_another_sort_of_thing_starts_it() -> None:
    before, after = Automation(Draft("Thanks")).on("deposit"), thanks()
    (start, step) = changes(before.to_json(), after.to_json()).lines()[:2]
    assert start.startswith(f"  ~ trigger: When contract {CONTRACT} on chain 1 emits ")
    assert start.endswith(", before: When a deposit event arrives")
    assert step.startswith("  + send_inapp")
    (moved,) = changes(after.to_json(), thanks(to_contact="from").to_json()).lines()
    assert moved == "  ~ trigger: walletArg: “from”, before: “to”"


def test_sentences_that_no_contract_logs_are_refused_by_line() -> None:
    told = thanks().describe().replace("“to”", "“value”", 1)
    with pytest.raises(InvalidArgumentError, match="line 2: to_contact value is uint256, not an address"):
        Automation.from_sentences(f"\n{told}", name="Thanks")


def test_it_is_tried_on_the_parameters_of_a_log() -> None:
    tried = thanks().where("value", eq="1000").simulate({"to": ANN, "value": 1000})
    assert [each.title for each in tried.messages] == ["You have got 1000"]  # type: ignore[union-attr]
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
    who = {"contact": {"walletAddress": ANN}}
    later = [{"event": log, "after": f"{hours}h", "payload": {"value": value}} for hours, value in ((1, "5"), (2, "7"))]
    met = written.simulate(who, events=later)
    assert [each.outcome for each in met.steps] == ["entered", "waiting", "matched", "sent"]
    reached = written.simulate(who, events=[{"event": f"{CONTRACT}:Burn", "after": "1h"}])
    assert reached.outcome == "goal"


def test_a_log_is_waited_for_by_its_name_alone() -> None:
    with pytest.raises(InvalidArgumentError, match="is not an event name"):
        Automation(Draft("Back")).on("deposit").wait_for(f"{CONTRACT}:Transfer(address)", within="2d")


@pytest.mark.parametrize(
    ("changes", "said"),
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
def test_what_is_wrong_is_said_in_the_words_of_the_verb(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        thanks(**changes)
    assert said in str(refused.value)


def test_filters_that_never_pass_are_remarked_on() -> None:
    (remark,) = thanks().where("value", eq=1000).check()
    assert "write '1000'" in remark.message


def test_events_come_from_a_pasted_abi() -> None:
    events = abi(SOLIDITY)
    assert [each.name for each in events] == ["Transfer", "Paused"]
    assert events["Transfer"].wallets == ("from", "to")
    assert thanks(event=events["Transfer"]).to_json()["triggerSpec"]["signature"] == events["Transfer"].signature
    entry = {"type": "event", "name": "Paused", "inputs": [{"name": "on", "type": "bool", "indexed": False}]}
    assert [each.signature for each in abi(json.dumps([entry]))] == ["Paused(bool on)"]
    assert "Transfer" in events._repr_html_()


@pytest.mark.parametrize("text", ["", "[", "{}", "[]", "nonsense", "event A(address a); event B("])
def test_what_is_no_abi_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        abi(text)


def test_an_event_that_is_not_there_is_said() -> None:
    with pytest.raises(InvalidArgumentError, match="Its events are Transfer, Paused"):
        abi(SOLIDITY)["Minted"]
