"""Decide: take claimed entries as far as they go at one moment, without doing anything.

Pure apart from the clock that bounds a slice, and run in a thread: rendering long texts takes long.
"""

import logging

import msgspec

from api.clock import monotonic_ns
from api.engine.claims import run_of
from api.engine.facts import BatchFacts, Graphs
from api.engine.progress import EntryProgress, PendingDelivery, dead_entry, progress_of
from api.store.entries import Claim
from workbench.language.advance import advance
from workbench.language.contact import ContactState
from workbench.language.decision import Decision
from workbench.language.facts import Facts, apply_effects
from workbench.language.graph import Graph
from workbench.language.run import ExternalEffect, State

SLICE_NS = 1_000_000_000  # well within a lease, so that a slice can still be recorded
SLICE_CHARACTERS = 8_000_000

_log = logging.getLogger("workbench.engine")


def advance_slice(org_id: int, claims: list[Claim], graphs: Graphs, facts: BatchFacts) -> list[EntryProgress]:
    """Advance claimed entries in order, until all are done or the slice is long or large enough; at least one.

    Entries of one contact see the tags and attributes that the entries before them have set.
    """
    batch: list[EntryProgress] = []
    contacts: dict[str, ContactState] = {}
    until_ns, characters = monotonic_ns() + SLICE_NS, 0
    for claim in claims:
        entry_facts, contact = facts.facts[claim.entry_id], contacts.get(claim.contact_id)
        if contact is not None:
            # What another entry of this slice does to the contact's messages and entries is not in the facts that were
            # read: an entry that looks back at those waits for the next slice, which reads them again.
            if facts.requests[claim.entry_id].looks_back:
                continue
            entry_facts = msgspec.structs.replace(entry_facts, contact=contact)
        try:
            progress, entry_facts = _advance(claim, graphs.of(org_id, claim), entry_facts, facts)
        except Exception as error:  # noqa: BLE001  a bug that one entry triggers must not stop the others
            _log.exception("advance_failed", extra={"entry_id": claim.entry_id})
            progress = dead_entry(claim, type(error).__name__)
        contacts[claim.contact_id] = entry_facts.contact
        batch.append(progress)
        characters += progress.characters
        if characters > SLICE_CHARACTERS or monotonic_ns() > until_ns:
            break
    return batch


def _advance(claim: Claim, graph: Graph | None, facts: Facts, batch: BatchFacts) -> tuple[EntryProgress, Facts]:
    """Advance one entry to its next wait, its next delivery or its end; return the facts with its effects applied."""
    start = run = run_of(claim)
    decisions: list[Decision] = []
    while run.state is State.RUNNING:
        decision = advance(graph, run, facts, batch.decide_at)
        for effect in decision.effects:
            if isinstance(effect, ExternalEffect):
                # This decision holds only if the delivery succeeds, so nothing after it is decided yet.
                return progress_of(claim, start, graph, decisions, PendingDelivery(decision, effect, facts)), facts
        decisions.append(decision)
        run, facts = decision.run, apply_effects(facts, decision.effects, batch.decide_at)
    return progress_of(claim, start, graph, decisions), facts
