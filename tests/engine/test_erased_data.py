"""An erased contact leaves no data in any table after every node of the engine (docs/trust.md O4)."""

from datetime import timedelta

from tests.channels.conftest import endpoint, status
from tests.engine.conftest import EngineBench
from tests.engine.test_erasure import TRIGGER, erase_contact, find_contact_id, finish_erasures

CANARY = "ca4a4711"
WHO = {"walletAddress": "0xCa4a4711", "email": f"{CANARY}@acme.example", "externalId": f"id-{CANARY}"}
CARD = "{{ card }} {{ contact.name }}"
ALL_NODES = [
    {"id": "c", "type": "condition", "data": {"filters": [{"path": "card", "operator": "exists"}]}},
    {"id": "u", "type": "update_contact", "data": {"attributes": {"lastCard": CARD}}},
    {"id": "g", "type": "add_tag", "data": {"tag": "seen"}},
    {"id": "i", "type": "send_inapp", "data": {"title": CARD, "body": CARD}},
    {"id": "m", "type": "send_email", "data": {"subject": CARD, "body": CARD}},
    {"id": "w", "type": "wait_for_event", "data": {"event": "login", "timeoutSeconds": 60}},
]


async def tables_with(bench: EngineBench, *words: str) -> set[str]:
    """Return all tables with a row that contains one of the words."""
    names = await bench.fetch("SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = 'workbench'")
    tables = set()
    for (name,) in names:
        rows = await bench.fetch(f"SELECT lower(t::text) FROM {name} t")
        if any(word in row for (row,) in rows for word in words):
            tables.add(name.partition("_2")[0])
    return tables


async def test_o4_an_engine_stores_no_personal_data_after_an_erasure(bench: EngineBench) -> None:
    async with endpoint(status(500)) as broken, endpoint(status(410)) as closed:
        edges = [("t", "c"), ("c", "u", "true"), ("u", "g"), ("g", "i"), ("i", "m"), ("m", "w")]
        await bench.automation([TRIGGER, *ALL_NODES], edges)
        for server in (broken, closed):
            data = {"url": server.url(path="/hook?{{ card }}"), "body": '{"card": "{{ card }}"}'}
            await bench.automation([TRIGGER, {"id": "h", "type": "send_webhook", "data": data}], [("t", "h")])
        for number in range(2):
            await bench.ingest(
                {
                    "event": "deposit",
                    "contact": WHO,
                    "payload": {"card": f"{CANARY}-{number}"},
                    "attributes": {"name": f"Ann {CANARY}"},
                    "idempotencyKey": f"{CANARY}-{number}",
                }
            )
        await bench.drive()
    assert await tables_with(bench, CANARY) == {"contacts", "contact_changes", "events", "messages", "entry_steps"}
    await erase_contact(bench, await find_contact_id(bench))
    assert await tables_with(bench, CANARY, "enc1_") == set()
    assert await bench.fetch("SELECT state, count(*) FROM entries GROUP BY state ORDER BY state") == [
        ("cancelled", 4),
        ("dead", 2),
    ]
    bench.clock.ahead += timedelta(hours=1)
    await bench.drive()
    assert await finish_erasures(bench) == 1
    assert await tables_with(bench, CANARY, "enc1_") == set()
