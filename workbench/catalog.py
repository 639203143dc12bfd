"""Which events there are, how often they come, and what is in them. Every look asks the server anew."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from api.language.catalog import Seen
from workbench import surroundings
from workbench.connection import Connection
from workbench.display.page import bar, moment
from workbench.display.table import Column, plain, table
from workbench.display.words import short, value
from workbench.errors import DraftError, NotThereError, spoken

if TYPE_CHECKING:
    import polars as pl

_FRESH = 2.0  # seconds: one look shows itself in several formats, and completion asks again and again


class EventCount(msgspec.Struct, frozen=True):
    """An event name and how often it came within the window."""

    event: str
    count: int


class Path(msgspec.Struct, frozen=True):
    """One path in an event's payload: how often each type was seen, how often null, and some values."""

    path: str
    types: dict[str, int] = {}
    nulls: int = 0
    samples: list[Any] = []


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    events: tuple[EventCount, ...]
    window_days: int = 30


class _Shape(msgspec.Struct, frozen=True, rename="camel"):
    event: str
    count: int = 0
    first_seen: str | None = None
    last_seen: str | None = None
    sampled: int = 0
    paths: tuple[Path, ...] = ()


class Catalog:
    """The events of the organization, most frequent first.

    `wb.catalog` shows them, `wb.catalog["deposit"]` shows what is in one, `wb.catalog.frame()` is a polars frame,
    `wb.catalog(days=7, prefix="dep")` looks closer.
    """

    def __init__(
        self, connection: Connection, *, days: int | None = None, prefix: str | None = None, limit: int | None = None
    ) -> None:
        self._connection = connection
        self._asked = {"days": days, "prefix": prefix, "limit": limit}
        self._answer: _Answer | None = None
        self._at = 0.0
        self._shapes: dict[str, tuple[float, EventShape]] = {}

    @spoken('wb.catalog(days=7, prefix="dep", limit=20)')
    def __call__(self, *, days: int | None = None, prefix: str | None = None, limit: int | None = None) -> "Catalog":
        """Return the catalog of the last `days` (1 to 30), of names that begin with `prefix`, at most `limit` of them."""
        return Catalog(self._connection, days=days, prefix=prefix, limit=limit)

    @property
    def names(self) -> tuple[str, ...]:
        """The event names, most frequent first."""
        return tuple(each.event for each in self._look().events)

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with `event` and `count`."""
        import polars as pl

        events = self._look().events
        columns = {"event": [each.event for each in events], "count": [each.count for each in events]}
        return pl.DataFrame(columns, schema={"event": pl.String, "count": pl.Int64})

    def __iter__(self) -> Iterator[EventCount]:
        return iter(self._look().events)

    def __len__(self) -> int:
        return len(self._look().events)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self.names

    def __getitem__(self, name: str) -> "EventShape":
        """Return what is in one event; raise NotThereError, with the nearest names, when it was never seen."""
        if not isinstance(name, str):
            raise DraftError(f'{name!r} is not the name of an event: wb.catalog["deposit"]')
        at, shape = self._shapes.get(name, (-_FRESH, None))
        if shape is None or surroundings.seconds() - at > _FRESH:
            shape = self._shape(name)
            self._shapes[name] = surroundings.seconds(), shape
        return shape

    def _shape(self, name: str) -> "EventShape":
        try:
            answer = self._connection.get(f"/events/catalog/{name.lower()}")
        except NotThereError:
            raise NotThereError(f"no event {name!r} was seen{self._meant(name)}") from None
        return EventShape(msgspec.convert(answer, _Shape))

    def __getattr__(self, name: str) -> "EventShape":
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self.names if name.isidentifier())]

    def nearest(self, name: str) -> str | None:
        """Return the known name that is most like `name`, if any is."""
        return next(iter(difflib.get_close_matches(name.lower(), self.names, 1)), None)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self.names)

    def _meant(self, name: str) -> str:
        near = self.nearest(name)
        return f"; did you mean {near!r}?" if near else ". `wb.catalog` shows those there are"

    def _look(self) -> _Answer:
        if self._answer is None or surroundings.seconds() - self._at > _FRESH:
            self._answer = msgspec.convert(self._connection.get("/events/catalog", **self._asked), _Answer)
            self._at = surroundings.seconds()
        return self._answer

    def _title(self) -> str:
        return f"Events of the last {self._look().window_days} days"

    def __repr__(self) -> str:
        rows = [(each.event, each.count) for each in self]
        return f"{self._title()}\n{plain((Column('event'), Column('count', number=True)), rows)}"

    def _repr_html_(self) -> str:
        events = self._look().events
        total = sum(each.count for each in events) or 1
        most = max((each.count for each in events), default=1) or 1
        rows = [(each.event, f"{each.count:,}", bar(each.count / most), f"{each.count / total:.1%}") for each in events]
        columns = (Column("event"), Column("count", number=True), Column(""), Column("share", number=True))
        note = f'{len(events)} names, {sum(each.count for each in events):,} events. One in detail: wb.catalog["name"]'
        return table(columns, rows, title=self._title(), note=note, empty="No events yet. wb.events.send(…) sends one.")


class EventShape:
    """What is in one event. Types are evidence, not a schema: the next event may differ."""

    def __init__(self, shape: _Shape) -> None:
        self.event, self.count, self.paths = shape.event, shape.count, shape.paths
        self.first_seen, self.last_seen = shape.first_seen, shape.last_seen
        self._sampled = shape.sampled or shape.count

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per path and type."""
        import polars as pl

        rows = [(each.path, kind, count, each.nulls) for each in self.paths for kind, count in each.types.items()]
        schema = {"path": pl.String, "type": pl.String, "count": pl.Int64, "nulls": pl.Int64}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def example(self, **payload: Any) -> dict[str, Any]:
        """Return an event made of values that were seen, to simulate with; keywords replace values of the payload."""
        plain_paths = [each for each in self.paths if each.samples and "." not in each.path and "[" not in each.path]
        return {"event": self.event, "payload": {each.path: _handy(each.samples[0]) for each in plain_paths} | payload}

    def __repr__(self) -> str:
        rows = [(each.path, _types(each), _samples(each)) for each in self.paths]
        return f"{self._title()}\n{plain((Column('path'), Column('types'), Column('examples')), rows, 'Its payload is empty.')}"

    def _repr_html_(self) -> str:
        rows = [
            (each.path, _types(each), bar(self._share(each), 80), f"{self._share(each):.0%}", _samples(each))
            for each in self.paths
        ]
        columns = (Column("path"), Column("type"), Column(""), Column("present in", number=True), Column("examples"))
        note = (
            f"First seen {moment(self.first_seen)}, last seen {moment(self.last_seen)} (UTC)."
            if self.first_seen
            else ""
        )
        return table(columns, rows, title=self._title(), note=note, empty="Its payload is empty.")

    def _share(self, path: Path) -> float:
        seen = sum(path.types.values())
        return min(seen / max(self._sampled, seen, 1), 1.0)

    def _title(self) -> str:
        return f"{self.event}: {self.count:,} events"


def _types(path: Path) -> str:
    total = sum(path.types.values()) or 1
    ranked = sorted(path.types.items(), key=lambda each: -each[1])
    return ", ".join(kind if len(ranked) == 1 else f"{kind} {count / total:.0%}" for kind, count in ranked)


def _samples(path: Path) -> str:
    return ", ".join(value(short(each) if isinstance(each, str) else each) for each in path.samples[:4])


def _handy(sample: Any) -> Any:
    """Return a number as Python writes it, where that is exact."""
    return float(sample) if isinstance(sample, Decimal) and Decimal(str(float(sample))) == sample else sample


def seen(catalog: Catalog, wanted: Iterable[str]) -> Seen:
    """Return what the catalog knows about the events that an automation names: which came, and what was in them."""
    paths = {}
    names = list(wanted)
    for name in names[:_MOST_LOOKED_AT]:
        with contextlib.suppress(NotThereError):
            paths[name] = frozenset(path.path for path in catalog[name].paths)
    return Seen(tuple(dict.fromkeys((*catalog.names, *paths))), paths)


_MOST_LOOKED_AT = 8  # events; each costs a look at its newest payloads
