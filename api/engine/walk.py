"""Taking claimed entries as far as they go at one moment, without doing anything: pure, and run in a thread."""

import logging

import msgspec

from api.clock import monotonic_ns
from api.engine.facts import Seen, run_of
from api.engine.graphs import Graphs
from api.engine.perform import Pending, Progress, broken, progress
from api.language.advance import advance
from api.language.contact import Contact
from api.language.decision import Decision
from api.language.effect import EmailMessage, WebhookMessage
from api.language.facts import Facts, after
from api.language.graph import Graph
from api.language.run import State
from api.store.engine import Claim

SLICE_NS = 1_000_000_000
SLICE_SIZE = 8_000_000  # characters

_log = logging.getLogger("workbench.engine")


def advance_some(org_id: int, claims: list[Claim], graphs: Graphs, seen: Seen) -> list[Progress]:
    """Drive entries in order until all are done or the slice is long or large enough; at least one.

    Entries of one contact see what those before them did to it. One that looks back at messages or entries is left for
    the next slice when another entry of its contact is in this one.
    """
    done: list[Progress] = []
    contacts: dict[str, Contact] = {}
    until_ns, size = monotonic_ns() + SLICE_NS, 0
    for claim in claims:
        facts, contact = seen.facts[claim.entry_id], contacts.get(claim.contact_id)
        if contact is not None:
            if seen.asked[claim.entry_id].looks_back:
                continue
            facts = msgspec.structs.replace(facts, contact=contact)
        each, facts = _advance(claim, graphs.of(org_id, claim), facts, seen)
        contacts[claim.contact_id] = facts.contact
        done.append(each)
        size += each.size
        if size > SLICE_SIZE or monotonic_ns() > until_ns:
            break
    return done


def _advance(claim: Claim, graph: Graph | None, facts: Facts, seen: Seen) -> tuple[Progress, Facts]:
    """Return how far the entry came, and the facts as it leaves them."""
    begun = facts
    try:
        return _taken(claim, graph, facts, seen)
    except Exception as error:  # noqa: BLE001  the edge of one entry: a bug it wakes must not stop the others
        _log.exception("advance_failed", extra={"entry_id": claim.entry_id})
        return broken(claim, run_of(claim), type(error).__name__), begun


def _taken(claim: Claim, graph: Graph | None, facts: Facts, seen: Seen) -> tuple[Progress, Facts]:
    begun = run = run_of(claim)
    decisions: list[Decision] = []
    while run.state is State.RUNNING:
        decision = advance(graph, run, facts, seen.at)
        for effect in decision.effects:
            if isinstance(effect, EmailMessage | WebhookMessage):
                return progress(claim, begun, graph, decisions, Pending(decision, effect, facts)), facts
        decisions.append(decision)
        run, facts = decision.run, after(facts, decision.effects, seen.at)
    return progress(claim, begun, graph, decisions, None), facts
