"""What decisions ask for, as rows: the only place where an effect becomes something.

In-app messages, tags and attributes live in the database, so they commit in one transaction with the state of their entry.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import msgspec

from api.language.advance import needs
from api.language.codec import Json, encode
from api.language.decision import Decision
from api.language.effect import ContactUpdated, Effect, InappMessage, OutsideEffect, TagAdded, TagRemoved
from api.language.facts import Facts
from api.language.graph import Graph
from api.language.run import Run, State, Step, message_id
from api.store.engine import Claim, MessageRow, Standing, StepRow, TagChange
from api.store.facts import joined_names
from api.store.ingest import OVERFULL
from api.store.outbox import WithheldRow


class Pending(msgspec.Struct, frozen=True):
    """A decision that stands only once its effect outside has happened, and the facts that it was made on."""

    decision: Decision
    effect: OutsideEffect
    facts: Facts


class Progress(msgspec.Struct, frozen=True, dict=True):
    """How far one claimed entry came: where it stands, its steps, and the effects to perform.

    `awaits`: the events that wake it. `pending`: what has to happen outside before it goes on; it is still running then.
    `withheld`: the messages that are not sent at all.
    """

    claim: Claim
    run: Run
    steps: tuple[StepRow, ...] = ()
    effects: tuple[Effect, ...] = ()
    awaits: frozenset[str] = frozenset()
    pending: Pending | None = None
    withheld: tuple[WithheldRow, ...] = ()

    @property
    def standing(self) -> Standing:
        """Where the entry stands now, fenced by the token of its claim."""
        run, claim = self.run, self.claim
        standing = (run.state, run.outcome, run.node_id, run.step, run.attempt, run.due_at, run.error, run.since)
        return Standing(claim.entry_id, claim.token, *standing, joined_names(self.awaits) or None)

    @property
    def size(self) -> int:
        """Roughly how many characters there are to write."""
        texts = (len(message.title) + len(message.body) for message in self.messages)
        return sum(texts) + sum(len(step.detail) for step in self.steps)

    @cached_property
    def messages(self) -> tuple[MessageRow, ...]:
        """The in-app messages."""
        return tuple(_message_row(self.claim, each) for each in self.effects if isinstance(each, InappMessage))

    def log(self, new_messages: set[str]) -> list[StepRow]:
        """Return the steps as they are to be told: a message that an earlier life of the entry sent is not sent again."""
        again = {message.node_id for message in self.messages if message.id not in new_messages}
        return [
            msgspec.structs.replace(step, outcome="already_sent") if step.node_id in again else step
            for step in self.steps
        ]


def broken(claim: Claim, run: Run, cause: str) -> Progress:
    """Return the end of an entry that cannot be driven, whatever the reason: dead, with nothing performed."""
    outcome = "invalid_attribute" if cause == OVERFULL else "internal_error"
    return Progress(claim, run.to(State.DEAD, outcome=outcome, error=f"{outcome}: {cause}"))


def progress(
    claim: Claim, run: Run, graph: Graph | None, decisions: list[Decision], pending: Pending | None
) -> Progress:
    """Return what `decisions`, taken from `run` on, amount to."""
    steps = []
    ended = run
    for decision in decisions:
        if decision.step is not None:
            steps.append(_step_row(claim, ended.step, decision))
        ended = decision.run
    effects = tuple(effect for decision in decisions for effect in decision.effects)
    awaits = needs(graph, ended).arrivals if ended.state is State.WAITING else frozenset()
    withheld = tuple(
        _withheld_row(claim, each.step) for each in decisions if each.step and each.step.outcome == "skipped"
    )
    return Progress(claim, ended, tuple(steps), effects, awaits, pending, withheld)


def tag_changes(done: Iterable[Progress]) -> list[TagChange]:
    """Return what the entries, in their order, do to the tags of contacts: losses first, for one that comes back is last."""
    changes: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for each in done:
        for effect in each.effects:
            if isinstance(effect, TagAdded | TagRemoved):
                removed, added = changes.setdefault(each.claim.contact_id, ({}, {}))
                if isinstance(effect, TagAdded):
                    added.setdefault(effect.tag)
                else:
                    removed.setdefault(effect.tag)
                    added.pop(effect.tag, None)
    return [TagChange(contact_id, _list(removed), _list(added)) for contact_id, (removed, added) in changes.items()]


def new_attributes(done: Iterable[Progress]) -> dict[str, str]:
    """Return the JSON objects that the entries, in their order, merge into the attributes of contacts."""
    attributes: dict[str, dict[str, Json]] = {}
    for each in done:
        for effect in each.effects:
            if isinstance(effect, ContactUpdated):
                attributes.setdefault(each.claim.contact_id, {}).update(effect.attributes)
    return {contact_id: encode(merged).decode() for contact_id, merged in attributes.items()}


def _list(tags: dict[str, Any]) -> str:
    return encode(list(tags)).decode()


def _step_row(claim: Claim, index: int, decision: Decision) -> StepRow:
    step = decision.step
    assert step is not None
    detail = encode(step.detail).decode()
    return StepRow(
        claim.entry_id, claim.token, index, step.attempt, step.node_id, step.kind, step.outcome, step.handle, detail
    )


def _withheld_row(claim: Claim, step: Step) -> WithheldRow:
    ids = (claim.contact_id, claim.automation_id, claim.entry_id, step.node_id)
    channel = step.kind.removeprefix("send_")
    return WithheldRow(message_id(claim.entry_id, step.node_id), *ids, channel, step.detail["cause"])


def _message_row(claim: Claim, message: InappMessage) -> MessageRow:
    extra = None if message.data is None else encode(message.data).decode()
    return MessageRow(
        message.id,
        claim.contact_id,
        claim.automation_id,
        claim.entry_id,
        message.node_id,
        message.wallet_address,
        message.title,
        message.body,
        extra,
    )
