"""The event catalog: names of events, their counts, and the shape of their payloads."""

import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec

from workbench import environment
from workbench.connection import Connection, TtlCache
from workbench.display.html import moment, plain, printable_text, spark, table, table_columns
from workbench.display.payload import Shape, python_number
from workbench.display.words import quantity
from workbench.errors import InvalidArgumentError, MethodHints, NotFoundError, usage_example
from workbench.language.event import EVENT_NAME
from workbench.language.problem import suggestion
from workbench.language.responses import CatalogResponse, EventCountView

if TYPE_CHECKING:
    import polars as pl

    from workbench.display.widgets import CatalogWindow


_UNFINISHED_KEY = re.compile(r"\[\s*[\"']([^\"']*)$")
MAX_LISTED = 200  # names in one response of the server
_MAX_BOUNDED = 20_000  # events of many names together
MAX_SHAPES = 8  # events whose shape is read at a time: a request for each, in which the server samples payloads
_COLUMNS = table_columns(
    "event", "count", "share", "by day", "first seen (UTC)", "last seen (UTC)", numbers=("count", "share")
)


class _CatalogBody(CatalogResponse, frozen=True, rename="camel"):
    days: tuple[str, ...] = ()


class Catalog(MethodHints):
    """The events of the organization, most frequent first; up to 200 names.

    `wb.catalog` displays them, `wb.catalog["deposit"]` displays the shape of one, `wb.catalog.search("depo")`
    searches the names, `wb.catalog.frame()` is a polars frame, and `wb.catalog(days=7, prefix="dep")` narrows the
    catalog.
    """

    _hint = 'for an event write wb.catalog["deposit"]'

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
        self._query = {"days": days, "prefix": prefix, "limit": limit, "detail": "true"}
        self._text = text
        self._body = TtlCache(self._read)
        self._shapes: dict[str, TtlCache[EventShape]] = {}

    @usage_example('wb.catalog(days=7, prefix="dep", limit=20)')
    def __call__(self, *, days: int | None = None, prefix: str | None = None, limit: int | None = None) -> "Catalog":
        """Return up to `limit` events of the last `days` (1 to 30) with names that begin with `prefix`."""
        return Catalog(self._connection, days=days, prefix=prefix, limit=limit)

    @usage_example('wb.catalog.search("depo")')
    def search(self, text: str) -> "Catalog":
        """Return the catalog of names that contain a text, ignoring case."""
        if not isinstance(text, str):
            raise InvalidArgumentError('search takes a text: wb.catalog.search("depo")')
        return Catalog(self._connection, days=self._days, prefix=self._prefix, text=text.strip().lower())

    @property
    def names(self) -> tuple[str, ...]:
        """The event names, most frequent first."""
        return tuple(entry.event for entry in self._body().events)

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame: event, count (within the window), first_seen (ever) and last_seen (UTC)."""
        from workbench.frames import frame_of

        return frame_of(self, event=str, count=int, first_seen=datetime, last_seen=datetime)

    def __iter__(self) -> Iterator[EventCountView]:
        return iter(self._body().events)

    def __len__(self) -> int:
        return len(self._body().events)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self.names

    def __getitem__(self, name: str) -> "EventShape":
        """Return the shape of one event; raise NotFoundError, with the nearest name, if it never arrived."""
        if not isinstance(name, str):
            raise InvalidArgumentError(f'{name!r} is not the name of an event: wb.catalog["deposit"]')
        return self._shapes.setdefault(name, TtlCache(lambda: self._shape(name)))()

    def newest_since(self, names: Collection[str]) -> dict[str, datetime]:
        """Return a moment for each of these names since which it has some events, but not many.

        Queries for the newest events are bounded by it, because analysts' views are not read in the order of an index.
        Of up to 8 names it has the newest 1,000; of more, those of the last days, or the last one.
        """
        if len(names) <= MAX_SHAPES:
            shapes = {}
            for name in names:
                with suppress(NotFoundError):
                    shapes[name] = self[name].sampled_since
            return {name: since for name, since in shapes.items() if since is not None}
        body, most = self._body(), _MAX_BOUNDED // len(names)
        moments = {}
        for entry in body.events:
            if entry.event not in names or entry.last_seen is None:
                continue
            moments[entry.event] = entry.last_seen
            counts = accumulate(reversed(entry.per_day))
            if days := [day for day, count in zip(reversed(body.days), counts, strict=False) if count <= most]:
                midnight = datetime.fromisoformat(days[-1]).replace(tzinfo=UTC)
                moments[entry.event] = min(entry.last_seen, midnight)
        return moments

    def _shape(self, name: str) -> "EventShape":
        try:
            if not EVENT_NAME.fullmatch(name):  # a name with a slash would request another route
                raise NotFoundError(name)
            body = self._connection.get(f"/events/catalog/{name.lower()}", days=self._days)
        except NotFoundError:
            hint = suggestion(name, self.names, ". wb.catalog lists the events")
            raise NotFoundError(f"Event not found: {name!r}{hint}") from None
        return msgspec.convert(body, EventShape)

    def names_with_prefix(self, text: str) -> tuple[str, ...]:
        """Return up to 200 event names that begin with a text, most frequent first."""
        names = tuple(name for name in self.names if name.startswith(text.lower()))
        if not text or len(self) < MAX_LISTED:
            return names
        # This catalog may lack rare names, so the server selects them.
        return Catalog(self._connection, days=self._days, prefix=text.lower()).names

    def _ipython_key_completions_(self) -> list[str]:
        key = _UNFINISHED_KEY.search(environment.line_before_cursor())
        return list(self.names_with_prefix(key[1] if key is not None else ""))

    def _read(self) -> _CatalogBody:
        body = msgspec.convert(self._connection.get("/events/catalog", **self._query), _CatalogBody)
        if not self._text:
            return body
        entries = [entry for entry in body.events if self._text in entry.event]
        if len(body.events) >= MAX_LISTED and not self._prefix:
            # The server can search beyond the names that it listed, but only by prefix.
            more = self._connection.get("/events/catalog", **self._query | {"prefix": self._text})
            entries += msgspec.convert(more, _CatalogBody).events
        unique = {entry.event: entry for entry in entries}
        ranked = sorted(unique.values(), key=lambda entry: (-entry.count, entry.event))
        return msgspec.structs.replace(body, events=tuple(ranked))

    def _title(self) -> str:
        searched = f" with “{self._text}” in their names" if self._text else ""
        return f"Events of the last {self._body().window_days} days{searched}"

    def _entries_with_share(self) -> list[tuple[EventCountView, str]]:
        total = sum(entry.count for entry in self) or 1
        return [(entry, f"{entry.count / total:.1%}") for entry in self]

    @printable_text
    def __repr__(self) -> str:
        rows = [(entry.event, entry.count, moment(entry.last_seen)) for entry in self]
        columns = table_columns("event", "count", "last seen (UTC)", numbers=("count",))
        return f"{self._title()}\n{plain(columns, rows, self._empty())}"

    def _repr_html_(self) -> str:
        rows = []
        for entry, share in self._entries_with_share():
            first, last = moment(entry.first_seen), moment(entry.last_seen)
            rows.append((entry.event, f"{entry.count:,}", share, spark(entry.per_day), first, last))
        total = sum(entry.count for entry in self)
        note = f'{quantity(len(rows), "name")}, {quantity(total, "event")}. One in detail: wb.catalog["name"]'
        return table(_COLUMNS, rows, title=self._title(), note=note, empty=self._empty())

    def _empty(self) -> str:
        return "No event name contains this text." if self._text else "No events yet. wb.events.send(…) sends one."

    def _ipython_display_(self) -> None:
        _show(self, self._display_)

    def _display_(self) -> "CatalogWindow":  # marimo
        from workbench.display.widgets import CatalogWindow

        return CatalogWindow(self.answer)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer the widget: `look` reads the shape of an `event`, anything else the catalog, searched for `text`."""
        if request.get("ask") == "look":
            return self[str(request.get("event"))].page()
        searched = self.search(text) if (text := str(request.get("text") or "")) else self
        return {
            "title": searched._title(),
            "capped": len(searched) >= MAX_LISTED,
            "days": searched._body().days,
            "empty": searched._empty(),
            "events": [
                {
                    "event": entry.event,
                    "count": f"{entry.count:,}",
                    "share": share,
                    "first": moment(entry.first_seen),
                    "last": moment(entry.last_seen),
                    "perDay": entry.per_day,
                }
                for entry, share in searched._entries_with_share()
            ],
        }


