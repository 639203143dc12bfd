"""A decision as somebody is told of it who may not see all of a contact.

Decisions are made on what is true, or a simulation would not do what the engine does. Beside each, the same is decided on the contact as
the reader may see it; what is told of contact and texts comes from there: messages, attributes, compared values, reasons. So whatever
a text does with an address, only its mask comes out. Where the two differ too much, nothing is told.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from api.language.decision import Decision
from api.language.effect import ContactUpdated, Effect, EmailMessage, InappMessage, WebhookMessage
from api.language.filter import Verdict
from api.language.run import Step

UNSEEN = "•••"


def seen(decision: Decision, shown: Decision) -> Decision:
    """Return what is told of a decision; `shown`: what the same run decides at the same moment on what may be seen."""
    step = None if decision.step is None else _step(decision.step, shown.step)
    error = decision.run.error
    if step is not None and step.outcome == "failed" and error is not None:
        error = f"{step.detail['cause']}: {step.detail['error']}"
    return Decision(replace(decision.run, error=error), step, _effects(decision.effects, shown.effects))


def seen_verdicts(verdicts: Sequence[Verdict], shown: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Return verdicts with the values that may be seen."""
    return tuple(replace(true, actual=told.actual) for true, told in zip(verdicts, shown, strict=True))


def _step(step: Step, shown: Step | None) -> Step:
    if "verdicts" in step.detail:
        told = [] if shown is None else shown.detail.get("verdicts", [])
        values = [each["actual"] for each in told] or [UNSEEN] * len(step.detail["verdicts"])
        verdicts = [{**true, "actual": value} for true, value in zip(step.detail["verdicts"], values, strict=True)]
        return replace(step, detail={**step.detail, "verdicts": verdicts})
    if step.outcome == "failed":
        return replace(step, detail=_failure(step.detail, shown))
    return step


def _failure(detail: dict[str, Any], shown: Step | None) -> dict[str, Any]:
    alike = shown is not None and shown.outcome == "failed" and shown.detail["cause"] == detail["cause"]
    return shown.detail if shown is not None and alike else {**detail, "error": UNSEEN}


def _effects(effects: tuple[Effect, ...], shown: tuple[Effect, ...]) -> tuple[Effect, ...]:
    return shown if list(map(type, effects)) == list(map(type, shown)) else tuple(map(_unseen, effects))


def _unseen(effect: Effect) -> Effect:
    """Return an effect without what may tell of the contact."""
    match effect:
        case InappMessage():
            return replace(effect, title=UNSEEN, body=UNSEEN)
        case EmailMessage():
            return replace(effect, email=UNSEEN, subject=UNSEEN, body=UNSEEN)
        case WebhookMessage():
            return replace(effect, url=UNSEEN, body=UNSEEN)
        case ContactUpdated(attributes=attributes):
            return ContactUpdated(dict.fromkeys(attributes, UNSEEN))
        case _:
            return effect
