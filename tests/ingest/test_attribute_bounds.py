"""The attributes of a contact are bounded. An event is stored without those that do not fit."""

from decimal import Decimal
from pathlib import Path
from typing import Any

from api.imports.errors import ImportReport, Rejects, ReportedRow, default_rejects_path
from api.imports.formats import ReadOptions, find_sources
from api.imports.importer import import_history
from api.ingest.parse import AcceptedEvent, DryRun, Duplicate
from tests.ingest.conftest import Intake, Org, event
from workbench.language.codec import encode
from workbench.language.contact import TOO_LARGE_ATTRIBUTES, TOO_MANY_ATTRIBUTES
from workbench.language.problem import Problem


def stored_without(key: str, *numbers: int, reason: str = TOO_MANY_ATTRIBUTES) -> AcceptedEvent:
    """Return the outcome of an event whose attributes of these numbers were left out."""
    return AcceptedEvent(key, warnings=tuple(Problem(f"attributes.k{number:04}", reason) for number in numbers))


def attributes_from(first: int, count: int = 50, size: int = 1) -> dict[str, Any]:
    return {"attributes": {f"k{number:04}": "x" * size for number in range(first, first + count)}}


async def fill(org: Org, count: int, size: int = 1, **contact: str) -> None:
    """Send `count` attributes of a contact, one batch per event."""
    step = min(50, 15_000 // (size + 8))
    for first in range(0, count, step):
        ((outcome),) = await org.send(event(**contact, **attributes_from(first, min(step, count - first), size)))
        assert isinstance(outcome, AcceptedEvent)
        assert outcome.warnings == ()


async def count_attributes(org: Org) -> list[int]:
    """Return the number of attributes of each contact."""
    column = "(SELECT count(*) FROM jsonb_object_keys(attributes))::int"
    return [count for (count,) in await org.rows(column, "contacts", "external_id")]


async def test_a12_a_contact_has_at_most_a_thousand_attributes(acme: Org) -> None:
    await fill(acme, 999)
    assert await acme.send(event("fits", **attributes_from(999, 1))) == [AcceptedEvent("fits")]
    assert await acme.send(event("more", **attributes_from(998, 4, 2))) == [stored_without("more", 1000, 1001)]
    ((attributes,),) = await acme.rows("attributes", "contacts")
    assert (len(attributes), attributes["k0999"]) == (1000, "xx")
    # Existing attributes may change
    assert await acme.send(event("again", **attributes_from(0, 50, 2))) == [AcceptedEvent("again")]
    assert await acme.rows("count(*)", "events") == [(20 + 3,)]
    assert await acme.send(event("more", **attributes_from(998, 4, 2))) == [Duplicate("more")]


async def test_a12_a_contact_has_at_most_256_kb_of_attributes(acme: Org) -> None:
    most = 262_144 // (1_000 + len('"k0000": "", '))
    await fill(acme, most, 1_000)
    left_out = stored_without("more", most, reason=TOO_LARGE_ATTRIBUTES)
    assert await acme.send(event("more", **attributes_from(most, 1, 1_000))) == [left_out]
    assert await acme.send(event("little", **attributes_from(most, 1, 1))) == [AcceptedEvent("little")]
    assert await count_attributes(acme) == [most + 1]


async def test_a12_numbers_count_with_the_digits_that_postgres_writes(acme: Org) -> None:
    def numbers(first: int) -> dict[str, Any]:
        return {"attributes": {f"k{number:04}": Decimal("1e-300") for number in range(first, first + 50)}}

    events = [event(str(first), **numbers(first)) for first in range(0, 900, 50)]
    outcomes = [outcome for sent in events for outcome in await acme.send(sent)]
    most = 262_144 // len('"k0000": , ' + format(Decimal("1e-300"), "f"))
    assert [len(outcome.warnings) for outcome in outcomes if isinstance(outcome, AcceptedEvent)] == [
        50 - min(max(most - first, 0), 50) for first in range(0, 900, 50)
    ]
    assert await count_attributes(acme) == [most]


async def test_a12_the_neighbours_in_a_batch_are_not_concerned(acme: Org) -> None:
    await fill(acme, 999)
    sent = [
        event("before", external_id="u2", **attributes_from(5_000, 1)),
        event("first", **attributes_from(1_000, 1)),
        event("second", properties={}, **attributes_from(1_000, 2)),
        event("dry", test=True, **attributes_from(1_000, 1)),
        event("after", external_id="u3", **attributes_from(1_000, 1)),
    ]
    misspelt = Problem("properties", "unknown field, did you mean payload?")
    assert await acme.send(*sent) == [
        AcceptedEvent("before"),
        AcceptedEvent("first"),
        AcceptedEvent("second", warnings=(misspelt, *stored_without("second", 1_001).warnings)),
        DryRun("dry", 0, False),
        AcceptedEvent("after"),
    ]
    assert await count_attributes(acme) == [1000, 1, 1]


async def test_a12_many_events_at_once_cannot_make_a_new_contact_too_large(acme: Org) -> None:
    outcomes = await acme.send(*[event(str(n), **attributes_from(n * 50)) for n in range(30)])
    left_out = [stored_without(str(n), *range(n * 50, n * 50 + 50)) for n in range(20, 30)]
    assert outcomes == [*[AcceptedEvent(str(n)) for n in range(20)], *left_out]
    assert await count_attributes(acme) == [1000]


async def test_a12_requests_at_once_cannot_make_a_contact_too_large(acme: Org) -> None:
    await acme.send(event("first"))
    outcomes = await acme.send_at_once(*[event(str(n), **attributes_from(n * 50)) for n in range(30)])
    left_out = [len(outcome.warnings) for outcome in outcomes if isinstance(outcome, AcceptedEvent)]
    assert (len(left_out), sum(left_out), await count_attributes(acme)) == (30, 500, [1000])


async def test_a12_an_import_has_the_same_bounds(acme: Org, intake: Intake, tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    lines = [event(str(n), occurredAt=f"2025-03-04T05:06:{n:02}Z", **attributes_from(n * 50)) for n in range(22)]
    path.write_bytes(b"\n".join(map(encode, [*lines, event("x", occurredAt="2025-03-04T05:06:59Z", properties={})])))
    ((name,),) = await intake.rows("SELECT name FROM organizations WHERE id = %(id)s", id=acme.id)
    with Rejects(default_rejects_path(path)) as rejects:
        report = await import_history(intake.dsn, intake.keyring, name, find_sources([path], ReadOptions())[0], rejects)
    warned = [
        (20, stored_without("20", *range(1000, 1050)).warnings),
        (21, stored_without("21", *range(1050, 1100)).warnings),
    ]
    misspelt = (Problem("properties", "unknown field, did you mean payload?"),)
    rows = tuple(ReportedRow(line + 1, problems) for line, problems in [*warned, (22, misspelt)])
    assert report == ImportReport(read=23, stored=23, warned=3, warned_rows=rows)
    assert str(report).splitlines()[1::3] == ["3 stored with warnings:", f"line 23: {misspelt[0]}"]
    assert await count_attributes(acme) == [1000]
