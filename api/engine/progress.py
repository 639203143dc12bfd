"""Progress: advance claimed entries without side effects, and turn the decisions into the rows to write.

`advance_slice` is pure apart from the clock that bounds a slice. It runs in a thread, because long texts take long to
render.

In-app messages, tags and attributes live in the database and commit in one transaction with the state of their entry.
Emails and webhooks leave the system, so the entry stops before the decision that depends on one (`PendingDelivery`).
"""

import logging
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import msgspec

from api.clock import monotonic_ns
from api.engine.claims import run_of
from api.engine.facts import BatchFacts, GraphSource
from api.store.entries import Claim, EntryStepRow, EntryUpdate, TagChange, joined_names, joining_key
from api.store.events import ATTRIBUTES_TOO_LARGE
from api.store.messages import NewMessage
from workbench.language.actions import STEP_ACTIONS, Collect, MessageAction
from workbench.language.advance import required_facts, walk
from workbench.language.channel import ExternalMessage, InappMessage, Message, channel_of
from workbench.language.codec import Json, encode
from workbench.language.decision import Decision
from workbench.language.event import attribute_key
from workbench.language.facts import Facts
from workbench.language.graph import Graph
from workbench.language.run import ContactUpdated, Effect, EntryJoined, Run, State, TagAdded, TagRemoved, message_id

SLICE_NS = 1_000_000_000  # well within a lease, so that a slice can still be recorded
SLICE_CHARACTERS = 8_000_000

_log = logging.getLogger("workbench.engine")


class PendingDelivery(msgspec.Struct, frozen=True):
    """A decision that holds only if its email or webhook is delivered, with the facts that it was made on.

    `topic`: of the message.
    """

    decision: Decision
    effect: ExternalMessage
    facts: Facts
    topic: str | None = None


class EntryProgress(msgspec.Struct, frozen=True, dict=True):
    """The progress of one claimed entry: its new state, its steps and the effects to write.

    `awaits`: what wakes it while it waits (`EntryUpdate.awaits`). `pending`: the delivery that it needs to continue,
    while it is still running. `skipped`: messages that are not sent at all.
    """

    claim: Claim
    run: Run
    steps: tuple[EntryStepRow, ...] = ()
    effects: tuple[Effect, ...] = ()
    awaits: frozenset[str] = frozenset()
    pending: PendingDelivery | None = None
    skipped: tuple[NewMessage, ...] = ()

    @property
    def update(self) -> EntryUpdate:
        """The new state of the entry, fenced by the token of its claim."""
        run = self.run
        return EntryUpdate(
            entry_id=self.claim.entry_id,
            token=self.claim.token,
            state=run.state,
            outcome=run.outcome,
            node_id=run.node_id,
            step=run.step,
            attempt=run.attempt,
            due_at=run.due_at,
            error=run.error,
            since=run.since,
            since_id=run.since_id if run.since else None,
            awaits=joined_names(self.awaits) or None,
        )

    @property
    def characters(self) -> int:
        """The approximate number of characters to write."""
        texts = (len(message.subject or "") + len(message.body or "") for message in self.messages)
        return sum(texts) + sum(len(step.detail) for step in self.steps)

    @cached_property
    def messages(self) -> tuple[NewMessage, ...]:
        """The in-app messages to store."""
        return tuple(new_message(self.claim, effect) for effect in self.effects if isinstance(effect, InappMessage))

    def steps_to_log(self, new_message_ids: set[str]) -> list[EntryStepRow]:
        """Return the steps; the outcome is `already_sent` if a replayed entry stored the message before."""
        stored_nodes = {message.node_id for message in self.messages if message.id not in new_message_ids}
        return [
            msgspec.structs.replace(step, outcome="already_sent") if step.node_id in stored_nodes else step
            for step in self.steps
        ]


def new_message(claim: Claim, message: Message, topic: str | None = None) -> NewMessage:
    """Return the row of a message, with each of its fields in the column that its channel names."""
    channel = channel_of(message)
    columns: dict[str, Any] = {column: getattr(message, field) for field, column in channel.columns.items()}
    if columns.get("data") is not None:
        columns["data"] = encode(columns["data"]).decode()
    ids = (message.id, claim.contact_id, claim.automation_id, claim.entry_id, message.node_id)
    return NewMessage(*ids, channel.name, claim.token, topic=topic, **columns)


