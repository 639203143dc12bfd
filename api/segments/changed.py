"""The contacts that changed since the last refresh of a segment.

The watermark of a refresh is what its members were computed from: the snapshot of its query, and the borders of time
that the query compared with (`api.segments.increments`). The next refresh takes its own snapshot, and finds:

- the contacts of events that the former snapshot does not have, whatever their dates, by the numbers of their
  transactions: events that were committed late, and imports, too. If the query reads only events of some names, these
  suffice, and those that changed attributes if it reads contacts;
- the contacts with a change of a value or of a membership that it does not have, those that were created or erased
  since, and those whose rows a merge or its undo moved since, or was moving then;
- the contacts with a time between the former borders and the present ones;
- all that are merged with any of these, as the query returns them for their survivor.

These are found in the transaction that shares its snapshot with the query, so a contact that is not among them has the
same rows in both snapshots.
"""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TypeAlias

import msgspec

from api.clock import to_us, uuid7_from
from api.crypto import Keyring
from api.query.gateway import AnalystQuery
from api.query.parameters import bind
from api.query.select import UnsupportedSqlError
from api.segments.definition import SegmentQuery
from api.segments.increments import CREATED, OCCURRED, Border, Form, read_form
from api.store import segments as store
from api.store.analyst import Evaluate, Snapshot, resolve_snapshot
from api.store.database import Transaction
from api.store.segments import ChangedSince
from workbench.language.problem import Problem
from workbench.language.sql import tokenize

MAX_CHANGED = 50_000  # beyond that the whole query is not slower; 2 MB of ids in its session

# Increase it with each change of what `read_form` accepts or returns: the next refresh then reads all contacts.
_PROOF_VERSION = 2

_OVERLAP = timedelta(minutes=5)  # longer than any request takes from its time to its transaction
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
Moments: TypeAlias = tuple[datetime | None, ...]


class Watermark(msgspec.Struct, frozen=True):
    """What the members of a segment were computed from.

    `query`: the version of the proof and the hash of the query. `borders`: the values of its borders; None where one is
    null. `unsettled`: contacts whose rows were being moved. `open_since`: no transaction that the snapshot does not
    have began earlier. `partitions`: those of events, by their oids.
    """

    query: str
    snapshot: Snapshot
    borders: Moments
    unsettled: tuple[str, ...]
    open_since: datetime
    partitions: frozenset[int] = frozenset()


