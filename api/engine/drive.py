"""One batch of one organization, driven: claim, load, advance, record.

Two transactions. The first charges the attempt and takes the lease; the second writes what the language decided, fenced
by the lease's token: a worker that lost its lease writes nothing.
"""

import asyncio
import contextlib
import logging
from datetime import datetime, timedelta
from typing import Literal

from api.clock import Clock, monotonic_ns
from api.engine.perform import Progress, broken, progress
from api.keyring import Keyring, OrgKeys
from api.language.advance import walk
from api.language.codec import decode, encode
from api.language.contact import Contact
from api.language.event import Identifiers
from api.language.facts import Facts
from api.language.graph import Graph, read_graph
from api.language.retry import RetryPolicy
from api.language.run import Run, State
from api.store import engine as store
from api.store.database import ConflictError, Database, RefusedDataError, Transaction, UnavailableError
from api.store.engine import Claim, ContactRow, EventRow
from api.store.locks import lock_contacts

LEASE = timedelta(seconds=10)
SLICE_NS = 1_000_000_000
SLICE_SIZE = 8_000_000  # characters

Lane = Literal["ready", "retrying"]

_log = logging.getLogger("workbench.engine")


class Driver:
    """Drives batches; published graphs never change, so they are read once."""

    def __init__(self, database: Database, keyring: Keyring, clock: Clock, retries: RetryPolicy) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._retries = retries
        self._graphs: dict[tuple[int, str, int], Graph] = {}

    async def drive(self, org_id: int, lane: Lane, most: int) -> int:
        """Take up to `most` due entries of a lane as far as they go; return how many were claimed."""
        now = self._clock.now()
        claims = await self._claim(org_id, lane, now, most)
        if claims:
            await self._finish(org_id, claims)
        return len(claims)

    async def rescue(self, org_id: int, most: int) -> int:
        """Give back entries whose worker stopped in the middle; return how many."""
        now = self._clock.now()
        async with self._database.transaction() as tx:
            rescued = await store.rescue(tx, org_id, now, most)
            moves = [(entry_id, "running", "retrying", "lease_expired") for entry_id in rescued]
            await store.add_transitions(tx, org_id, moves, now)
        if rescued:
            _log.warning("lease_expired", extra={"org_id": org_id, "entries": len(rescued)})
        return len(rescued)

    async def _claim(self, org_id: int, lane: Lane, now: datetime, most: int) -> list[Claim]:
        take = store.claim_ready if lane == "ready" else store.claim_retrying
        async with self._database.transaction() as tx:
            claims = await take(tx, org_id, now, now + LEASE, most)
            moves = [(claim.entry_id, claim.came_from, "running", None) for claim in claims]
            await store.add_transitions(tx, org_id, moves, now)
        return claims

    async def _finish(self, org_id: int, claims: list[Claim]) -> None:
        """Load what decisions need, then decide and record slice by slice, keeping the leases meanwhile."""
        async with self._database.transaction() as tx:
            facts = await self._load(tx, org_id, claims)
        graphs = await self._graphs_of(org_id, claims)
        rest = list(claims)
        keeper = asyncio.create_task(self._keep_leases(org_id, rest))
        try:
            while rest:
                now = self._clock.now()
                done = await asyncio.to_thread(_advance_some, rest, graphs, facts, now)
                await self._record(org_id, done, now)
                del rest[: len(done)]
        finally:
            keeper.cancel()

    async def _keep_leases(self, org_id: int, rest: list[Claim]) -> None:
        """Renew what is not recorded yet; a lease that was lost all the same is noticed when it is written."""
        while True:
            await asyncio.sleep(LEASE.total_seconds() / 3)
            with contextlib.suppress(UnavailableError, ConflictError):
                async with self._database.transaction() as tx:
                    await store.renew_leases(tx, org_id, rest, self._clock.now() + LEASE)

    async def _record(self, org_id: int, done: list[Progress], now: datetime) -> None:
        """Write a slice; when one entry breaks it, write each alone, so that only the poisoned one dies."""
        try:
            async with self._database.transaction() as tx:
                await _record(tx, org_id, done, now)
        except RefusedDataError as error:
            if len(done) == 1:
                _log.warning("refused_by_database", extra={"entry_id": done[0].claim.entry_id, "reason": str(error)})
                await self._record(org_id, [broken(done[0].claim, _run(done[0].claim), str(error))], now)
                return
            for each in done:
                await self._record(org_id, [each], now)

    async def _load(self, tx: Transaction, org_id: int, claims: list[Claim]) -> dict[str, Facts]:
        """Return the facts of each claimed entry."""
        events = await store.load_events(tx, org_id, claims)
        contacts = await store.load_contacts(tx, org_id, list({claim.contact_id for claim in claims}))
        stopped = await store.inactive_automations(tx, org_id, list({claim.automation_id for claim in claims}))
        org_keys = self._keyring.of(org_id)
        return {
            claim.entry_id: _facts(
                org_keys,
                events.get(claim.event_id),
                contacts.get(claim.contact_id),
                stopped.get(claim.automation_id),
                self._retries,
            )
            for claim in claims
        }

    async def _graphs_of(self, org_id: int, claims: list[Claim]) -> dict[tuple[str, int | None], Graph | None]:
        """Return the graphs that the claimed entries run, by automation and version; None where nothing is published."""
        wanted = {(claim.automation_id, claim.version) for claim in claims}
        return {
            (automation_id, version): None if version is None else await self._graph(org_id, automation_id, version)
            for automation_id, version in wanted
        }

    async def _graph(self, org_id: int, automation_id: str, version: int) -> Graph:
        key = (org_id, automation_id, version)
        if key not in self._graphs:
            async with self._database.transaction() as tx:
                raw = await store.load_graph(tx, org_id, automation_id, version)
            # Compiling long templates takes up to seconds: in a thread, and outside the transaction.
            graph = await asyncio.to_thread(read_graph, decode(raw)) if raw is not None else ()
            self._graphs[key] = graph if isinstance(graph, Graph) else Graph()
        return self._graphs[key]


