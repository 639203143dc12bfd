"""Explains why an automation took an event or did not: its state at the time, the verdicts of its trigger, the outcome
of the entry.

The decisions come from the code that ingest and engine run: the trigger's filters, and for an event that did not
happen, a simulation.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from workbench.language.filter import Verdict, explain
from workbench.language.simulate import Trace
from workbench.language.trigger import Trigger

Reason: TypeAlias = Literal[
    "not_there_yet",
    "archived",
    "inactive",
    "other_event",
    "filters",
    "dry_run",
    "unpublished",
    "reentry",
    "loop_guard",
    "dropped",
    "before_live",
    "held_out",
    "no_entry",
]


class ActivationChange(msgspec.Struct, frozen=True):
    """The time at which an automation was activated or deactivated."""

    at: datetime
    active: bool


class AutomationState(msgspec.Struct, frozen=True):
    """An automation at one time: whether it existed, was active or archived, and the version it ran."""

    exists: bool = True
    active: bool = True
    archived: bool = False
    version: int | None = None


class StartedEntry(msgspec.Struct, frozen=True):
    """The entry that an event started. `cause`: why it was refused, or None."""

    id: str
    state: str
    outcome: str | None
    cause: str | None = None


class MatchExplanation(msgspec.Struct, frozen=True):
    """The explanation. `reasons`: everything that prevents the automation from running; empty if nothing does.

    `matched`: an entry exists, or would. `named`: the trigger is for events of this name.
    """

    matched: bool
    named: bool
    verdicts: tuple[Verdict, ...]
    reasons: tuple[Reason, ...]
    cause: str | None = None


def active_since(changes: Sequence[ActivationChange], at: datetime) -> datetime | None:
    """Return the start of the activation period that contains `at`, or None if it is not known."""
    began, active = None, False
    for change in changes:
        if change.at <= at and change.active and not active:
            began = change.at
        active = change.active
    return began


def was_active_at(changes: Sequence[ActivationChange], at: datetime, *, now: bool) -> bool:
    """Return whether an automation was active at a time; `now`: its current state, used if it has no history."""
    before = [change for change in changes if change.at <= at]
    if before:
        return before[-1].active
    return not changes[0].active if changes else now


class ObservedEvent(msgspec.Struct, frozen=True):
    """A received event with its flat context. `named`: the trigger is for this name; `dry`: a dry run.

    For contract logs: `removed` by a reorganization of the chain; `early`: its block precedes the activation.
    """

    named: bool
    context: Mapping[str, Any]
    dry: bool = False
    removed: bool = False
    early: bool = False


def explain_stored_event(
    trigger: Trigger, standing: AutomationState, came: ObservedEvent, entry: StartedEntry | None
) -> MatchExplanation:
    """Explain why a stored event started an entry or did not."""
    verdicts = explain(trigger.filters, came.context)
    if entry is not None:
        return MatchExplanation(True, came.named, verdicts, _of_entry(entry.outcome), entry.cause)
    reasons = [*_standing_against(standing), *_of_trigger(came.named, verdicts)]
    if came.dry:
        reasons.append("dry_run")
    if came.removed:
        reasons.append("dropped")
    if came.early:
        reasons.append("before_live")
    return MatchExplanation(False, came.named, verdicts, tuple(reasons or ["no_entry"]))


def explain_simulated_event(standing: AutomationState, trace: Trace) -> MatchExplanation:
    """Explain why a simulated event would start an entry now or would not."""
    against = _standing_against(standing)
    reasons = [*against, *_of_trigger(trace.name_matched, trace.verdicts)]
    if trace.matched and not against:
        reasons += _of_entry(trace.outcome)
    cause = next((step.detail.get("cause") for step in trace.steps if step.outcome == "refused"), None)
    return MatchExplanation(trace.matched and not against, trace.name_matched, trace.verdicts, tuple(reasons), cause)


_OUTCOMES: Mapping[str | None, Reason] = {
    "no_published_version": "unpublished",
    "reentry": "reentry",
    "loop_guard": "loop_guard",
    "holdout": "held_out",
    "automation_inactive": "inactive",
    "automation_archived": "archived",
    "chain_reorg": "dropped",
}


def _of_entry(outcome: str | None) -> tuple[Reason, ...]:
    reason = _OUTCOMES.get(outcome)
    return () if reason is None else (reason,)


def _standing_against(standing: AutomationState) -> list[Reason]:
    if not standing.exists:
        return ["not_there_yet"]
    if standing.archived:
        return ["archived"]
    return [] if standing.active else ["inactive"]


def _of_trigger(named: bool, verdicts: Iterable[Verdict]) -> list[Reason]:
    reasons: list[Reason] = [] if named else ["other_event"]
    return reasons if all(each.passed for each in verdicts) else [*reasons, "filters"]
