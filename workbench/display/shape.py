"""What is inside one event, in words: as a page, as text, and as what the catalog widget shows."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from api.language.codec import encode
from workbench.display.page import html, moment
from workbench.display.table import Column, plain
from workbench.display.words import short, value

Row = tuple[str, str, str, str, str]

_COLUMNS = (
    Column("path"),
    Column("type"),
    Column("missing", number=True),
    Column("null", number=True),
    Column("values"),
)
_SHOWN = 4
_TYPES = {"string": "text", "boolean": "yes/no", "array": "list"}
_LONGEST = 4_000  # characters of a sample


class Frequent(msgspec.Struct, frozen=True):
    """A value, and in how many of the sampled payloads it is."""

    value: Any
    count: int


class Path(msgspec.Struct, frozen=True, rename="camel"):
    """One path in an event's payload: of which types, how often null or missing, and some values."""

    path: str
    types: dict[str, int] = {}
    nulls: int = 0
    samples: list[Any] = []
    missing: int = 0
    missing_rate: float = 0.0
    null_rate: float = 0.0
    shares: dict[str, float] = {}
    top_values: list[Frequent] = []
    distinct: int = 0


class Part(msgspec.Struct, frozen=True):
    """In how many of so many."""

    count: int
    of: int

    def __str__(self) -> str:
        return f"{self.count:,} of {self.of:,}"


class Change(msgspec.Struct, frozen=True):
    """A path, or a type of its values, that is `new`, `gone`, `more` or `less` frequent lately than before."""

    path: str
    what: str
    before: Part
    recent: Part
    type: str | None = None

    def sentence(self) -> str:
        """Say it with the counts of both sides."""
        subject = self.path if self.type is None else f"{self.path} as {_TYPES.get(self.type, self.type)}"
        return f"{subject} {_WHATS[self.what]}: in {self.recent} lately, in {self.before} before"


_WHATS = {"new": "is new", "gone": "is gone", "more": "comes more often", "less": "comes less often"}


class Drift(msgspec.Struct, frozen=True):
    """What changed since a moment, judged by so many payloads from before and after it."""

    since: str = ""
    before: int = 0
    recent: int = 0
    changes: tuple[Change, ...] = ()


class Sample(msgspec.Struct, frozen=True, rename="camel"):
    """An event as it was stored."""

    id: str
    created_at: str
    occurred_at: str
    payload: Any


class Shape(msgspec.Struct, frozen=True, rename="camel"):
    """What the server says of one event."""

    event: str
    count: int = 0
    first_seen: str | None = None
    last_seen: str | None = None
    sampled: int = 0
    paths: tuple[Path, ...] = ()
    days: tuple[str, ...] = ()
    per_day: tuple[int, ...] = ()
    samples: tuple[Sample, ...] = ()
    drift: Drift = Drift()
    window_days: int = 30


def title(shape: Shape) -> str:
    """Name the event and how often it came."""
    return f"{shape.event}: {shape.count:,} {'event' if shape.count == 1 else 'events'}"


def as_html(shape: Shape) -> str:
    """Return a page of it."""
    return html(
        "event.html.j2",
        title=title(shape),
        note=_note(shape),
        per_day=shape.per_day,
        drift=[change.sentence() for change in shape.drift.changes],
        columns=_COLUMNS,
        rows=[_row(path) for path in shape.paths],
        samples=[(sample.created_at, _payload(sample)) for sample in shape.samples],
    )


def as_text(shape: Shape) -> str:
    """Return it for a terminal."""
    rows = [_row(path) for path in shape.paths]
    changed = [f"Changed lately: {change.sentence()}" for change in shape.drift.changes]
    return "\n".join([title(shape), *changed, plain(_COLUMNS, rows, "Its payload is empty.")])


def as_page(shape: Shape) -> dict[str, Any]:
    """Return what the widget shows: texts and counts."""
    drifting = {change.path for change in shape.drift.changes}
    return {
        "event": shape.event,
        "title": title(shape),
        "note": _note(shape),
        "perDay": shape.per_day,
        "days": shape.days,
        "drift": [change.sentence() for change in shape.drift.changes],
        "code": code(shape.event, shape.window_days),
        "paths": [_shown(shape, path, path.path in drifting) for path in shape.paths],
        "samples": [{"at": moment(sample.created_at), "text": _payload(sample)} for sample in shape.samples],
    }