def _facts(
    org_keys: OrgKeys, event: EventRow | None, contact: ContactRow | None, stopped: str | None, retries: RetryPolicy
) -> Facts:
    if event is None or contact is None:
        return Facts("", Identifiers(), {}, Contact(""), "contact_erased")
    return Facts(
        event.name,
        Identifiers(event.wallet, _opened(org_keys, event.email), event.external_id),
        decode(event.payload),
        Contact(
            contact.id,
            Identifiers(contact.wallet, _opened(org_keys, contact.email), contact.external_id),
            decode(contact.attributes),
            tuple(contact.tags),
            tuple(contact.segments),
        ),
        stopped,
        retries,
    )


def _opened(org_keys: OrgKeys, sealed: str | None) -> str | None:
    return None if sealed is None else org_keys.open_email(sealed)


def _advance_some(
    claims: list[Claim], graphs: dict[tuple[str, int | None], Graph | None], facts: dict[str, Facts], now: datetime
) -> list[Progress]:
    """Drive entries in order until all are done or the slice is long or large enough; at least one. Runs in a thread."""
    done: list[Progress] = []
    until_ns, size = monotonic_ns() + SLICE_NS, 0
    for claim in claims:
        done.append(_advance(claim, graphs[claim.automation_id, claim.version], facts[claim.entry_id], now))
        size += done[-1].size
        if size > SLICE_SIZE or monotonic_ns() > until_ns:
            break
    return done


def _run(claim: Claim) -> Run:
    return Run(claim.entry_id, claim.automation_id, State.RUNNING, claim.node_id, claim.step, claim.attempt)


def _advance(claim: Claim, graph: Graph | None, facts: Facts, now: datetime) -> Progress:
    run = _run(claim)
    try:
        return progress(claim, run, list(walk(graph, run, facts, now)))
    except Exception as error:  # noqa: BLE001  the edge of one entry: a bug it wakes must not stop the others
        _log.exception("advance_failed", extra={"entry_id": claim.entry_id})
        return broken(claim, run, type(error).__name__)


async def _record(tx: Transaction, org_id: int, done: list[Progress], now: datetime) -> None:
    """Write states first: what comes after is only for entries whose lease was still ours."""
    held = await store.record_entries(tx, org_id, [each.standing for each in done], now)
    if len(held) < len(done):
        _log.warning("lease_lost", extra={"org_id": org_id, "entries": len(done) - len(held)})
    kept = [each for each in done if each.claim.entry_id in held]
    moves = [
        (each.claim.entry_id, "running", each.run.state.value, each.run.error or each.run.outcome) for each in kept
    ]
    await store.add_transitions(tx, org_id, moves, now)
    new = await store.add_messages(tx, org_id, [message for each in kept for message in each.messages], now)
    await store.add_steps(tx, org_id, [step for each in kept for step in each.log(new)], now)
    await _add_tags(tx, org_id, kept, now)


async def _add_tags(tx: Transaction, org_id: int, kept: list[Progress], now: datetime) -> None:
    tags: dict[str, dict[str, None]] = {}
    for each in kept:
        if each.tags:
            tags.setdefault(each.claim.contact_id, {}).update(dict.fromkeys(each.tags))
    if tags:
        await lock_contacts(tx, tags)
        await store.add_tags(tx, org_id, [(contact, encode(list(new)).decode()) for contact, new in tags.items()], now)