def progress_of(
    claim: Claim, start: Run, graph: Graph | None, decisions: list[Decision], pending: PendingDelivery | None = None
) -> EntryProgress:
    """Return the progress of an entry whose run was `start` before these decisions."""
    steps: list[EntryStepRow] = []
    skipped: list[NewMessage] = []
    run = start
    for decision in decisions:
        step = decision.step
        if step is not None:
            detail = encode(step.detail).decode()
            steps.append(
                EntryStepRow(
                    claim.entry_id,
                    claim.token,
                    run.step,
                    step.attempt,
                    step.node_id,
                    step.kind,
                    step.outcome,
                    step.handle,
                    detail,
                    step.at,
                )
            )
            if step.outcome in ("skipped", "undeliverable"):
                channel = STEP_ACTIONS[step.kind].channel
                assert channel is not None, "only messages are skipped"
                skipped.append(
                    NewMessage(
                        message_id(claim.entry_id, step.node_id),
                        claim.contact_id,
                        claim.automation_id,
                        claim.entry_id,
                        step.node_id,
                        channel.name,
                        cause=step.detail["cause"],
                    )
                )
        run = decision.run
    effects = tuple(effect for decision in decisions for effect in decision.effects)
    awaits = what_wakes(graph, run) if run.state is State.WAITING else frozenset[str]()
    return EntryProgress(claim, run, tuple(steps), effects, awaits, pending, tuple(skipped))


def what_wakes(graph: Graph | None, run: Run) -> frozenset[str]:
    """Return what wakes an entry early that waits at the node of its run (`EntryUpdate.awaits`)."""
    required = required_facts(graph, run)
    awaits = required.later_events.union(map(attribute_key, required.attributes))
    node = None if graph is None or run.node_id is None else graph.by_id.get(run.node_id)
    collects = node is not None and isinstance(node.action, Collect)
    return awaits | {joining_key(run.entry_id)} if collects else awaits


def dead_entry(claim: Claim, cause: str) -> EntryProgress:
    """Return the end of an entry that cannot be driven: dead, without effects."""
    outcome = "invalid_attribute" if cause == ATTRIBUTES_TOO_LARGE else "internal_error"
    return EntryProgress(claim, run_of(claim).to(State.DEAD, outcome=outcome, error=f"{outcome}: {cause}"))


def tag_changes(batch: Iterable[EntryProgress]) -> list[TagChange]:
    """Return the changes of tags by contact.

    Removals are applied first, so a tag that is removed and added again moves to the end.
    """
    changes: dict[str, tuple[dict[str, None], dict[str, None]]] = {}  # dicts as ordered sets
    for progress in batch:
        for effect in progress.effects:
            if isinstance(effect, TagAdded | TagRemoved):
                removed, added = changes.setdefault(progress.claim.contact_id, ({}, {}))
                if isinstance(effect, TagAdded):
                    added.setdefault(effect.tag)
                else:
                    removed.setdefault(effect.tag)
                    added.pop(effect.tag, None)
    return [
        TagChange(contact_id, encode(list(removed)).decode(), encode(list(added)).decode())
        for contact_id, (removed, added) in changes.items()
    ]


def entry_joins(batch: Iterable[EntryProgress]) -> list[tuple[EntryProgress, EntryJoined]]:
    """Return the entries that join others."""
    return [(progress, effect) for progress in batch for effect in progress.effects if isinstance(effect, EntryJoined)]


def attribute_changes(batch: Iterable[EntryProgress]) -> dict[str, dict[str, Json]]:
    """Return the attributes to merge into those of contacts, by contact; later entries win."""
    changes: dict[str, dict[str, Json]] = {}
    for progress in batch:
        for effect in progress.effects:
            if isinstance(effect, ContactUpdated):
                changes.setdefault(progress.claim.contact_id, {}).update(effect.attributes)
    return changes


def advance_slice(org_id: int, claims: list[Claim], graphs: GraphSource, facts: BatchFacts) -> list[EntryProgress]:
    """Advance claimed entries of different contacts, until all are done or the slice is long or large enough.

    Advances at least one.
    """
    batch: list[EntryProgress] = []
    until_ns, characters = monotonic_ns() + SLICE_NS, 0
    for claim in claims:
        try:
            progress = _advance(claim, graphs.of(org_id, claim), facts.facts[claim.entry_id])
        except Exception as error:  # noqa: BLE001  a bug that one entry triggers must not stop the others
            _log.exception("advance_failed", extra={"entry_id": claim.entry_id})
            progress = dead_entry(claim, type(error).__name__)
        batch.append(progress)
        characters += progress.characters
        if characters > SLICE_CHARACTERS or monotonic_ns() > until_ns:
            break
    return batch


def _advance(claim: Claim, graph: Graph | None, facts: Facts) -> EntryProgress:
    """Advance one entry to its next wait, its next delivery or its end."""
    start = run_of(claim)
    decisions: list[Decision] = []
    for decision, after in walk(graph, start, facts, claim.due_at):
        for effect in decision.effects:
            if isinstance(effect, ExternalMessage):
                # This decision holds only if the delivery succeeds, so nothing after it is decided yet.
                assert graph is not None, "only a node sends"
                action = graph.by_id[effect.node_id].action
                topic = action.topic if isinstance(action, MessageAction) else None
                pending = PendingDelivery(decision, effect, facts, topic)
                return progress_of(claim, start, graph, decisions, pending)
        decisions.append(decision)
        facts = after
    return progress_of(claim, start, graph, decisions)
