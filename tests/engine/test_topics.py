"""The engine sends no message on a topic that the contact declined, whenever it declined it."""

from datetime import timedelta
from typing import Any

import pytest

from api.channels.signing import ContactLink, contact_url
from api.clock import uuid7
from api.engine.claims import LEASE
from api.store.consents import ConsentRow, add_consents
from tests.channels.conftest import endpoint, status
from tests.engine.conftest import EngineBench
from tests.engine.test_outcomes import ANN, EMAIL, INAPP, TRIGGER, _crash, outcomes, send_one, webhook_node
from workbench.language.codec import decode


def on_topic(node: dict[str, Any], topic: str, **more: Any) -> dict[str, Any]:
    return node | {"data": node["data"] | {"topic": topic} | more}


async def choose(bench: EngineBench, topic: str, *, granted: bool, contact_id: str | None = None) -> None:
    if contact_id is None:
        ((contact_id,),) = await bench.fetch("SELECT id FROM contacts WHERE merged_into IS NULL")
    now = bench.clock.now()
    row = ConsentRow(uuid7(bench.clock.unique_now_us()), str(contact_id), granted, "api", now, topic)
    async with bench.database.transaction() as tx:
        await add_consents(tx, bench.org_id, [row])


@pytest.mark.parametrize("node", [INAPP, EMAIL], ids=["inapp", "email"])
async def test_j12_the_latest_choice_of_a_contact_counts(bench: EngineBench, node: dict[str, Any]) -> None:
    await bench.add_topics()
    await bench.automation([TRIGGER, on_topic(node, "news")], [("t", node["id"])])
    for number, choice in enumerate([None, False, True]):
        if choice is not None:
            await choose(bench, "news", granted=choice)
        await bench.send(f"k{number}", ANN)
        await bench.drive()
    assert await outcomes(bench) == [("sent", None), ("skipped", "declined_topic"), ("sent", None)]
    details = await bench.fetch("SELECT detail FROM entry_steps WHERE outcome = 'skipped'")
    assert [decode(detail) for (detail,) in details] == [{"cause": "declined_topic", "topic": "news"}]


async def test_a_topic_with_a_confirmation_is_declined_until_it_is_granted(bench: EngineBench) -> None:
    await bench.add_topics()
    await bench.automation([TRIGGER, on_topic(INAPP, "deals")], [("t", "i")])
    await bench.send("k1", ANN)
    await bench.drive()
    await choose(bench, "deals", granted=True)
    await bench.send("k2", ANN)
    await bench.drive()
    assert await outcomes(bench) == [("skipped", "declined_topic"), ("sent", None)]


async def test_a_choice_after_the_decision_prevents_the_message(bench: EngineBench) -> None:
    await bench.add_topics()
    async with endpoint(status(200)) as server:
        await bench.automation([TRIGGER, on_topic(webhook_node(server), "news")], [("t", "h")])
        await bench.send("k", ANN)
        look = bench.driver._read_facts

        async def read_then_decline(*args: Any) -> Any:
            read = await look(*args)
            await choose(bench, "news", granted=False)
            return read

        bench.driver._read_facts = read_then_decline  # type: ignore[method-assign]
        await bench.drive()
    assert server.requests == []
    assert await outcomes(bench) == [("skipped", "declined_topic")]
    ((detail,),) = await bench.fetch("SELECT detail FROM entry_steps WHERE node_id = 'h'")
    assert decode(detail) == {"cause": "declined_topic", "topic": "news"}


async def test_v31_a_delivery_of_a_dead_worker_is_unknown_if_its_topic_was_declined_since(bench: EngineBench) -> None:
    await bench.add_topics()
    async with endpoint(status(200)) as server:
        await bench.automation([TRIGGER, on_topic(webhook_node(server), "news")], [("t", "h")])
        await bench.send("k", ANN)
        dying = bench.new_driver()
        dying.deliveries._record = _crash  # type: ignore[method-assign]
        await dying.drive(bench.org_id, "ready", 10)
        await dying.deliveries.stop(60)
        await choose(bench, "news", granted=False)
        bench.clock.ahead += LEASE + timedelta(seconds=1)
        await bench.driver.rescue(bench.org_id, 10)
        await bench.drive()
    assert await bench.fetch("SELECT status FROM messages") == [("unknown",)]
    assert await outcomes(bench) == [("unknown", "declined_topic")]


async def test_choices_of_a_merged_contact_count_for_the_kept_one(bench: EngineBench) -> None:
    await bench.add_topics()
    await bench.ingest({"event": "hello", "contact": {"externalId": "old"}})
    ((old,),) = await bench.fetch("SELECT id FROM contacts")
    await choose(bench, "news", granted=False)
    await bench.automation([TRIGGER, on_topic(INAPP, "news")], [("t", "i")])
    await bench.send("k1", ANN)
    await bench.drive()
    await bench.execute(
        "UPDATE contacts SET merged_into = (SELECT id FROM contacts WHERE id <> %s) WHERE id = %s", old, old
    )
    await bench.send("k2", ANN)
    await bench.drive()
    assert await outcomes(bench) == [("sent", None), ("skipped", "declined_topic")]


async def test_an_email_leaves_with_the_links_of_its_contact(bench: EngineBench, tmp_path: Any) -> None:
    await bench.add_topics()
    text = "<p>{{ preferences_url }} <a href='{{ confirm_url }}'>yes</a> {{ preferences_url }}</p>"
    await send_one(bench, on_topic(EMAIL, "news", body=text, confirms="deals", trackClicks=True))
    ((contact_id, body),) = await bench.fetch("SELECT contact_id::text, body FROM messages")
    assert "https://preferences.invalid/ <a href='https://confirm.invalid/deals'>" in body
    (mail,) = [path for path in tmp_path.rglob("mail/new/*") if path.is_file()]
    content = mail.read_bytes().replace(b"=\r\n", b"").replace(b"=\n", b"").replace(b"=3D", b"=").decode()
    links = [
        contact_url("http://localhost:8000", bench.keyring, ContactLink(purpose, bench.org_id, contact_id, topic))
        for purpose, topic in (("preferences", ""), ("confirm", "deals"))
    ]
    assert all(link in content for link in links)
    assert "/click?" not in content  # a choice is no click
    unsubscribe = next(line for line in content.splitlines() if line.startswith("List-Unsubscribe:"))
    assert "&topic=" in unsubscribe
    assert ".invalid" not in content
