"""Why an automation took an event, or did not: where it stood at that moment, what its trigger says, what became of the entry.

The trigger decides here as it does in ingest (`fires`), and the graph's settings as they do in the engine: an event that did not
happen is simulated. Nothing else judges.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from api.language.filter import Verdict, explain
from api.language.simulate import Trace
from api.language.trigger import Trigger

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


class Change(msgspec.Struct, frozen=True):
    """A moment from which on an automation took entries, or took none any more."""

    at: datetime
    active: bool


class Standing(msgspec.Struct, frozen=True):
    """An automation at one moment: whether it was there, took entries, was put away, and which version it ran."""

    exists: bool = True
    active: bool = True
    archived: bool = False
    version: int | None = None


class Entered(msgspec.Struct, frozen=True):
    """The entry that an event started. `cause`: why the automation did not let it in, if it did not."""

    id: str
    state: str
    outcome: str | None
    cause: str | None = None


class Why(msgspec.Struct, frozen=True):
    """The answer. `reasons` that stand against it, all of them; none: the automation did, or would do, what it is for.

    `matched`: there is an entry, or there would be one. `named`: its trigger means events of this name.
    """

    matched: bool
    named: bool
    verdicts: tuple[Verdict, ...]
    reasons: tuple[Reason, ...]
    cause: str | None = None


def on_since(changes: Sequence[Change], at: datetime) -> datetime | None:
    """Return when the time began, of those in which an automation takes entries, that a moment is in; None: nobody knows."""
    began, active = None, False
    for change in changes:
        if change.at <= at and change.active and not active:
            began = change.at
        active = change.active
    return began


def active_at(changes: Sequence[Change], at: datetime, *, now: bool) -> bool:
    """Return whether an automation took entries at a moment; `now`: whether it does, for those without a history."""
    before = [change for change in changes if change.at <= at]
    if before:
        return before[-1].active
    return not changes[0].active if changes else now


class Came(msgspec.Struct, frozen=True):
    """An event that came, with its flat context. `named`: the trigger means it; `dry`: a dry run.

    Of logs, `removed`: it was dropped; `early`: its block is older than the automation was live.
    """

    named: bool
    context: Mapping[str, Any]
    dry: bool = False
    removed: bool = False
    early: bool = False


def why_stored(trigger: Trigger, standing: Standing, came: Came, entry: Entered | None) -> Why:
    """Return why an event that came did, or did not, start an entry."""
    verdicts = explain(trigger.filters, came.context)
    if entry is not None:
        return Why(True, came.named, verdicts, _of_entry(entry.outcome), entry.cause)
    reasons = [*_standing_against(standing), *_of_trigger(came.named, verdicts)]
    if came.dry:
        reasons.append("dry_run")
    if came.removed:
        reasons.append("dropped")
    if came.early:
        reasons.append("before_live")
    return Why(False, came.named, verdicts, tuple(reasons or ["no_entry"]))


def why_imagined(standing: Standing, trace: Trace) -> Why:
    """Return why an event would, or would not, start an entry now, once it was simulated."""
    against = _standing_against(standing)
    reasons = [*against, *_of_trigger(trace.name_matched, trace.verdicts)]
    if trace.matched and not against:
        reasons += _of_entry(trace.outcome)
    cause = next((step.detail.get("cause") for step in trace.steps if step.outcome == "refused"), None)
    return Why(trace.matched and not against, trace.name_matched, trace.verdicts, tuple(reasons), cause)


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


def _standing_against(standing: Standing) -> list[Reason]:
    if not standing.exists:
        return ["not_there_yet"]
    if standing.archived:
        return ["archived"]
    return [] if standing.active else ["inactive"]


def _of_trigger(named: bool, verdicts: Iterable[Verdict]) -> list[Reason]:
    reasons: list[Reason] = [] if named else ["other_event"]
    return reasons if all(each.passed for each in verdicts) else [*reasons, "filters"]
