"""One node with one event: what the engine's own interpreter makes of it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from api.language.action import Invalid
from api.language.advance import advance
from api.language.codec import decode
from api.language.contact import meeting
from api.language.decision import Decision
from api.language.described import SIMULATED
from api.language.effect import ContactUpdated, Effect, EmailMessage, InappMessage, TagAdded, TagRemoved, WebhookMessage
from api.language.event import Event
from api.language.facts import Facts
from api.language.filter import Verdict
from api.language.graph import Graph, Node
from api.language.run import Run, State
from workbench.author import JsonObject
from workbench.canvas.samples import Person
from workbench.display import words

_STAND_INS = {"no_wallet": {"walletAddress": "0x…"}, "no_email": {"email": "someone@example.com"}}


class Preview(msgspec.Struct, frozen=True):
    """What becomes of one event at one node.

    `title`, `body`, `where`: the message, as it would be received; `html`: its body is HTML. `says`: what else happens. `asked`: the
    verdict on each filter. `error`: why it would fail; `note`: what is not quite as it would be.
    """

    title: str = ""
    body: str = ""
    where: str = ""
    html: bool = False
    says: str = ""
    asked: tuple[JsonObject, ...] = ()
    error: str = ""
    note: str = ""


def preview(node: Node, event: Event, who: Person, now: datetime, automation_id: str = SIMULATED) -> Preview:
    """Return what the node does with an event of a contact, whatever came before it; by its id a split knows who goes where."""
    if isinstance(node.action, Invalid):
        return Preview(says="It has to be mended first.")
    run = Run(SIMULATED, automation_id, State.RUNNING, node.id, attempt=1)
    decision = _decided(node, run, event, who, now)
    cause = _cause(decision)
    if cause not in _STAND_INS:
        return _shown(decision)
    known = msgspec.structs.replace(who, described=who.described | _STAND_INS[cause])
    shown = _shown(_decided(node, run, event, known, now))
    return msgspec.structs.replace(shown, note=f"{words.outcome(cause)}: it would not arrive".capitalize())


def _decided(node: Node, run: Run, event: Event, who: Person, now: datetime) -> Decision:
    contact = msgspec.structs.replace(meeting(who.contact(), event), opted_out=())
    facts = Facts(event.name, event.identifiers, decode(event.payload), contact)
    return advance(Graph((node,)), run, facts, now)


def _cause(decision: Decision) -> str:
    step = decision.step
    return str(step.detail.get("cause", "")) if step is not None and step.outcome == "failed" else ""


def _shown(decision: Decision) -> Preview:
    step = decision.step
    if step is not None and step.outcome == "failed":
        return Preview(error=str(step.detail["error"]))
    if decision.effects:
        return _done(decision.effects[0])
    if step is None:
        return Preview()
    noted = msgspec.convert(step.detail.get("verdicts", ()), tuple[Verdict, ...])
    return Preview(says=_said(step.outcome, step.handle, step.detail), asked=verdicts(noted))


def _done(effect: Effect) -> Preview:
    match effect:
        case InappMessage() | EmailMessage() | WebhookMessage():
            title, body, where = words.message(effect)
            return Preview(title, body, where, isinstance(effect, EmailMessage) and effect.html)
        case ContactUpdated(attributes=attributes):
            return Preview(says=f"Sets {words.assignments(attributes)}.")
        case TagAdded(tag=tag):
            return Preview(says=f"Adds the tag {words.value(tag)}.")
        case TagRemoved(tag=tag):
            return Preview(says=f"Takes the tag {words.value(tag)} off.")


def _said(outcome: str, handle: str | None, detail: dict[str, Any]) -> str:
    if outcome == "branched":
        return f"Goes on along “{words.HANDLE_WORDS.get(handle or '', handle or '')}”."
    if outcome == "waiting":
        most = ", at most" if detail["cause"] == "event" else ""
        return f"Waits{most} until {words.moment_words(detail['until'])} UTC."
    return f"{words.outcome(outcome)}.".capitalize()


def verdicts(given: Iterable[Verdict]) -> tuple[JsonObject, ...]:
    """Return verdicts on filters in words: `passed`, what was `asked`, what was `found`."""
    return tuple({"passed": each.passed, "asked": words.condition(each), "found": words.found(each)} for each in given)
