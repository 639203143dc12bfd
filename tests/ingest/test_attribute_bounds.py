"""The attributes of a contact are bounded. An event that would exceed the bounds is rejected without a trace."""

from pathlib import Path
from typing import Any

from api.imports.errors import Rejects, default_rejects_path
from api.imports.formats import ReadOptions, find_sources
from api.imports.importer import import_history
from api.ingest.parse import AcceptedEvent, Rejected
from tests.ingest.conftest import Intake, Org, event
from workbench.language.codec import encode
from workbench.language.problem import Problem

OVERFULL = Rejected(
    (Problem("attributes", "the contact would have more than 1,000 attributes, or more than 256 KB of them"),)
)


def attributes_from(first: int, count: int = 50, size: int = 1) -> dict[str, Any]:
    return {"attributes": {f"k{number:04}": "x" * size for number in range(first, first + count)}}


async def fill(org: Org, count: int, size: int = 1, **contact: str) -> None:
    """Send `count` attributes of a contact, one batch per event."""
    step = min(50, 15_000 // (size + 8))
    for first in range(0, count, step):
        assert await org.send(event(**contact, **attributes_from(first, min(step, count - first), size))) != [OVERFULL]


async def count_attributes(org: Org) -> list[int]:
    """Return the number of attributes of each contact."""
    column = "(SELECT count(*) FROM jsonb_object_keys(attributes))::int"
    return [count for (count,) in await org.rows(column, "contacts", "external_id")]


async def test_a12_a_contact_has_at_most_a_thousand_attributes(acme: Org) -> None:
    await fill(acme, 999)
    assert await acme.send(event("fits", **attributes_from(999, 1))) == [AcceptedEvent("fits")]
    before = await acme.traces()
    assert await acme.send(event("more", **attributes_from(1000, 1))) == [OVERFULL]
    assert (await count_attributes(acme), await acme.traces()) == ([1000], before)
    # Existing attributes may change
    assert await acme.send(event("again", **attributes_from(0, 50, 2))) == [AcceptedEvent("again")]


async def test_a12_a_contact_has_at_most_256_kb_of_attributes(acme: Org) -> None:
    most = 262_144 // (1_000 + len('"k0000": "", '))
    await fill(acme, most, 1_000)
    assert await acme.send(event("more", **attributes_from(most, 1, 1_000))) == [OVERFULL]
    assert await acme.send(event("little", **attributes_from(most, 1, 1))) == [AcceptedEvent("little")]
    assert await count_attributes(acme) == [most + 1]


async def test_a12_the_neighbours_of_a_refused_event_are_stored(acme: Org) -> None:
    await fill(acme, 1_000)
    sent = [
        event("before", external_id="u2"),
        event("bad", **attributes_from(1_000, 1)),
        event("after", external_id="u3"),
    ]
    assert await acme.send(*sent) == [AcceptedEvent("before"), OVERFULL, AcceptedEvent("after")]
    assert {key for (key,) in await acme.rows("idempotency_key", "events")} >= {"before", "after"}
    assert "bad" not in {key for (key,) in await acme.rows("idempotency_key", "events")}


async def test_a12_many_events_at_once_cannot_make_a_new_contact_too_large(acme: Org) -> None:
    outcomes = await acme.send(*[event(str(n), **attributes_from(n * 50)) for n in range(30)])
    assert outcomes == [*[AcceptedEvent(str(n)) for n in range(20)], *[OVERFULL] * 10]
    assert await count_attributes(acme) == [1000]


async def test_a12_an_import_has_the_same_bounds(acme: Org, intake: Intake, tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    lines = [event(str(n), occurredAt=f"2025-03-04T05:06:{n:02}Z", **attributes_from(n * 50)) for n in range(22)]
    path.write_bytes(b"\n".join(map(encode, lines)))
    ((name,),) = await intake.rows("SELECT name FROM organizations WHERE id = %(id)s", id=acme.id)
    with Rejects(default_rejects_path(path)) as rejects:
        report = await import_history(intake.dsn, intake.keyring, name, find_sources([path], ReadOptions())[0], rejects)
    assert (report.stored, report.rejected, report.rejected_rows[0].problems) == (20, 2, OVERFULL.problems)
    assert await count_attributes(acme) == [1000]