class ChangedContacts:
    """Chooses the contacts that a refresh reads: those that changed since a watermark, or all.

    `contact_ids` is None until the query begins, and if the refresh reads all contacts; `reason` says why. `watermark`
    is that of the query, or None if the query allows no increments or the database does not tell its snapshot.
    """

    def __init__(self, org_id: int, query: SegmentQuery, keyring: Keyring, former: bytes | None = None) -> None:
        self.contact_ids: frozenset[str] | None = None
        self.watermark: Watermark | None = None
        self.reason: str | None = "the server does not tell which transactions a query sees"
        self._org_id, self._query = org_id, query
        query_hash = AnalystQuery(org_id, query.sql, query.params, clear_emails=False).hash
        self._hash = f"{_PROOF_VERSION}:{query_hash}"
        self._seal = keyring.of(org_id).seal_email
        self._former = _read_watermark(former)
        self._unsettled: tuple[str, ...] = ()
        self._open_since: datetime | None = None
        self._form: Form | None = None
        try:
            self._form = read_form(query)
        except UnsupportedSqlError as error:
            self.reason = str(error)

    async def prepare(self, tx: Transaction) -> None:
        if self._form is not None:
            self._unsettled = tuple(await store.find_unsettled(tx, self._org_id))
            self._open_since = await store.find_oldest_transaction(tx)

    async def choose(self, tx: Transaction, snapshot: Snapshot, evaluate: Evaluate) -> Collection[str] | None:
        self.contact_ids = self.watermark = None
        if self._form is None:
            return None
        borders = await self._evaluate_borders(self._form.borders, evaluate)
        partitions = frozenset(await store.list_partitions(tx))
        open_since = min(self._open_since or snapshot.at, snapshot.at)
        self.watermark = Watermark(self._hash, snapshot, borders, self._unsettled, open_since, partitions)
        former = self._former
        if former is None or former.query != self._hash:
            self.reason = "there is no earlier refresh of this query to start from"
        elif (seen := await resolve_snapshot(tx, former.snapshot)) is None:
            self.reason = "the database is not the one of the last refresh"
        elif not former.partitions <= partitions:
            self.reason = "a month of events was dropped"
        else:
            self.reason = None
            self.contact_ids = await self._find(tx, former, seen, self.watermark)
        return self.contact_ids

    async def _evaluate_borders(self, borders: tuple[Border, ...], evaluate: Evaluate) -> Moments:
        if not borders:
            return ()
        # The line break ends a comment.
        texts = [f"extract(epoch FROM ({border.sql}\n)::timestamptz)::text" for border in borders]
        text = f"SELECT {', '.join(texts)}"
        params = self._query.params if isinstance(self._query.params, dict) else {}
        used = {token.text[1:]: params[token.text[1:]] for token in tokenize(text) if token.kind == "name"}
        statement = bind(text, used, self._seal)
        assert not isinstance(statement, Problem), statement
        moments = await evaluate(statement.statement, statement.parameters)
        return tuple(None if moment is None else _read_moment(moment) for moment in moments)

    async def _find(
        self, tx: Transaction, former: Watermark, seen: Snapshot, present: Watermark
    ) -> frozenset[str] | None:
        """Return the contacts that changed since a watermark; None, and set `reason`, if these are not to be found."""
        limit, since = MAX_CHANGED + 1, former.open_since - _OVERLAP
        first_id, last_id = (uuid7_from(max(to_us(at), 0), bytes(8)) for at in (since, present.snapshot.at + _DAY))
        form = self._form
        assert form is not None
        changed_since = ChangedSince(
            oldest=min((seen.end, *seen.open)),
            end=seen.end,
            open=list(seen.open),
            since=since,
            first_id=first_id,
            last_id=last_id,
            events=form.events,
            contact_values=form.reads_contacts,
            memberships=form.reads_members,
        )
        changed = {*former.unsettled, *self._unsettled}
        changed.update(await store.find_changed(tx, self._org_id, changed_since, limit))
        for border, before, after in zip(form.borders, former.borders, present.borders, strict=True):
            if before == after:
                continue
            if before is None or after is None:
                self.reason = "a time that the query compares with is null"
                return None
            low, high = min(before, after), max(before, after)
            if border.by_day:
                high = min(high, _LAST - _DAY) + _DAY
            for column in border.columns:
                if column == CREATED:
                    changed.update(await store.find_created(tx, self._org_id, low, high, limit))
                else:
                    find = store.find_occurred if column == OCCURRED else store.find_received
                    changed.update(await find(tx, self._org_id, low, high, form.events, limit))
            if len(changed) > MAX_CHANGED:
                break
        if len(changed) <= MAX_CHANGED:
            related = frozenset(await store.find_related(tx, self._org_id, list(changed)))
            if len(related) <= 2 * MAX_CHANGED:
                return related
        self.reason = f"more than {MAX_CHANGED:,} contacts changed"
        return None


def _read_watermark(text: bytes | None) -> Watermark | None:
    """Return a watermark; None if it is of a release with other fields."""
    try:
        return None if text is None else msgspec.json.decode(text, type=Watermark)
    except msgspec.ValidationError:
        return None


def _read_moment(seconds: str) -> datetime:
    """Return the moment, from the seconds since 1970; beyond the years 1 to 9999, where no event is, the next one."""
    number = Decimal(seconds)
    try:
        return _EPOCH + timedelta(microseconds=int(number * 1_000_000))
    except OverflowError:
        return _FIRST if number < 0 else _LAST


def refusal(query: SegmentQuery) -> str | None:
    """Return which part of a query prevents refreshes by increments; None if nothing does."""
    return _refusal(query.sql, msgspec.json.encode(query.params))


@lru_cache(1_000)
def _refusal(sql: str, params: bytes) -> str | None:
    """The same for a list of segments, because reading one query takes up to a millisecond."""
    try:
        read_form(SegmentQuery(sql, msgspec.json.decode(params)))
    except UnsupportedSqlError as error:
        return str(error)
    return None
