"""Logs of chains: the routes that list them, and the logs of a contact."""

from typing import Any

from api.clock import uuid7
from tests.contacts.test_explain import author, explained
from tests.routes.conftest import Org

CONTRACT = "0x" + "c0" * 20
ANN = "0x" + "aa" * 20
VALUE = 12345678901234567890
TX = "0x" + "0" * 63 + "1"
CANONICAL = "Transfer(address,address,uint256)"
SPEC = {"type": "onchain_event", "chainId": 1, "contract": CONTRACT, "signature": CANONICAL, "walletArg": "to"}
NOTEBOOK = ("events:read", "contacts:read", "pii:read", "automations:write")


async def logged(
    org: Org, contact: str | None, event: str = "Transfer", block: int = 7, signature: str = "s", value: int = VALUE
) -> None:
    """Store a log, as the chain follower does."""
    await org.service.rows(
        "INSERT INTO onchain_events (org_id, id, contact_id, chain_id, contract, event, signature, tx_hash, log_index,"
        " digest, block_number, block_hash, block_time, args, created_at)"
        " VALUES (%s, %s, %s, 1, %s, %s, %s, %s, %s, gen_random_uuid(), %s, 'h', now(), %s::jsonb, now())",
        org.id,
        uuid7(1_000_000 * block),
        contact,
        CONTRACT,
        event,
        signature,
        TX,
        block,
        block,
        '{"to": "' + ANN + '", "value": "' + str(value) + '"}',
    )


async def create_contact(org: Org) -> str:
    """Return the id of the contact of a wallet."""
    await org.post({"event": "seen", "contact": {"walletAddress": ANN}})
    rows = await org.service.rows("SELECT id::text FROM contacts WHERE org_id = %s", org.id)
    return str(rows[0][0])


async def test_newest_logs_are_samples_and_events_are_counted(acme: Org) -> None:
    contact = await create_contact(acme)
    for block in (7, 8):
        await logged(acme, contact, block=block)
    await logged(acme, contact, "Approval", 9)
    await acme.service.rows("INSERT INTO chains VALUES (1, 1, now() + interval '1 hour', 9, 12, now(), 'says 429')")
    status, answer = await acme.get(
        "/chain/events?event=Transfer&limit=1&contract=" + CONTRACT.upper().replace("X", "x")
    )
    assert status == 200
    (log,) = answer["events"]
    assert (log["type"], log["event"], log["blockNumber"], log["args"]["to"]) == ("onchain_event", "Transfer", 8, ANN)
    status, answer = await acme.get("/chain")
    assert [(event["event"], event["count"]) for event in answer["events"]] == [("Transfer", 2), ("Approval", 1)]
    chain: dict[str, Any] = answer["chains"][0]
    assert (chain["chainId"], chain["blockNumber"], chain["head"], chain["problem"]) == (1, 9, 12, "says 429")


async def test_logs_of_all_chains_are_read_page_by_page_as_they_were_seen(acme: Org) -> None:
    contact = await create_contact(acme)
    for number, (chain, block) in enumerate([(1, 900), (5, 7), (1, 901), (5, 8), (1, 902)]):
        await logged(acme, contact, block=number)
        place = "UPDATE onchain_events SET chain_id = %s, block_number = %s, id = %s::uuid WHERE log_index = %s"
        await acme.service.rows(place, chain, block, uuid7(1_000 + number), number)
    blocks, before = [], ""
    for _ in range(3):
        _, page = await acme.get(f"/chain/events?contract={CONTRACT}&limit=2{before}")
        blocks += [(log["chainId"], log["blockNumber"]) for log in page["events"]]
        before = f"&before={page['events'][-1]['id']}"
    assert blocks == [(1, 902), (5, 8), (1, 901), (5, 7), (1, 900)]
    assert (await acme.get("/chain/events?before=x"))[0] == 400
    _, page = await acme.get("/chain/events?event=Transfer&limit=1")
    assert page["events"][0]["blockNumber"] == 902


async def test_logs_of_unknown_wallets_are_counted(acme: Org) -> None:
    made = await author(
        acme, "POST", "/automations", {"name": "T", "triggerSpec": SPEC, "graph": {"nodes": [], "edges": []}}
    )
    count = "INSERT INTO unknown_wallet_counts VALUES (%s, %s, now() - %s * interval '1 hour', 'limit', 7)"
    for hours in (1, 2, 30):
        await acme.service.rows(count, acme.id, made["id"], hours)
    (wallet,) = (await acme.get("/chain"))[1]["unknownWallets"]
    assert wallet == {"automationId": made["id"], "automation": "T", "what": "limit", "count": 14}


