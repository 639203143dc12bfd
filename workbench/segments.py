"""Segments: names for contacts, by a query that the engine asks again and again, or by the contacts of a frame, frozen."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from workbench.connection import Connection
from workbench.display.page import html, moment, trend
from workbench.display.table import Column, plain, table
from workbench.display.words import both, counted, duration
from workbench.errors import DraftError, RefusedError, StaleError, spoken
from workbench.fresh import Fresh
from workbench.known_segments import Known, answered, find, listed, not_defined, written
from workbench.query import Question, named
from workbench.spans import seconds_of
from workbench.values import bound

if TYPE_CHECKING:
    import polars as pl

    from workbench.display.report import Report
    from workbench.result import Result

_WEEK = 7


class Segment:
    """A name for contacts. Shows how many they are, how fresh that is, and what the last call changed."""

    def __init__(self, connection: Connection, known: Known) -> None:
        self._connection = connection
        self._known = known

    @property
    def name(self) -> str:
        """What it is called in conditions, in SQL and in reports."""
        return self._known.name

    @property
    def size(self) -> int:
        """How many contacts it had when it was last refreshed."""
        return self._known.size

    @property
    def sql(self) -> str | None:
        """The query that defines it; of an audience, the one its frame came from, if that is known."""
        return self._known.sql or self._known.provenance.get("sql")

    @property
    def params(self) -> Any:
        """The values of the query."""
        return self._known.params if self._known.sql else self._known.provenance.get("params")

    @property
    def every(self) -> timedelta | None:
        """How often it is refreshed; None: it is an audience."""
        seconds = self._known.every_seconds
        return None if seconds is None else timedelta(seconds=seconds)

    @property
    def provenance(self) -> dict[str, Any]:
        """Of an audience: `rows`, `unknown`, and of a frame that `wb.sql` returned `sql`, `params`, `queryHash`, `watermark`."""
        return self._known.provenance

    def members(self) -> "Result":
        """Return a polars frame of the contacts in it: contact_id, entered_at, external_id, email, wallet_address."""
        return named(self._connection, "segment_members", {"segment": self.name})

    def history(self) -> "Report":
        """Return how large it was after each change, and at the last refresh: a frame (at, size, entered, departed) that draws itself."""
        from workbench.display.report import report

        rows = named(self._connection, "segment_sizes", {"segment": self.name})
        return report(rows, "segment_sizes", f"Contacts in {self.name}")

    def refresh(self) -> Self:
        """Refresh it now, and show what that changed. Raises SqlError when its query does not work any more."""
        self._known = written(self._connection, "POST", f"/segments/{self.name}/refresh", {}, self._known.sql or "")
        return self

    def delete(self) -> None:
        """Put it away; its name is free again. Raises RefusedError naming the automations and segments that ask for it."""
        try:
            self._connection.delete(f"/segments/{self.name}")
        except StaleError as error:
            asking = both([problem.reason.removesuffix(" asks for it") for problem in error.problems])
            raise RefusedError(f"{self.name!r} is in use: {asking} asks for it", error.problems) from None

    def __repr__(self) -> str:
        told = [f"{self.name}: {_contacts(self.size)}", self._change(), *self._notes(), self._standing()]
        return "\n".join(filter(None, told))

    def _repr_html_(self) -> str:
        known, (state, look) = self._known, _state(self._known)
        shown = {"sql": self.sql, "params": self.params if isinstance(self.params, dict) else {}}
        return html(
            "segment.html.j2",
            **shown,
            name=self.name,
            state=state,
            look=look,
            size=_contacts(self.size),
            change=self._change(),
            trend=trend(known.daily) if sum(each is not None for each in known.daily) > 1 else "",
            notes=self._notes(),
            failing=known.last_error is not None,
            standing=self._standing(),
            how=f'In an automation: .when("contact.segments", contains="{self.name}"). Who they are: .members(); over time: .history()',
        )

    def _change(self) -> str:
        change = self._known.change
        if change is None:
            return ""
        before = self.size - change.entered + change.departed
        if not change.entered and not change.departed:
            return "the same as before" if self.size else ""
        return f"{change.entered:,} entered, {change.departed:,} left, {max(before, 0):,} before"

    def _notes(self) -> list[str]:
        known = self._known
        notes = []
        if known.last_error is not None:
            notes.append(
                f"It cannot be refreshed since {moment(known.failing_since)}: {known.last_error}. "
                f"The contacts are those of {moment(known.refreshed_at)}."
            )
        if known.found is not None and known.found.unknown:
            notes.append(f"{counted(known.found.unknown, 'id')} left out: no contact has it, or it was erased.")
        if known.found is not None and known.found.nulls:
            notes.append(f"{counted(known.found.nulls, 'row')} without a contact_id left out.")
        return notes

    def _standing(self) -> str:
        known = self._known
        if self.every is None:
            rows = known.provenance.get("rows", known.size)
            origin = " from wb.sql" if "queryHash" in known.provenance else ""
            return f"An audience: frozen, from {counted(rows, 'row')}{origin}, {moment(known.refreshed_at) or 'not whole yet'} (UTC)."
        often = duration(self.every)
        often = often.removeprefix("1 ") if often.count(" ") == 1 else often
        return f"Refreshed {moment(known.refreshed_at)} (UTC), every {often}."


class Segments(Sequence[Segment]):
    """The segments of the organization: a table, and a sequence; `wb.segments["whales"]` is one of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._look = Fresh(lambda: listed(connection))

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called."""
        return tuple(each.name for each in self._look.anew())

    @spoken('wb.segments.define("whales", sql="SELECT contact_id FROM …", every="1h")')
    def define(
        self,
        name: str,
        sql: str,
        *,
        every: str | timedelta | None = None,
        params: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> Segment:
        """Create a segment, or change it: the contacts that a query finds, kept fresh by the engine.

        The query is one SELECT as for `wb.sql`, with a column contact_id; write `:least` in it and give `least=value` (or
        `params={"name": value}` for a name that is this call's own). `every` is how often it is asked again, from a minute to a week (an hour unless you say). Shows the size, and what that changed.
        Raises SqlError pointing at the spot.
        """
        asked = _asked(sql, values, params, ("self", "name", "sql", "every", "params"))
        if every is not None:
            asked["everySeconds"] = seconds_of(every, "every")
        there = find(self._connection, name)
        if there is None:
            return self._made("POST", "/segments", {"name": name} | asked, sql)
        if there.kind == "audience":
            raise DraftError(f"{name!r} is an audience: choose another name, or wb.segments[{name!r}].delete() first")
        body = {"params": None} | asked | {"revision": there.revision}
        made = self._made("PUT", f"/segments/{name}", body, sql)
        return made if made._known.found is not None else made.refresh()

    @spoken('wb.segments.preview("SELECT contact_id FROM …")')
    def preview(
        self, sql: str, *, name: str | None = None, params: Mapping[str, Any] | None = None, **values: Any
    ) -> "Preview":
        """Return how many contacts a query finds, and what that would change in the segment `name`. Nothing is written."""
        asked = _asked(sql, values, params, ("self", "sql", "name", "params"))
        body = asked | ({"name": name} if name is not None else {})
        return Preview(answered(self._connection, "POST", "/segments/preview", body, sql))

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with a row for each: name, kind, size, week_ago, refreshed_at, last_error."""
        import polars as pl

        rows = [
            (each.name, each.kind, each.size, _week_ago(each), each.refreshed_at, each.last_error)
            for each in self._look.anew()
        ]
        schema = {
            "name": pl.String,
            "kind": pl.String,
            "size": pl.Int64,
            "week_ago": pl.Int64,
            "refreshed_at": pl.String,
        }
        frame = pl.DataFrame(rows, schema=schema | {"last_error": pl.String}, orient="row")
        return frame.with_columns(pl.col("refreshed_at").str.to_datetime(time_zone="UTC", time_unit="us"))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            known = {each.name: each for each in self._look.anew()}
            if index not in known:
                raise not_defined(index, tuple(known))
            return Segment(self._connection, known[index])
        return list(self)[index]

    def __len__(self) -> int:
        return len(self._look.anew())

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Segment]:
        return (Segment(self._connection, each) for each in self._look.anew())

    def _ipython_key_completions_(self) -> list[str]:
        return [each.name for each in self._look()]

    def __repr__(self) -> str:
        return _text(self._look.anew())

    def _repr_html_(self) -> str:
        return _page(self._look.anew())

    def _repr_mimebundle_(self, **_formats: Any) -> dict[str, str]:
        """Return both at once: they are asked for once, and anew, for a cell may have defined one just now."""
        known = self._look.anew()
        return {"text/plain": _text(known), "text/html": _page(known)}

    def _made(self, method: str, path: str, body: Mapping[str, Any], query: str) -> Segment:
        return Segment(self._connection, written(self._connection, method, path, body, query))


