"""Explanations: why an automation started an entry for an event, or did not.

The verdicts come from the code that ingest and engine run: the trigger's filters for a stored event, and a simulation
for an event that did not happen.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from workbench.language.filter import Verdict, explain
from workbench.language.live import ActivationChange
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
    "joined",
    "no_entry",
]


class AutomationState(msgspec.Struct, frozen=True):
    """An automation at one time. `version`: the version that it ran."""

    exists: bool = True
    active: bool = True
    archived: bool = False
    version: int | None = None


class StartedEntry(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The entry that an event started. `cause`: why it was refused. `moved_to`: the version that it was moved to."""

    id: str
    state: str
    outcome: str | None
    cause: str | None = None
    moved_to: int | None = None


class ExplanationView(msgspec.Struct, frozen=True, rename="camel"):
    """The explanation for one event.

    `wants`: the event names of the trigger, empty if it starts on any event; a contract's event has the contract's
    address. `version`: the version that was published when the event was received.
    """

    event_id: str | None
    event: str
    at: datetime
    matched: bool
    # A text, because a later server may send other reasons to a notebook.
    reasons: tuple[Annotated[str, msgspec.Meta(extra_json_schema={"enum": [*get_args(Reason)]})], ...]
    cause: str | None
    wants: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    version: int | None
    entry: StartedEntry | None


class MatchExplanation(msgspec.Struct, frozen=True):
    """Whether an event starts an entry, and the reasons if it does not.

    `reasons`: everything that prevents the automation from running; empty if nothing does. `matched`: an entry exists
    or would be created. `named`: the trigger is for events of this name. `cause`: why the entry was
    refused.
    """

    matched: bool
    named: bool
    verdicts: tuple[Verdict, ...]
    reasons: tuple[Reason, ...]
    cause: str | None = None


def active_since(changes: Sequence[ActivationChange], at: datetime) -> datetime | None:
    """Return the start of the activation period that contains `at`, or None if it is unknown."""
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
    """An event that was received `at` a moment, with its flat context.

    `named`: the trigger is for this name; `dry`: a dry run.

    For contract logs: `removed` by a reorganization of the chain; `early`: its block precedes the activation.
    """

    named: bool
    context: Mapping[str, Any]
    at: datetime
    dry: bool = False
    removed: bool = False
    early: bool = False


def explain_stored_event(
    trigger: Trigger, state: AutomationState, event: ObservedEvent, entry: StartedEntry | None
) -> MatchExplanation:
    """Explain why a stored event started an entry or did not."""
    verdicts = explain(trigger.filters, event.context, event.at)
    if entry is not None:
        # The automation took the event, so its state does not matter.
        return MatchExplanation(True, event.named, verdicts, _outcome_reasons(entry.outcome), entry.cause)
    reasons = _start_obstacles(state, event.named, verdicts)
    if event.dry:
        reasons.append("dry_run")
    if event.removed:
        reasons.append("dropped")
    if event.early:
        reasons.append("before_live")
    return MatchExplanation(False, event.named, verdicts, tuple(reasons or ["no_entry"]))


def explain_simulated_event(state: AutomationState, trace: Trace) -> MatchExplanation:
    """Explain why a simulated event would start an entry now or would not."""
    obstacles = _start_obstacles(state, trace.name_matched, trace.verdicts)
    matched = trace.matched and not obstacles
    reasons = _outcome_reasons(trace.outcome) if matched else tuple(obstacles)
    cause = next((step.detail.get("cause") for step in trace.steps if step.outcome == "refused"), None)
    return MatchExplanation(matched, trace.name_matched, trace.verdicts, reasons, cause)


_OUTCOME_REASONS: Mapping[str | None, Reason] = {
    "no_published_version": "unpublished",
    "reentry": "reentry",
    "loop_guard": "loop_guard",
    "holdout": "held_out",
    "joined": "joined",
    "automation_inactive": "inactive",
    "automation_archived": "archived",
    "chain_reorg": "dropped",
}


def _outcome_reasons(outcome: str | None) -> tuple[Reason, ...]:
    reason = _OUTCOME_REASONS.get(outcome)
    return () if reason is None else (reason,)


def _start_obstacles(state: AutomationState, named: bool, verdicts: Sequence[Verdict]) -> list[Reason]:
    reasons: list[Reason] = []
    if not state.exists:
        reasons.append("not_there_yet")
    elif state.archived:  # tested first, because an archived automation is inactive too
        reasons.append("archived")
    elif not state.active:
        reasons.append("inactive")
    if not named:
        reasons.append("other_event")
    if not all(verdict.passed for verdict in verdicts):
        reasons.append("filters")
    return reasons