async def test_logs_of_other_organizations_are_invisible(acme: Org, globex: Org) -> None:
    await logged(acme, await create_contact(acme))
    assert (await globex.get("/chain/events"))[1] == {"events": []}
    assert (await globex.get("/chain"))[1]["events"] == []


async def test_a_log_is_in_the_timeline_and_the_export_of_its_contact(acme: Org) -> None:
    contact = await create_contact(acme)
    await logged(acme, contact)
    key = {"Authorization": f"Bearer {await acme.key('workbench', *NOTEBOOK)}"}
    page = (await acme.service.client.get(f"/contacts/{contact}/timeline?kind=log", headers=key)).json()
    (log,) = page["timeline"]
    assert log["sentence"] == f"Transfer of {CONTRACT} on chain 1"
    assert log["detail"]["args"]["value"] == "12345678901234567890"
    exported = (await acme.service.client.get(f"/contacts/{contact}/export", headers=key)).json()
    assert [log["txHash"] for log in exported["onchainEvents"]] == [TX]


async def test_a_sample_of_a_log_is_simulated(acme: Org) -> None:
    key = {"Authorization": f"Bearer {await acme.key('workbench', *NOTEBOOK)}"}
    say = {"title": "{{ value }}", "body": "{{ walletAddress }}"}
    nodes = [{"id": "t", "type": "onchain_event"}, {"id": "n", "type": "send_inapp", "data": say}]
    automation = {"triggerSpec": SPEC, "graph": {"nodes": nodes, "edges": [{"source": "t", "target": "n"}]}}
    sample = {"type": "onchain_event", "args": {"to": ANN, "value": 5}}
    url = "/simulate"
    trace = (await acme.service.client.post(url, json=automation | {"event": sample}, headers=key)).json()
    assert trace["matched"]
    assert [(message["title"], message["body"]) for message in trace["messages"]] == [("5", ANN)]
    wrong = sample | {"args": {"to": "0x1"}}
    refused = await acme.service.client.post(url, json=automation | {"event": wrong}, headers=key)
    assert (refused.status_code, refused.json()["field"]) == (400, "event.args.to")
    custom = automation | {"triggerSpec": {"type": "app_event", "event": "transfer"}, "event": sample}
    refused = await acme.service.client.post(url, json=custom, headers=key)
    assert (refused.status_code, refused.json()["field"]) == (400, "event.type")


async def test_a_log_from_before_the_automation_was_live_is_recognised(acme: Org) -> None:
    contact = await create_contact(acme)
    graph = {
        "nodes": [{"id": "t", "type": "onchain_event"}, {"id": "x", "type": "exit"}],
        "edges": [{"source": "t", "target": "x"}],
    }
    made = await author(
        acme, "POST", "/automations", {"name": "T", "triggerSpec": SPEC, "graph": graph, "active": True}
    )
    await author(acme, "POST", f"/automations/{made['id']}/publish", {})
    for block in (7, 8):
        await logged(acme, contact, "Transfer", block, CANONICAL)
    await acme.service.rows("UPDATE onchain_events SET block_time = now() - interval '1 hour' WHERE block_number = 7")
    newest, old, _ = await explained(acme, contact, made["id"])
    assert (newest["reasons"], old["reasons"]) == (["no_entry"], ["before_live"])


async def test_an_explanation_says_why_an_automation_took_a_log_or_not(acme: Org) -> None:
    contact = await create_contact(acme)
    spec = SPEC | {"filters": [{"path": "value", "operator": "eq", "value": "7"}]}
    graph = {
        "nodes": [{"id": "t", "type": "onchain_event"}, {"id": "x", "type": "exit"}],
        "edges": [{"source": "t", "target": "x"}],
    }
    made = await author(
        acme, "POST", "/automations", {"name": "T", "triggerSpec": spec, "graph": graph, "active": True}
    )
    for block, value in ((7, 7), (8, 8)):
        await logged(acme, contact, "Transfer", block, CANONICAL, value)
    await logged(acme, contact, "Transfer", 9, "Transfer(address,uint256)", 7)
    await acme.service.rows("UPDATE onchain_events SET removed = true WHERE block_number = 7")
    overloaded, other, dropped, explained_event = await explained(acme, contact, made["id"])
    assert (dropped["matched"], dropped["reasons"]) == (False, ["dropped"])
    assert (other["reasons"], other["verdicts"][0]["actual"]) == (["filters"], "8")
    assert (overloaded["reasons"], overloaded["wants"]) == (["other_event"], [f"{CONTRACT}:Transfer"])
    assert explained_event["reasons"] == ["not_there_yet", "other_event", "filters"]
    (explanation,) = await explained(acme, contact, made["id"], event={"type": "onchain_event", "args": {"value": "7"}})
    assert (explanation["matched"], explanation["event"]) == (True, "Transfer")
