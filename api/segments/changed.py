"""The contacts that changed since the last refresh of a segment.

The watermark of a refresh is what its members were computed from: the snapshot of its query, and the cutoffs that
the query compared with (`api.segments.increments`). The next refresh takes its own snapshot, and finds:

- the contacts of events that the former snapshot does not have, whatever their dates, by the numbers of their
  transactions: events that were committed late, and imports, too. If the query reads only events of some names, these
  suffice, and those that changed attributes if it reads contacts;
- the contacts with a change of a value or of a membership that it does not have, those that were created or erased
  since, and those whose rows a merge or its undo moved since, or was moving then;
- the contacts with a time between the former cutoffs and the present ones;
- all that are merged with any of these, as the query returns them for the kept contact.

These are found in the transaction that shares its snapshot with the query, so a contact that is not among them has the
same rows in both snapshots.
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TypeAlias

import msgspec

from api.clock import to_us, uuid7_from
from api.crypto import Keyring, OrgKeys
from api.query.gateway import AnalystQuery
from api.query.parameters import bind
from api.query.sql_tree import UnsupportedSqlError
from api.segments.definition import SegmentQuery
from api.segments.increments import Cutoff, IncrementalQuery, read_incremental_query
from api.segments.scopes import CREATED, OCCURRED
from api.store import segments as store
from api.store.analyst import ContactChoice, Evaluate, ShareSnapshot, Snapshot, resolve_snapshot
from api.store.database import Transaction
from api.store.segments import ChangedSince
from workbench.language.problem import Problem
from workbench.language.sql import tokenize

MAX_CHANGED = 50_000  # with those that are merged with them. Planning takes up to a second then (docs/decisions/0108)
MAX_NEW_EVENTS = 500_000  # reading these takes about a second

# Increase it with each change of what `read_incremental_query` accepts or returns: then refreshes begin anew.
_PROOF_VERSION = 3

_OVERLAP = timedelta(minutes=5)  # longer than any request takes from its time to its transaction
_DAY = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
Moments: TypeAlias = tuple[datetime | None, ...]


class Watermark(msgspec.Struct, frozen=True):
    """The state of the database from which the members of a segment were computed.

    `query`: the version of the proof and the hash of the query. `cutoffs`: the values of its cutoffs; None where one is
    null. `unsettled`: contacts whose rows were being moved. `open_since`: no transaction that the snapshot does not
    have began earlier. `partitions`: those of events, by their oids.
    """

    query: str
    snapshot: Snapshot
    cutoffs: Moments
    unsettled: tuple[str, ...]
    open_since: datetime
    partitions: frozenset[int] = frozenset()


async def choose_contacts(
    org_id: int,
    query: SegmentQuery,
    keyring: Keyring,
    former: bytes | None,
    tx: Transaction,
    share_snapshot: ShareSnapshot,
    evaluate: Evaluate,
) -> ContactChoice:
    """Choose the contacts that a refresh reads: those that changed since the watermark `former`, or all.

    The last three arguments are those of `ChooseContacts`.
    """
    try:
        incremental = read_incremental_query(query)
    except UnsupportedSqlError as error:
        await share_snapshot()  # the query still has to see one snapshot with its watermark
        return ContactChoice(None, None, str(error))
    unsettled = tuple(await store.find_unsettled(tx, org_id))
    open_since = await store.find_oldest_transaction(tx)
    snapshot = await share_snapshot()
    if snapshot is None:
        return ContactChoice(None, None, "the server does not tell which transactions a query sees")
    query_hash = AnalystQuery(org_id, query.sql, query.params, clear_emails=False).hash
    present = Watermark(
        query=f"{_PROOF_VERSION}:{query_hash}",
        snapshot=snapshot,
        cutoffs=await _evaluate_cutoffs(incremental.cutoffs, query, keyring.of(org_id), evaluate),
        unsettled=unsettled,
        open_since=min(open_since or snapshot.at, snapshot.at),
        partitions=frozenset(await store.list_partitions(tx)),
    )
    contact_ids, reason = await _find_changed(tx, org_id, incremental, _read_watermark(former), present)
    return ContactChoice(contact_ids, msgspec.json.encode(present), reason)


async def _evaluate_cutoffs(
    cutoffs: tuple[Cutoff, ...], query: SegmentQuery, keys: OrgKeys, evaluate: Evaluate
) -> Moments:
    if not cutoffs:
        return ()
    # The line break ends a comment.
    texts = [f"extract(epoch FROM ({cutoff.sql}\n)::timestamptz)::text" for cutoff in cutoffs]
    text = f"SELECT {', '.join(texts)}"
    params = query.params if isinstance(query.params, dict) else {}
    used = {token.text[1:]: params[token.text[1:]] for token in tokenize(text) if token.kind == "name"}
    statement = bind(text, used, keys.seal_email)
    assert not isinstance(statement, Problem), statement
    moments = await evaluate(statement.statement, statement.parameters)
    return tuple(None if moment is None else _read_moment(moment) for moment in moments)


async def _find_changed(
    tx: Transaction, org_id: int, query: IncrementalQuery, former: Watermark | None, present: Watermark
) -> tuple[frozenset[str] | None, str | None]:
    """Return the contacts that changed since a watermark; or None, and the reason why all have to be read."""
    if former is None or former.query != present.query:
        return None, "there is no earlier refresh of this query to start from"
    seen = await resolve_snapshot(tx, former.snapshot)
    if seen is None:
        return None, "the database is not the one of the last refresh"
    if not former.partitions <= present.partitions:
        return None, "a month of events was dropped"
    oldest = min((seen.end, *seen.open))
    if await store.has_many_new_events(tx, org_id, oldest, MAX_NEW_EVENTS):
        return None, f"more than {MAX_NEW_EVENTS:,} events are new"
    limit, since = MAX_CHANGED + 1, former.open_since - _OVERLAP
    first_id, last_id = (uuid7_from(max(to_us(at), 0), bytes(8)) for at in (since, present.snapshot.at + _DAY))
    changed_since = ChangedSince(
        oldest=oldest,
        end=seen.end,
        open=list(seen.open),
        since=since,
        first_id=first_id,
        last_id=last_id,
        events=query.events,
        contact_values=query.reads_contacts,
        memberships=query.reads_members,
    )
    changed = {*former.unsettled, *present.unsettled}
    changed.update(await store.find_changed(tx, org_id, changed_since, limit))
    for cutoff, before, after in zip(query.cutoffs, former.cutoffs, present.cutoffs, strict=True):
        if before == after:
            continue
        if before is None or after is None:
            return None, "a time that the query compares with is null"
        low, high = min(before, after), max(before, after)
        if cutoff.by_day:
            high = min(high, _LAST - _DAY) + _DAY
        for column in cutoff.columns:
            if column == CREATED:
                changed.update(await store.find_created(tx, org_id, low, high, limit))
            else:
                find = store.find_occurred if column == OCCURRED else store.find_received
                changed.update(await find(tx, org_id, low, high, query.events, limit))
        if len(changed) > MAX_CHANGED:
            break
    if len(changed) <= MAX_CHANGED:
        related = frozenset(await store.find_related(tx, org_id, list(changed)))
        if len(related) <= MAX_CHANGED:
            return related, None
    return None, f"more than {MAX_CHANGED:,} contacts changed"


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


def full_refresh_reason(query: SegmentQuery) -> str | None:
    """Return which part of a query prevents refreshes by increments; None if nothing does."""
    return _full_refresh_reason(query.sql, msgspec.json.encode(query.params))


@lru_cache(1_000)
def _full_refresh_reason(sql: str, params: bytes) -> str | None:
    """Cached: a list of segments asks for each, and parsing takes up to 1 ms."""
    try:
        read_incremental_query(SegmentQuery(sql, msgspec.json.decode(params)))
    except UnsupportedSqlError as error:
        return str(error)
    return None
