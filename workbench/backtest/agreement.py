"""The comparison of a backtest of what was live with the entries that the engine made of the same events."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from workbench.language.decision import Failure
from workbench.language.run import TERMINAL, State, Step
from workbench.language.timeline import RecordedFailure, SimulatedEntry

ONLY_SIMULATED = "the engine made no entry for the event"
_ONLY_BACKTEST = "only the backtest takes this step"
_SAME_TIME = timedelta(seconds=1)  # between the moments of a step: the engine counts retries from the real time


class RealStep(NamedTuple):
    """A step that the engine recorded."""

    node_id: str
    outcome: str
    handle: str | None
    cause: str | None
    at: datetime

    @property
    def text(self) -> str:
        """The step as a cell of the table of differences."""
        return _text(self.outcome, self.handle, self.cause)


class RealEntry(msgspec.Struct):
    """An entry that the engine made, and its steps in order. `ended_at`: when it ended, None: it is open."""

    event_id: str
    contact_id: str
    version: int | None
    state: State
    outcome: str | None
    began_at: datetime
    ended_at: datetime | None
    steps: list[RealStep] = []


class Difference(NamedTuple):
    """The first difference between an entry of the engine and that of the backtest; texts are empty for no step."""

    entry: str
    contact: str
    event_at: datetime
    node: str | None
    at: datetime
    real: str
    simulated: str
    reason: str


def recorded_failures(entries: Mapping[str, RealEntry]) -> dict[str, list[RecordedFailure]]:
    """Return the failed steps by the event of their entry, with the times of the attempts that followed."""
    failures: dict[str, list[RecordedFailure]] = {}
    for event_id, entry in entries.items():
        for number, step in enumerate(entry.steps):
            if step.outcome == "failed":
                following = entry.steps[number + 1 : number + 2]
                next_at = following[0].at if following and following[0].node_id == step.node_id else None
                is_final = next_at is None and entry.state is State.DEAD
                failure = Failure(step.cause or "", "recorded", permanent=is_final)
                failures.setdefault(event_id, []).append(RecordedFailure(step.node_id, failure, next_at, step.at))
    return failures


def compare(
    real: RealEntry | None, simulated: SimulatedEntry | None, contact_id: str, until: datetime, *, merged: bool = False
) -> Difference | None:
    """Return the first difference of an entry, or None; what happened at `until` or later does not count.

    `merged`: another contact was merged into this one in the meantime, which the reason then says.
    """
    difference = _difference(real, simulated, contact_id, until)
    if difference is None or not merged:
        return difference
    return difference._replace(reason=f"{difference.reason}; another contact was merged into its contact")


def _difference(
    real: RealEntry | None, simulated: SimulatedEntry | None, contact_id: str, until: datetime
) -> Difference | None:
    if simulated is None:
        assert real is not None, "there is an entry to compare"
        began, ending = (real.event_id, real.contact_id, real.began_at), _ending(real.state, real.outcome)
        return Difference(*began, None, real.began_at, ending, "", "the event starts no entry of what was live")
    event, run = simulated.event, simulated.run
    began = (event.id, contact_id, event.at)
    if real is None:
        ending = _ending(run.state, run.outcome)
        return Difference(*began, None, event.at, "", ending, ONLY_SIMULATED)
    is_moved = real.version != simulated.version
    moved = f"it ran on version {real.version}, and version {simulated.version} was live" if is_moved else ""
    real_steps = [step for step in real.steps if step.at < until]
    for step, other in zip_longest(real_steps, map(_step, simulated.steps)):
        if step is None or other is None:
            only = step or other
            assert only is not None
            reason = "only the engine took this step"
            if step is None:
                reason = "the engine has not taken this step" if real.ended_at is None else _ONLY_BACKTEST
            texts = ("" if step is None else step.text, "" if other is None else other.text)
            return Difference(*began, only.node_id, only.at, *texts, moved or reason)
        if step.node_id != other.node_id:
            texts = (f"{step.node_id}: {step.text}", f"{other.node_id}: {other.text}")
            return Difference(*began, step.node_id, step.at, *texts, moved or "another step follows")
        if step.text != other.text:
            return Difference(*began, step.node_id, step.at, step.text, other.text, moved or "another outcome")
        if abs(step.at - other.at) >= _SAME_TIME:
            texts = (step.at.isoformat(" ", "seconds"), other.at.isoformat(" ", "seconds"))
            return Difference(*began, step.node_id, step.at, *texts, moved or "another time")
    # A late engine ends an entry after `until` with a step of a moment before.
    is_over = real.ended_at is not None and (real.ended_at < until or run.state in TERMINAL)
    endings = _ending(real.state, real.outcome) if is_over else "", _ending(run.state, run.outcome)
    if (is_over or run.state in TERMINAL) and endings[0] != endings[1]:
        return Difference(*began, run.node_id, real.ended_at or event.at, *endings, moved or "another end")
    return None


def _step(step: Step) -> RealStep:
    return RealStep(step.node_id, step.outcome, step.handle, step.detail.get("cause"), step.at)


def _text(outcome: str, handle: str | None, cause: str | None) -> str:
    branch, reason = f" → {handle}" if handle is not None else "", f" ({cause})" if cause else ""
    return f"{outcome}{branch}{reason}"


def _ending(state: State, outcome: str | None) -> str:
    return state.value if outcome in (None, state.value) else f"{state.value} ({outcome})"
