"""Events by HTTP and the same events by an import leave the same rows."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from api.clock import from_us
from api.imports import importer
from api.imports.errors import Rejects, default_rejects_path
from api.imports.formats import ReadOptions, find_sources
from api.imports.importer import import_history
from tests.routes.conftest import Org, Service
from workbench.language.codec import encode

POOLS = {
    "walletAddress": ("0xA", "0xb", "0xC", "0xa"),
    "email": ("a@example.com", "B@example.com", "b@example.com"),
    "externalId": ("e1", "e2", "e3"),
}
COUNT = 600


def events(service: Service, seed: int) -> list[dict[str, Any]]:
    """Return events of few contacts with varying identifiers; some are repeated, some invalid."""
    chance = Random(seed)
    first_us = service.services.clock.now_us() - 86_400_000_000
    return [
        {
            "event": chance.choice(("Deposit", "trade", "app.open", "not valid")),
            "contact": {
                kind: chance.choice(POOLS[kind]) for kind in chance.sample(sorted(POOLS), chance.choice((1, 1, 2, 3)))
            },
            "attributes": {
                key: chance.choice((1, "zwei ü", True, number)) for key in chance.sample(("plan", "tier"), number % 3)
            },
            "payload": {"n": number, "amount": 1.5, "text": '\\ "'},
            "occurredAt": from_us(first_us + number).isoformat(),
            "idempotencyKey": f"key {chance.randrange(COUNT)}" if number % 5 else None,
        }
        for number in range(COUNT)
    ]


async def stored_rows(org: Org) -> dict[str, list[tuple[Any, ...]]]:
    """Return the organization's rows; contacts are identified by their events."""
    rows, own = org.service.rows, "org_id = %s"
    emails = org.service.keyring.of(org.id).open_email
    contacts = await rows(
        f"""SELECT ARRAY(SELECT payload->>'n' FROM events e
                         WHERE e.org_id = c.org_id AND e.contact_id = c.id ORDER BY 1)::text,
            email, wallet_address, wallet_raw, email_domain, external_id, attributes::text,
            ARRAY(SELECT kind FROM identities i WHERE i.org_id = c.org_id AND i.contact_id = c.id ORDER BY 1)::text
            FROM contacts c WHERE {own} ORDER BY 1""",
        org.id,
    )
    stored = await rows(
        f"""SELECT payload->>'n', event, occurred_at, payload, email, wallet_address, external_id
            FROM events WHERE {own} ORDER BY 1""",
        org.id,
    )
    conflicts = await rows(
        f"""SELECT c.kind, c.outcome, e.payload->>'n'
            FROM identity_conflicts c JOIN events e ON e.org_id = c.org_id AND e.id = c.event_id
            WHERE c.{own} ORDER BY 3, 1, 2""",
        org.id,
    )
    clear = [
        [tuple(emails(cell) if str(cell).startswith("enc1_") else cell for cell in row) for row in table]
        for table in (contacts, stored)
    ]
    keys = await rows(f"SELECT count(*) FROM idempotency_keys WHERE {own}", org.id)
    return {"contacts": clear[0], "events": clear[1], "conflicts": conflicts, "keys": keys}


@pytest.mark.parametrize("seed", range(3))
async def test_an_import_stores_the_same_as_http_requests(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(importer, "BATCH_ROWS", 70)  # many batches: contacts appear again in later ones
    sent = events(service, seed)
    live, past = await service.organization(), await service.organization()
    for start in range(0, COUNT, 50):
        assert (await live.call("POST", "/events/batch", {"events": sent[start : start + 50]})).status_code == 202
    path = tmp_path / "events.ndjson"
    path.write_bytes(b"\n".join(map(encode, sent)))
    with Rejects(default_rejects_path(path)) as rejects:
        sources, _ = find_sources([path], ReadOptions())
        report = await import_history(service.dsn, service.keyring, past.name, sources, rejects)
    assert report.read == COUNT
    assert report.duplicates > 0 < report.rejected
    assert await stored_rows(past) == await stored_rows(live)
