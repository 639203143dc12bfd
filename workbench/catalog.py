"""Which events there are, how often they come, and what is in them. Every look asks the server anew."""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from workbench import environment
from workbench.connection import Connection, TtlCache
from workbench.display.html import TableColumn, moment, plain, spark, table
from workbench.display.payload import Shape, as_html, as_page, as_text, python_number
from workbench.errors import InvalidArgumentError, NotFoundError, usage_example
from workbench.language.check import CatalogFacts
from workbench.language.event import EVENT_NAME
from workbench.language.problem import suggestion

if TYPE_CHECKING:
    import polars as pl

    from workbench.display.widgets import Answer


_KEY = re.compile(r"\[\s*[\"']([^\"']*)$")
_MOST_LISTED = 200  # names that the server lists
_COLUMNS = (
    *(TableColumn("event"), TableColumn("count", number=True), TableColumn("share", number=True)),
    *(TableColumn("by day"), TableColumn("first seen (UTC)"), TableColumn("last seen (UTC)")),
)


class CatalogEntry(msgspec.Struct, frozen=True, rename="camel"):
    """An event name, how often it came within the window, when first and last, and how often on each day of UTC."""

    event: str
    count: int
    first_seen: str | None = None
    last_seen: str | None = None
    per_day: tuple[int, ...] = ()


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    events: tuple[CatalogEntry, ...]
    window_days: int = 30
    days: tuple[str, ...] = ()


class Catalog:
    """The events of the organization, most frequent first.

    `wb.catalog` shows them, `wb.catalog["deposit"]` shows what is in one, `wb.catalog.search("depo")` finds names,
    `wb.catalog.frame()` is a polars frame, `wb.catalog(days=7, prefix="dep")` looks closer.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        days: int | None = None,
        prefix: str | None = None,
        limit: int | None = None,
        text: str = "",
    ) -> None:
        self._connection = connection
        self._days, self._prefix = days, prefix
        self._asked = {"days": days, "prefix": prefix, "limit": limit, "detail": "true"}
        self._text = text
        self._look = TtlCache(lambda: self._found(self._ask(**self._asked)))
        self._shapes: dict[str, TtlCache[EventShape]] = {}

    @usage_example('wb.catalog(days=7, prefix="dep", limit=20)')
    def __call__(self, *, days: int | None = None, prefix: str | None = None, limit: int | None = None) -> "Catalog":
        """Return the catalog of the last `days` (1 to 30), of names that begin with `prefix`, at most `limit` of them."""
        return Catalog(self._connection, days=days, prefix=prefix, limit=limit)

    @usage_example('wb.catalog.search("depo")')
    def search(self, text: str) -> "Catalog":
        """Return the catalog of names that hold a text, whatever their letters' case."""
        if not isinstance(text, str):
            raise InvalidArgumentError('names are searched for a text: wb.catalog.search("depo")')
        return Catalog(self._connection, days=self._days, prefix=self._prefix, text=text.strip().lower())

    @property
    def names(self) -> tuple[str, ...]:
        """The event names, most frequent first."""
        return tuple(each.event for each in self._look().events)

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with `event`, `count`, and when it was seen first and last within the window."""
        import polars as pl

        moments = pl.Datetime("us", "UTC")
        schema: dict[str, Any] = {"event": pl.String, "count": pl.Int64, "first_seen": moments, "last_seen": moments}
        rows = [(each.event, each.count, _read(each.first_seen), _read(each.last_seen)) for each in self]
        return pl.DataFrame(rows, schema=schema, orient="row")

    def __iter__(self) -> Iterator[CatalogEntry]:
        return iter(self._look().events)

    def __len__(self) -> int:
        return len(self._look().events)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self.names

    def __getitem__(self, name: str) -> "EventShape":
        """Return what is in one event; raise NotFoundError, with the nearest names, when it was never seen."""
        if not isinstance(name, str):
            raise InvalidArgumentError(f'{name!r} is not the name of an event: wb.catalog["deposit"]')
        return self._shapes.setdefault(name, TtlCache(lambda: self._shape(name)))()

    def _shape(self, name: str) -> "EventShape":
        try:
            if not EVENT_NAME.fullmatch(name):
                raise NotFoundError(name)
            answer = self._connection.get(f"/events/catalog/{name.lower()}", days=self._days)
        except NotFoundError:
            told = suggestion(name, self.names, ". `wb.catalog` shows those there are")
            raise NotFoundError(f"no event {name!r} was seen{told}") from None
        return EventShape(msgspec.convert(answer, Shape))

    def __getattr__(self, name: str) -> "EventShape":
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self.names if name.isidentifier())]

    def beginning(self, text: str) -> tuple[str, ...]:
        """Return the event names that begin with a text, most frequent first; up to 200 of them, whatever else there is."""
        names = tuple(name for name in self.names if name.startswith(text.lower()))
        if not text or len(self) < _MOST_LISTED:
            return names
        return Catalog(self._connection, days=self._days, prefix=text.lower()).names

    def _ipython_key_completions_(self) -> list[str]:
        written = _KEY.search(environment.line_before_cursor())
        return list(self.beginning(written[1] if written is not None else ""))

    def _ask(self, **asked: Any) -> _Answer:
        return msgspec.convert(self._connection.get("/events/catalog", **asked), _Answer)

    def _found(self, answer: _Answer) -> _Answer:
        """Keep the names with the searched text; where there are more names than the server lists, those that begin with it, too."""
        if not self._text:
            return answer
        events = {each.event: each for each in answer.events if self._text in each.event}
        if len(answer.events) >= _MOST_LISTED and not self._prefix:
            events |= {each.event: each for each in self._ask(**self._asked | {"prefix": self._text}).events}
        ranked = sorted(events.values(), key=lambda each: (-each.count, each.event))
        return msgspec.structs.replace(answer, events=tuple(ranked))

    def _title(self) -> str:
        searched = f" with “{self._text}” in their names" if self._text else ""
        return f"Events of the last {self._look().window_days} days{searched}"

    def _rows(self) -> list[tuple[CatalogEntry, str]]:
        total = sum(each.count for each in self) or 1
        return [(each, f"{each.count / total:.1%}") for each in self]

    def __repr__(self) -> str:
        rows = [(each.event, each.count, moment(each.last_seen)) for each in self]
        columns = (TableColumn("event"), TableColumn("count", number=True), TableColumn("last seen (UTC)"))
        return f"{self._title()}\n{plain(columns, rows, self._empty())}"

    def _repr_html_(self) -> str:
        rows = [
            (each.event, f"{each.count:,}", share, spark(each.per_day), moment(each.first_seen), moment(each.last_seen))
            for each, share in self._rows()
        ]
        note = f'{len(rows)} names, {sum(each.count for each in self):,} events. One in detail: wb.catalog["name"]'
        return table(_COLUMNS, rows, title=self._title(), note=note, empty=self._empty())

    def _empty(self) -> str:
        return "No name holds that." if self._text else "No events yet. wb.events.send(…) sends one."

    def _ipython_display_(self) -> None:
        present(self, self._answered)

    def _answered(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer the widget."""
        if question.get("ask") == "look":
            return self[str(question.get("event"))].page()
        searched = self.search(text) if (text := str(question.get("text") or "")) else self
        return {
            "title": searched._title(),
            "capped": len(searched) >= _MOST_LISTED,
            "days": searched._look().days,
            "empty": searched._empty(),
            "events": [
                {
                    "event": each.event,
                    "count": f"{each.count:,}",
                    "share": share,
                    "first": moment(each.first_seen),
                    "last": moment(each.last_seen),
                    "perDay": each.per_day,
                }
                for each, share in searched._rows()
            ],
        }


