"""Segments: named groups of contacts.

A segment is defined by a query, which the engine runs again at an interval, or is an audience: the contacts of a
frame, which do not change. An audience stores the query that returned its frame.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import msgspec

from workbench.connection import Connection, TtlCache
from workbench.display.html import TableColumn, html, moment, plain, printable_text, table, table_columns, trend
from workbench.display.words import duration, join_and, quantity
from workbench.duration import seconds_of
from workbench.errors import (
    ConflictError,
    InvalidArgumentError,
    InvalidRequestError,
    NotFoundError,
    WorkbenchError,
    usage_example,
)
from workbench.language.problem import suggestion
from workbench.language.responses import (
    CandidateCounts,
    MembersChange,
    ReachView,
    RefreshScope,
    SegmentPreview,
    SegmentView,
)
from workbench.sql import Params, SqlQuery, bind_values, built_in, plain_value, sql_error

if TYPE_CHECKING:
    import polars as pl

    from workbench.display.charts import Report
    from workbench.frames import Result
    from workbench.language.check import Need


_MAX_PART = 200_000  # contacts of an audience in one request
_TIMEOUT_S = 65.0  # the service runs a query for up to a minute, or rejects the request


class SegmentRecord(SegmentView, frozen=True, rename="camel"):
    """A segment as the service returns it. `counts` and `change` are set in the response to a refresh."""

    daily: tuple[int | None, ...] = ()  # sizes of the last days, oldest first
    counts: CandidateCounts | None = msgspec.field(default=None, name="found")
    change: MembersChange | None = None
    refresh: RefreshScope | None = None

    def size_a_week_ago(self) -> int | None:
        """Return the size a week ago, or the next known one; None for a segment that is younger."""
        if len(self.daily) <= 7:
            return None
        return next((size for size in self.daily[-8:] if size is not None), None)

    def state(self) -> tuple[str, str]:
        if self.kind == "audience":
            return ("frozen", "busy") if self.refreshed_at is not None else ("incomplete", "warn")
        return ("failing", "bad") if self.last_error is not None else ("fresh", "good")


class Segment:
    """A named group of contacts, displayed with its size, its last refresh, and the changes of the last call.

    `name`: in conditions, SQL and reports. `size`: the number of contacts at the last refresh. `sql` and `params`: the
    query; for an audience, the query of its frame or None. `every`: the interval between refreshes; None for an
    audience. `provenance`: the origin of an audience: `rows` and `unknown`; for a result of `wb.sql` also its query and
    watermark. `full_refresh_reason`: what in the query makes each refresh read all contacts; None if a
    refresh reads only those that changed.
    """

    def __init__(self, connection: Connection, record: SegmentRecord) -> None:
        self._connection = connection
        self._show(record)

    def _show(self, record: SegmentRecord) -> Self:
        self._record = record
        self.name, self.size, self.provenance = record.name, record.size, record.provenance
        origin = {"sql": record.sql, "params": record.params} if record.sql else record.provenance
        self.sql: str | None = origin.get("sql")
        self.params = origin.get("params")
        self.every = None if record.every_seconds is None else timedelta(seconds=record.every_seconds)
        self.full_refresh_reason = record.full_refresh_reason
        return self

    def members(self) -> "Result":
        """Return a polars frame of the contacts: contact_id, entered_at (UTC), external_id, email, wallet_address."""
        return built_in(self._connection, "segment_members", {"segment": self.name})

    def history(self) -> "Report":
        """Return a frame, displayed as a chart, with the size after each change and at the last refresh.

        Columns: at (UTC), size, entered, departed.
        """
        from workbench.display.charts import report

        rows = built_in(self._connection, "segment_sizes", {"segment": self.name})
        return report(rows, "segment_sizes", f"Contacts in {self.name}")

    def refresh(self) -> Self:
        """Run the query now, and return the segment, which displays the changes. Raises SqlError if the query fails."""
        path = f"/segments/{self.name}/refresh"
        return self._show(_write(self._connection, "POST", path, {}, self._record.sql or ""))

    def delete(self) -> None:
        """Delete the segment. Raises InvalidRequestError naming the automations and segments that use it, if any."""
        try:
            self._connection.delete(f"/segments/{self.name}")
        except ConflictError as error:
            users = join_and([problem.reason.removesuffix(" uses it") for problem in error.problems])
            raise error.rephrased(f"{self.name!r} is in use by {users}", InvalidRequestError) from None

    @printable_text
    def __repr__(self) -> str:
        size = f"{self.name}: {quantity(self.size, 'contact')}"
        return "\n".join(filter(None, [size, self._change_text(), *self._notes(), self._refresh_text()]))

    def _repr_html_(self) -> str:
        record, (state, look) = self._record, self._record.state()
        return html(
            "segment.html.j2",
            sql=self.sql,
            params=self.params if isinstance(self.params, dict) else {},
            name=self.name,
            state=state,
            look=look,
            size=quantity(self.size, "contact"),
            change=self._change_text(),
            trend=trend(record.daily) if sum(size is not None for size in record.daily) > 1 else "",
            notes=self._notes(),
            failing=record.last_error is not None,
            refresh=self._refresh_text(),
            how=f'In an automation: .when("contact.segments", contains="{self.name}"). '
            "Contacts: .members(); sizes over time: .history()",
        )

    def _change_text(self) -> str:
        change = self._record.change
        if change is None:
            return ""
        before = self.size - change.entered + change.departed
        if not change.entered and not change.departed:
            return "unchanged" if self.size else ""
        return f"{change.entered:,} entered, {change.departed:,} left, {max(before, 0):,} before"

    def _notes(self) -> list[str]:
        record = self._record
        notes = []
        if record.last_error is not None:
            notes.append(
                f"Refreshing has failed since {moment(record.failing_since)}: {record.last_error}. "
                f"The contacts are those of the refresh at {moment(record.refreshed_at)}."
            )
        if (result := record.counts) is not None:
            if result.unknown:
                notes.append(f"{quantity(result.unknown, 'id')} left out: unknown or erased contacts.")
            if result.nulls:
                notes.append(f"{quantity(result.nulls, 'row')} without a contact_id left out.")
        return notes

    def _refresh_text(self) -> str:
        record = self._record
        if self.every is None:
            rows = quantity(record.provenance.get("rows", record.size), "row")
            origin = " from wb.sql" if "queryHash" in record.provenance else ""
            stored = f"{moment(record.refreshed_at)} (UTC)" if record.refreshed_at is not None else "incomplete"
            return f"An audience, which does not change: {rows}{origin}, {stored}."
        interval = duration(self.every)
        if interval.count(" ") == 1:
            interval = interval.removeprefix("1 ")
        text = f"Refreshed {moment(record.refreshed_at)} (UTC), every {interval}"
        if record.full_refresh_reason is not None:
            return f"{text}, each time for all contacts, because {record.full_refresh_reason}."
        if record.refresh is None:
            return f"{text}."
        if record.refresh.contacts is None:
            return f"{text}; this time for all contacts, because {record.refresh.reason}."
        return f"{text}; this time for {quantity(record.refresh.contacts, 'contact')} that changed."


class Segments(Sequence[Segment]):
    """The segments of the organization: a sequence, displayed as a table. `wb.segments["whales"]` is one segment."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._records = TtlCache(lambda: _list_segments(connection))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the segments."""
        return tuple(record.name for record in self._records.refresh())

    @usage_example('wb.segments.define("whales", sql="SELECT contact_id FROM …", every="1h")')
    def define(
        self, name: str, sql: str, *, every: str | timedelta | None = None, params: Params = None, **values: Any
    ) -> Segment:
        """Create or change the segment of the contacts that a query returns; return it after its first refresh.

        `sql`: one SELECT as for `wb.sql`, with a column contact_id. For `:least` in the query pass `least=value`, or
        `params={"name": value}` for a name that is a parameter of this method. `every`: the interval between
        refreshes, from a minute to a week (default: an hour).

        Raises SqlError with the position of an error in the query, InvalidRequestError for an invalid name or
        interval, and InvalidArgumentError if `name` is an audience.
        """
        body = _query_body(sql, values, params, ("self", "name", "sql", "every", "params"))
        if every is not None:
            body["everySeconds"] = seconds_of(every, "every")
        existing = _find(self._connection, name)
        if existing is None:
            return Segment(self._connection, _write(self._connection, "POST", "/segments", {"name": name} | body, sql))
        if existing.kind == "audience":
            raise InvalidArgumentError(
                f"{name!r} is an audience: choose another name, or delete it with wb.segments[{name!r}].delete()"
            )
        # null removes the values of the former query. The revision makes the service reject the change (409) if the
        # segment was changed since it was read.
        body = {"params": None} | body | {"revision": existing.revision}
        segment = Segment(self._connection, _write(self._connection, "PUT", f"/segments/{name}", body, sql))
        # The service runs the query only when it differs from the stored one.
        return segment if segment._record.counts is not None else segment.refresh()

    @usage_example('wb.segments.preview("SELECT contact_id FROM …")')
    def preview(self, sql: str, *, name: str | None = None, params: Params = None, **values: Any) -> "QueryPreview":
        """Return how many contacts a query returns, and the changes in the segment `name`; nothing is stored.

        `params` and `values` as for `define`. Raises SqlError with the position of the error.
        """
        body = _query_body(sql, values, params, ("self", "sql", "name", "params"))
        body |= {"name": name} if name is not None else {}
        return msgspec.convert(_send(self._connection, "POST", "/segments/preview", body, sql), QueryPreview)

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per segment.

        Columns: name, kind (query or audience), size, week_ago (size), refreshed_at (UTC), last_error.
        """
        from workbench.frames import frame_of

        rows = []
        for record in self._records.refresh():
            sizes = record.size, record.size_a_week_ago()
            rows.append((record.name, record.kind, *sizes, record.refreshed_at, record.last_error))
        return frame_of(rows, name=str, kind=str, size=int, week_ago=int, refreshed_at=datetime, last_error=str)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            records = {record.name: record for record in self._records.refresh()}
            if index not in records:
                raise _not_found(index, tuple(records))
            return Segment(self._connection, records[index])
        return list(self)[index]

    def __len__(self) -> int:
        return len(self._records.refresh())

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[Segment]:
        return (Segment(self._connection, record) for record in self._records.refresh())

    def _ipython_key_completions_(self) -> list[str]:
        return [record.name for record in self._records()]

    @printable_text
    def __repr__(self) -> str:
        return _table_text(self._records.refresh())

    def _repr_html_(self) -> str:
        return _table_html(self._records.refresh())

    def _repr_mimebundle_(self, **_formats: Any) -> dict[str, str]:
        # One request for both formats. The cache is not used, because the same cell may have just defined a segment.
        records = self._records.refresh()
        return {"text/plain": _table_text(records), "text/html": _table_html(records)}


class QueryPreview(SegmentPreview, frozen=True):
    """The result of a preview: `size` contacts, some of their ids in `sample`, and the `seconds` of the query.

    `change`: the contacts that would enter and leave. `unknown`: the number of ids that are left out.
    `full_refresh_reason`: as of a segment.
    """

    def sentence(self) -> str:
        """Return the size, the duration and the changes as sentences."""
        sentences = [f"{quantity(self.size, 'contact')}, found in {self.seconds:.1f} s."]
        if self.change is not None:
            sentences.append(f"{self.change.entered:,} would enter, {self.change.departed:,} would leave.")
        if self.unknown:
            sentences.append(f"{quantity(self.unknown, 'id')} left out: unknown or erased contacts.")
        if self.full_refresh_reason is not None:
            sentences.append(f"Each refresh would read all contacts, because {self.full_refresh_reason}.")
        return " ".join(sentences)

    @printable_text
    def __repr__(self) -> str:
        return self.sentence()

    def _repr_html_(self) -> str:
        return html("line.html.j2", text=self.sentence(), state="preview", look="busy", note="", block="")


_COLUMNS = table_columns("name", "size", "in 7 days", "refreshed (UTC)", "state", numbers=("size", "in 7 days"))
_NO_SEGMENTS = 'No segments yet. wb.segments.define("whales", sql="SELECT contact_id FROM …") creates one.'
_TABLE_NOTE = 'Open one with wb.segments["name"]. In an automation: .when("contact.segments", contains="name")'


def _table_text(records: Sequence[SegmentRecord]) -> str:
    return plain(_COLUMNS, [_cells(record) for record in records], _NO_SEGMENTS)


def _table_html(records: Sequence[SegmentRecord]) -> str:
    rows = []
    for record in records:
        name, size, *rest = _cells(record)
        rows.append((name, size, trend(record.daily), *rest))
    columns = (*_COLUMNS[:2], TableColumn("30 days"), *_COLUMNS[2:])
    return table(columns, rows, title="Segments", note=_TABLE_NOTE if rows else "", empty=_NO_SEGMENTS)


def _cells(record: SegmentRecord) -> tuple[str, str, str, str, str]:
    before = record.size_a_week_ago()
    growth = "" if before is None else f"{record.size - before:+,}" if record.size != before else "0"
    state, _ = record.state()
    if record.last_error is not None:
        state = f"{state}: {record.last_error}"
    return record.name, f"{record.size:,}", growth, moment(record.refreshed_at), state


def audience(connection: Connection, contacts: object, name: str) -> Segment:
    """Store the contacts of a frame as an audience; it replaces an audience of the same name."""
    ids = _contact_ids(contacts)
    existing = _find(connection, name)
    if existing is not None and existing.kind == "query":
        raise InvalidArgumentError(f"{name!r} is defined by a query: choose another name for the audience")
    origin = {
        "sql": getattr(contacts, "statement", None),
        "params": dict(getattr(contacts, "params", None) or {}) or None,
        "queryHash": getattr(contacts, "query_hash", None),
        "watermark": getattr(contacts, "watermark", None),
    }
    # A frame derived from a result has other rows than the query, so it has no provenance.
    provenance = {key: value for key, value in origin.items() if value is not None} if origin["sql"] else {}
    more = len(ids) > _MAX_PART
    body = {"name": name, "contactIds": ids[:_MAX_PART], "provenance": provenance, "more": more}
    revision = {"revision": existing.revision} if existing is not None else {}
    record = _write(connection, "POST", "/segments", body | revision)
    for start in range(_MAX_PART, len(ids), _MAX_PART):
        end = start + _MAX_PART
        # The revision ties the part to this upload: the service rejects parts of two uploads for one audience.
        part = {"contactIds": ids[start:end], "more": end < len(ids), "revision": record.revision}
        record = _write(connection, "POST", f"/segments/{name}/contacts", part)
    return Segment(connection, record)


def _contact_ids(contacts: object) -> list[str]:
    """Return the ids in the column contact_id of a frame, in a column, or in a list, without nulls."""
    if hasattr(contacts, "collect"):
        contacts = contacts.collect()  # a lazy frame
    columns = getattr(contacts, "columns", None)
    if columns is not None:
        if "contact_id" not in columns:
            raise InvalidArgumentError(
                f"The frame has no column contact_id; its columns: {', '.join(map(str, columns)) or 'none'}. "
                'If another column has the contacts, rename it: frame.rename({"id": "contact_id"})'
            )
        contacts = contacts["contact_id"]  # type: ignore[index]
    ids = plain_value(contacts)
    if isinstance(ids, str) or not isinstance(ids, Sequence):
        raise InvalidArgumentError(
            'An audience needs a frame with a column contact_id, or a list of ids: wb.audience(frame, name="invited")'
        )
    return [str(contact_id) for contact_id in ids if contact_id is not None]


def count_missing(
    connection: Connection, since: Mapping[str, datetime], needs: "Sequence[Need]", locale_attribute: str
) -> "dict[Need, dict[str | None, tuple[int, int]]]":
    """Return how many contacts of events of names `since` a moment lack each value, and how many were looked at.

    Both by the locale of the contacts. The newest 500 events of each name are looked at.
    """
    numbered = [{"number": n, "path": need.path.split("."), "segments": need.segments} for n, need in enumerate(needs)]
    values = {
        "names": [*since],
        "moments": [at.isoformat() for at in since.values()],
        "needs": msgspec.json.encode(numbered).decode(),
        "locale_attribute": locale_attribute,
    }
    counts: dict[Need, dict[str | None, tuple[int, int]]] = {}
    for number, locale, count, sampled in built_in(connection, "missing_values", values).iter_rows():
        counts.setdefault(needs[number], {})[locale] = count, sampled
    return counts


def count_missing_in_segment(
    connection: Connection, segment: str | None, needs: "Sequence[Need]", locale_attribute: str
) -> "tuple[dict[Need, dict[str | None, tuple[int, int]]], bool]":
    """Return the same for the contacts of a segment (None: for all), and whether only the newest were counted."""
    contacts: dict[str, Any] = {"all": True} if segment is None else {"segment": segment}
    listed = [{"path": need.path, "segments": [*need.segments]} for need in needs]
    answer = connection.post("/segments/reach", {**contacts, "needs": listed, "localeAttribute": locale_attribute})
    reach = msgspec.convert(answer, ReachView)
    counts: dict[Need, dict[str | None, tuple[int, int]]] = {}
    for count in reach.counts:
        counts.setdefault(needs[count.need], {})[count.locale] = count.missing, count.sampled
    return counts, reach.is_sample


def segment_names(connection: Connection) -> tuple[str, ...] | None:
    """Return the names of all segments; None if the server is unavailable or the key may not read them."""
    try:
        return tuple(record.name for record in _list_segments(connection))
    except WorkbenchError:
        return None


def require_segment(connection: Connection, name: object) -> None:
    """Raise NotFoundError, with the nearest name, if a segment does not exist."""
    names = segment_names(connection)
    if not isinstance(name, str):
        raise InvalidArgumentError(f'segment={name!r} is not the name of a segment. Write it like segment="whales"')
    if names is not None and name not in names:
        raise _not_found(name, names)


def _list_segments(connection: Connection) -> tuple[SegmentRecord, ...]:
    return tuple(msgspec.convert(connection.get("/segments")["segments"], list[SegmentRecord]))


def _find(connection: Connection, name: str) -> SegmentRecord | None:
    if not isinstance(name, str):
        raise InvalidArgumentError(f'{name!r} is not the name of a segment. Write it like "whales"')
    # Other names are never valid, and one with a slash would request another route.
    if not name.isascii() or not all(letter.isalnum() or letter in "_-" for letter in name or " "):
        return None
    try:
        return msgspec.convert(connection.get(f"/segments/{name}"), SegmentRecord)
    except NotFoundError:
        return None


def _not_found(name: str, names: Sequence[str]) -> NotFoundError:
    return NotFoundError(f"Segment not found: {name!r}{suggestion(name, names, '. wb.segments lists the segments')}")


def _query_body(query: object, keywords: Mapping[str, Any], params: object, options: Collection[str]) -> dict[str, Any]:
    if not isinstance(query, str):
        raise InvalidArgumentError('sql must be a string: sql="SELECT contact_id FROM app_events WHERE …"')
    return SqlQuery(query, bind_values(query, keywords, params, options)).body()


def _write(connection: Connection, method: str, path: str, body: Mapping[str, Any], query: str = "") -> SegmentRecord:
    return msgspec.convert(_send(connection, method, path, body, query), SegmentRecord)


def _send(connection: Connection, method: str, path: str, body: Mapping[str, Any], query: str) -> Any:
    """Send a request about a segment and return the response body. Raises SqlError with a position in `query`."""
    response = connection.request(method, path, body=body, timeout_s=_TIMEOUT_S)
    if response.status in (400, 408) and isinstance(response.body, dict) and response.body.get("field") == "sql":
        raise sql_error(query, response)
    return connection.check(response).body