def _text(known: Sequence[Known]) -> str:
    return plain(_COLUMNS, [_row(each) for each in known], _NONE)


def _page(known: Sequence[Known]) -> str:
    rows = [(*row[:2], trend(each.daily), *row[2:]) for each in known for row in [_row(each)]]
    columns = (*_COLUMNS[:2], Column("30 days"), *_COLUMNS[2:])
    return table(columns, rows, title="Segments", note=_NOTE if rows else "", empty=_NONE)


class Preview:
    """What a query for a segment finds. `size` contacts, some of them in `sample`; took `seconds`."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.size: int = answer["size"]
        self.sample: tuple[str, ...] = tuple(answer["sample"])
        self.seconds = float(answer["seconds"])
        self._answer = answer

    def sentence(self) -> str:
        """Say it in words."""
        change, out = self._answer["change"], self._answer["unknown"]
        told = f"{_contacts(self.size)}, found in {self.seconds:.1f} s."
        if change is not None:
            told += f" {change['entered']:,} would enter, {change['departed']:,} would leave."
        return told + (f" {counted(out, 'id')} left out: no contact has it, or it was erased." if out else "")

    def __repr__(self) -> str:
        return self.sentence()

    def _repr_html_(self) -> str:
        return html("line.html.j2", text=self.sentence(), state="preview", look="busy", note="", block="")


_COLUMNS = (
    Column("name"),
    Column("size", number=True),
    Column("in 7 days", number=True),
    Column("refreshed (UTC)"),
    Column("state"),
)
_NONE = 'No segments yet. wb.segments.define("whales", sql="SELECT contact_id FROM …") makes one.'
_NOTE = 'One of them: wb.segments["name"]. In an automation: .when("contact.segments", contains="name")'


def _asked(query: object, keywords: Mapping[str, Any], params: object, options: Collection[str]) -> dict[str, Any]:
    """Return a query with its values as the service takes it; raise DraftError."""
    if not isinstance(query, str):
        raise DraftError('sql is a text: sql="SELECT contact_id FROM app_events WHERE …"')
    return Question(query, bound(query, keywords, params, options)).body()


def _week_ago(known: Known) -> int | None:
    """Return the size a week ago, or when it was new."""
    if len(known.daily) <= _WEEK:
        return None
    since = known.daily[-1 - _WEEK :]
    return next((each for each in since if each is not None), None)


def _row(known: Known) -> tuple[str, str, str, str, str]:
    before = _week_ago(known)
    grown = "" if before is None else f"{known.size - before:+,}" if known.size != before else "0"
    return known.name, f"{known.size:,}", grown, moment(known.refreshed_at), _said(known)


def _said(known: Known) -> str:
    state, _ = _state(known)
    return state if known.last_error is None else f"{state}: {known.last_error}"


def _state(known: Known) -> tuple[str, str]:
    if known.kind == "audience":
        return ("frozen", "busy") if known.refreshed_at is not None else ("not whole", "warn")
    return ("failing", "bad") if known.last_error is not None else ("fresh", "good")


def _contacts(number: int) -> str:
    return f"{number:,} {'contact' if number == 1 else 'contacts'}"