class EventShape:
    """What is in one event. Types are evidence, not a schema: the next event may differ."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.event, self.count, self.paths = shape.event, shape.count, shape.paths
        self.first_seen, self.last_seen = shape.first_seen, shape.last_seen
        self.drift, self.samples = shape.drift, shape.samples

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with a row for each path and type of value that was seen there.

        Columns: path, type (string, number, boolean, array, object), count (of the sampled payloads with such a value), nulls (with null there).
        """
        import polars as pl

        rows = [(each.path, kind, count, each.nulls) for each in self.paths for kind, count in each.types.items()]
        schema = {"path": pl.String, "type": pl.String, "count": pl.Int64, "nulls": pl.Int64}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def example(self, **payload: Any) -> dict[str, Any]:
        """Return an event made of values that were seen, to simulate with; keywords replace values of the payload."""
        plain_paths = [each for each in self.paths if each.samples and "." not in each.path and "[" not in each.path]
        return {
            "event": self.event,
            "payload": {each.path: python_number(each.samples[0]) for each in plain_paths} | payload,
        }

    def page(self) -> dict[str, Any]:
        """Return what the widget shows of it: texts and counts."""
        return as_page(self._shape)

    def __repr__(self) -> str:
        return as_text(self._shape)

    def _repr_html_(self) -> str:
        return as_html(self._shape)

    def _ipython_display_(self) -> None:
        present(self, lambda _question: self.page(), self.event)


def present(shown: Catalog | EventShape, answer: "Answer", event: str | None = None) -> None:
    """Show a widget that answers so, and in its absence what is shown; outside a notebook print that."""
    if not environment.in_kernel():
        sys.stdout.write(f"{shown!r}\n")
        return
    static = shown._repr_html_()  # also finds out whether the server answers, before a widget is shown
    from workbench.display.widgets import CatalogWindow, show

    show(CatalogWindow(answer, event=event or ""), static)


def _read(moment: str | None) -> datetime | None:
    return None if moment is None else datetime.fromisoformat(moment)


def seen(catalog: Catalog, wanted: Iterable[str]) -> CatalogFacts:
    """Return what the catalog knows about the events that an automation names: which came, and what was in them."""
    paths = {}
    names = list(wanted)
    for name in names[:_MOST_LOOKED_AT]:
        with contextlib.suppress(NotFoundError):
            paths[name] = frozenset(path.path for path in catalog[name].paths)
    return CatalogFacts(tuple(dict.fromkeys((*catalog.names, *paths))), paths)


_MOST_LOOKED_AT = 8  # events; each costs a look at its newest payloads
