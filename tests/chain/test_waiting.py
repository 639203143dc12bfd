"""Entries that wait for logs, and entries with a log as their goal: `0x…:transfer`."""

from typing import Any

from tests.chain.anvil import Anvil, Token
from tests.chain.conftest import ANN, BOB
from tests.chain.organization import ChainOrg

SAY = {"title": "{{ amount }}", "body": "x"}


async def publish_wait(org: ChainOrg, token: Token, **settings: Any) -> None:
    """Publish an automation that waits a day after a deposit for tokens and then sends a message; watch the token."""
    await org.on_chain(token, walletArg="to", filters=[{"path": "value", "operator": "eq", "value": "0"}])
    wait = {
        "event": f"{token.address}:Transfer",
        "filters": [{"path": "value", "operator": "neq", "value": "1"}],
        "timeoutSeconds": 86_400,
    }
    nodes = [
        {"id": "t", "type": "app_event"},
        {"id": "w", "type": "wait_for_event", "data": wait},
        {"id": "n", "type": "send_inapp", "data": SAY},
    ]
    await org.automation(nodes, [("t", "w"), ("w", "n", "matched")], 1, None, **settings)
    for wallet in (ANN, BOB):
        await org.send(wallet, {"walletAddress": wallet}, amount=5)
    await org.drive()


async def test_a_wait_ends_with_a_log_that_passes_its_filters(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await publish_wait(org, token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 1)
    await org.read_up_to(anvil)
    assert await org.messages() == []
    token.mint(ANN, 7)
    await org.read_up_to(anvil)
    assert await org.messages() == [(ANN, "5")]
    awaited_logs = (
        "SELECT s.detail ->> 'event', o.args ->> 'value' FROM entry_steps s"
        " JOIN onchain_events o ON o.id::text = s.detail ->> 'eventId'"
    )
    assert await org.fetch(awaited_logs) == [(f"{token.address}:transfer", "7")]


async def test_a_log_may_be_a_goal(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    goal = {"event": f"{token.address}:Transfer", "filters": [{"path": "value", "operator": "eq", "value": "1"}]}
    await publish_wait(org, token, goal=goal)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(BOB, 1)
    await org.read_up_to(anvil)
    await org.drive()
    assert sorted(await org.entries()) == [("exited", "goal"), ("waiting", None)]


async def test_a_dropped_log_ends_no_wait(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await publish_wait(org, token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    before = anvil.ask("evm_snapshot")
    token.mint(ANN, 7)
    await org.read_up_to(anvil)
    anvil.ask("evm_revert", before)
    anvil.mine(2)
    await org.read_up_to(anvil)
    assert await org.messages() == []