class EventShape(Shape, frozen=True, rename="camel"):
    """The paths in the payloads of one event, with types and samples: what was sent so far, not a schema."""

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per path and type of value.

        Columns: path, type (string, number, boolean, array, object), count (sampled payloads with a value of this
        type), nulls (sampled payloads with null).
        """
        from workbench.frames import frame_of

        rows = [(path.path, kind, count, path.nulls) for path in self.paths for kind, count in path.types.items()]
        return frame_of(rows, path=str, type=str, count=int, nulls=int)

    def example(self, **payload: Any) -> dict[str, Any]:
        """Return an event with a payload of sampled values, for simulations; keywords replace these values."""
        plain_paths = [path for path in self.paths if path.samples and "." not in path.path and "[" not in path.path]
        sampled = {path.path: python_number(path.samples[0]) for path in plain_paths}
        return {"event": self.event, "payload": sampled | payload}

    def _ipython_display_(self) -> None:
        _show(self, self._display_)

    def _display_(self) -> "CatalogWindow":  # marimo
        from workbench.display.widgets import CatalogWindow

        return CatalogWindow(lambda _request: self.page(), event=self.event)


def _show(content: Catalog | EventShape, window: "Callable[[], CatalogWindow]") -> None:
    """Show a widget, with the static HTML for copies of the notebook; outside a notebook print the text."""
    if not environment.in_kernel():
        sys.stdout.write(f"{content!r}\n")
        return
    static = content._repr_html_()  # raises if the server does not answer, before an empty widget appears
    from workbench.display.widgets import show

    show(window(), static)