def code(event: str, days: int, keys: Sequence[str] | None = None) -> str:
    """Return a cell that asks for such events, or for the values below some keys. What strangers named stands in Python's own quotes."""
    if keys is None:
        return f'wb.sql("""{_EVENTS}""", event={event!r}, days={days:d})'
    return f'wb.sql("""{_VALUES}""", event={event!r}, path={[*keys]!r}, days={days:d})'


_EVENTS = """
select created_at, contact_id, payload
from app_events
where event = :event and created_at > now() - :days * interval '1 day'
order by created_at desc
limit 100
"""
_VALUES = """
select payload #>> :path as value, count(*) as events, count(distinct contact_id) as contacts
from app_events
where event = :event and created_at > now() - :days * interval '1 day'
group by 1
order by 2 desc
limit 50
"""


def _shown(shape: Shape, path: Path, drifting: bool) -> dict[str, Any]:
    name, types, missing, nulls, _ = _row(path)
    top = [(_value(each.value), f"{each.count:,}") for each in _telling(path)]
    return {
        "path": name,
        "types": types,
        "missing": missing,
        "nulls": nulls,
        "top": top,
        "distinct": path.distinct,
        "examples": [] if top else [_value(each) for each in path.samples[:_SHOWN]],
        "drifting": drifting,
        "code": code(shape.event, shape.window_days, _keys(path.path, shape.samples)),
    }


def _keys(path: str, samples: Iterable[Sample]) -> list[str]:
    """Return the keys that a path goes by, as the samples have them: a key may have dots in its name."""
    return next((keys for sample in samples if (keys := _found(path, sample.payload))), path.split("."))


def _found(path: str, payload: Any) -> list[str]:
    """Return the keys by which a path leads to a value; none when it does not."""
    if not isinstance(payload, dict):
        return []
    if path in payload:
        return [path]
    heads = (key for key in payload if path.startswith(f"{key}."))
    return next(([key, *rest] for key in heads if (rest := _found(path[len(key) + 1 :], payload[key]))), [])


def _row(path: Path) -> Row:
    return path.path, _types(path), _percent(path.missing_rate), _percent(path.null_rate), _values(path)


def _types(path: Path) -> str:
    total = sum(path.types.values()) or 1
    ranked = sorted(path.types.items(), key=lambda each: -each[1])
    named = [(_TYPES.get(kind, kind), count) for kind, count in ranked]
    return ", ".join(kind if len(named) == 1 else f"{kind} {_percent(count / total)}" for kind, count in named)


def _values(path: Path) -> str:
    if top := _telling(path):
        return ", ".join(f"{_value(each.value)} ({each.count:,})" for each in top[:_SHOWN])
    return ", ".join(map(_value, path.samples[:_SHOWN]))


def _telling(path: Path) -> list[Frequent]:
    """Return the top values, unless most values are there once: then a few that came twice tell nothing."""
    return path.top_values if 2 * path.distinct <= sum(path.types.values()) else []


def _value(given: Any) -> str:
    said = value(short(given) if isinstance(given, str) else given)
    return said if len(said) <= 80 else f"{said[:79]}…"


def _percent(share: float) -> str:
    """Write a share; what is neither nothing nor all never looks so."""
    if 0 < share < 0.01:
        return "<1%"
    return ">99%" if 0.99 < share < 1 else f"{share:.0%}"


def _note(shape: Shape) -> str:
    seen = (
        f"First seen {moment(shape.first_seen)}, last seen {moment(shape.last_seen)} (UTC)" if shape.first_seen else ""
    )
    judged = f"paths of the newest {shape.sampled:,}" if 0 < shape.sampled < shape.count else ""
    return f"{'; '.join(_said((seen, judged)))}." if seen or judged else ""


def _said(parts: Iterable[str]) -> Sequence[str]:
    return [part for part in parts if part]


def _payload(sample: Sample) -> str:
    text = msgspec.json.format(encode(sample.payload), indent=2).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def handy(sample: Any) -> Any:
    """Return a number as Python writes it, where that is exact."""
    return float(sample) if isinstance(sample, Decimal) and Decimal(str(float(sample))) == sample else sample
