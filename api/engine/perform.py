"""What decisions ask for, as rows: the only place where an effect becomes something.

In-app messages and tags live in the database, so they commit in one transaction with the state of their entry.
"""

import msgspec

from api.language.codec import encode
from api.language.decision import Decision
from api.language.effect import Effect, InappMessage, TagAdded
from api.language.run import Run, State
from api.store.engine import Claim, MessageRow, Standing, StepRow


class Progress(msgspec.Struct, frozen=True):
    """How far one claimed entry came: where it stands, its steps, and the effects to perform."""

    claim: Claim
    run: Run
    steps: tuple[StepRow, ...]
    messages: tuple[MessageRow, ...]
    tags: tuple[str, ...]

    @property
    def standing(self) -> Standing:
        """Where the entry stands now, fenced by the token of its claim."""
        run, claim = self.run, self.claim
        standing = (run.state, run.outcome, run.node_id, run.step, run.attempt, run.due_at, run.error)
        return Standing(claim.entry_id, claim.token, *standing)

    @property
    def size(self) -> int:
        """Roughly how many characters there are to write."""
        texts = (len(message.title) + len(message.body) for message in self.messages)
        return sum(texts) + sum(len(step.detail) for step in self.steps)

    def log(self, new_messages: set[str]) -> list[StepRow]:
        """Return the steps as they are to be told: a message that an earlier life of the entry sent is not sent again."""
        again = {message.node_id for message in self.messages if message.id not in new_messages}
        return [
            msgspec.structs.replace(step, outcome="already_sent") if step.node_id in again else step
            for step in self.steps
        ]


def broken(claim: Claim, run: Run, cause: str) -> Progress:
    """Return the end of an entry that cannot be driven, whatever the reason: dead, with nothing performed."""
    return Progress(claim, run.to(State.DEAD, outcome="internal_error", error=f"internal_error: {cause}"), (), (), ())


def progress(claim: Claim, run: Run, decisions: list[Decision]) -> Progress:
    """Return what `decisions`, taken from `run` on, amount to."""
    steps = []
    index = run.step
    for decision in decisions:
        if decision.step is not None:
            steps.append(_step_row(claim, index, decision))
        index = decision.run.step
    effects = [effect for decision in decisions for effect in decision.effects]
    return Progress(
        claim,
        decisions[-1].run if decisions else run,
        tuple(steps),
        tuple(_message_row(claim, effect) for effect in effects if isinstance(effect, InappMessage)),
        _tags(effects),
    )


def _tags(effects: list[Effect]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(effect.tag for effect in effects if isinstance(effect, TagAdded)))


def _step_row(claim: Claim, index: int, decision: Decision) -> StepRow:
    step = decision.step
    assert step is not None
    detail = encode(step.detail).decode()
    return StepRow(
        claim.entry_id, claim.token, index, step.attempt, step.node_id, step.kind, step.outcome, step.handle, detail
    )


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
