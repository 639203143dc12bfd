"""Lets every interpreter tell what happens in a world, and compares it with what the engine did.

The engine's entries, steps with their times, sent texts and counts are the measure. A trial (which is a simulation of a
stored contact) and an explanation are made just before each event, a dry run too; backtests and explanations of stored
events at the end.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from api.automations import trial
from api.automations.trial import PreparedTrial, Trial, TrialContext
from api.contacts import explain
from api.contacts.explain import ExplainBody, ExplainedView, ExplainReader
from tests.engine.killing import RETRIES
from tests.fidelity import limits
from tests.fidelity.stage import (
    Observer,
    PlayedEvent,
    PlayedWorld,
    RecordedStep,
    Stage,
    StartedEntry,
    described_log,
    patched,
)
from tests.fidelity.worlds import AWAITED_LOG, LOGS, PERIOD, SentEvent, Transfer, World
from workbench.backtest import simulate_bucket
from workbench.backtest.result import BacktestLabel
from workbench.backtest.run import BacktestRequest, run
from workbench.backtest.simulate_bucket import AutomationPayload, LivePayload, VersionPayload
from workbench.language.channel import Message
from workbench.language.codec import encode
from workbench.language.event import Event, read_event
from workbench.language.explain import ExplanationView
from workbench.language.onchain import log_payload
from workbench.language.problem import Problems
from workbench.language.run import TERMINAL, State, Step
from workbench.language.simulate import ScheduledEvent, SimulationInput, Trace, backtest, simulate
from workbench.language.timeline import SimulatedEntry
from workbench.language.trigger import read_later_event

LEFT_OUT = "left out: "
UNKNOWN = f"{LEFT_OUT}entries for backtests"
MICROSECOND = timedelta(microseconds=1)
REASONS = {"reentry": "reentry", "loop_guard": "loop_guard", "holdout": "held_out", "joined": "joined"}


class DifferenceError(AssertionError):
    """An interpreter tells another story than the engine."""


class Interpreters(Observer):
    """Lets trials and explanations look at each event just before it is sent."""

    async def before(self, stage: Stage, played: PlayedWorld, event: PlayedEvent) -> None:
        world, bench = played.world, stage.bench
        later = tuple(later_events(world, event).values())
        event.behind = await stage.behind() if world.lags else frozenset()
        context = TrialContext(bench.org_id, stage.show, RETRIES)
        reader = ExplainReader(stage.author, stage.show)
        for number, (automation, automation_id) in enumerate(
            zip(world.automations, played.automation_ids, strict=True)
        ):
            if automation.trigger["type"] != event.described.get("type", "app_event"):
                continue
            tried = Trial(encode(event.described), None, event.at, "published", later)
            prepared = await trial.prepare(bench.database, context, automation_id, tried)
            assert isinstance(prepared, PreparedTrial), prepared
            event.trials[number] = prepared
            if prepared.contact.id != trial.SIMULATED_ID:
                body = ExplainBody(automation_id, event=event.described)
                explained = await explain.explain(bench.database, reader, prepared.contact.id, automation_id, body)
                assert isinstance(explained, ExplainedView), explained
                (event.explanations[number],) = explained.explanations


def later_events(world: World, event: PlayedEvent) -> dict[int, ScheduledEvent]:
    """Return the events of the world that come after one, by their positions."""
    scheduled = {}
    for position, action in enumerate(world.actions):
        if isinstance(action, SentEvent | Transfer) and position > event.position:
            later = (
                read_event(encode(action.body), 0) if isinstance(action, SentEvent) else _awaited_log(world, position)
            )
            assert isinstance(later, Event), later
            scheduled[position] = ScheduledEvent(world.begin + timedelta(seconds=action.at) - event.at, later)
    return scheduled


def _awaited_log(world: World, position: int) -> Event | Problems:
    """Return a transfer as the event that entries wait for."""
    log = described_log(position, world.contacts[0].identifiers["walletAddress"].lower())
    return read_later_event({"event": AWAITED_LOG, "payload": log_payload({**LOGS, **log})}, 0)


async def check(stage: Stage, world: World) -> Counter[str]:
    """Play a world; return how much was compared. Raises DifferenceError."""
    with patched():
        played = await stage.play(world, Interpreters())
        comparison = Comparison(stage, played)
        comparison.compare_dry_runs()
        comparison.compare_previews()
        comparison.compare_trials()
        await comparison.compare_explanations()
        await comparison.compare_backtests()
    counts = comparison.counts
    counts["entries"], counts["killed engines"] = len(played.entries), played.killed
    counts["steps"] = sum(len(entry.steps) for entry in played.entries)
    return counts


class Comparison:
    """Compares the results of the interpreters for a played world. `counts`: of comparisons, by interpreter."""

    def __init__(self, stage: Stage, played: PlayedWorld) -> None:
        self._stage, self._played = stage, played
        self.counts = Counter[str]()

    def expect(self, interpreter: str, simulated: Any, recorded: Any, where: str) -> None:
        self.counts[interpreter.partition(":")[0]] += 1
        if simulated != recorded:
            raise DifferenceError(f"{interpreter} of {where}:\n  simulated {simulated}\n  engine    {recorded}")

    def is_left_out(self, limit: Callable[..., bool], *case: Any) -> bool:
        """Return whether a limit applies to a case; count it if so."""
        applies = limit(self._played, *case)
        self.counts[f"{LEFT_OUT}{limit.__name__}"] += applies
        return applies

    def compare_dry_runs(self) -> None:
        for event in self._played.events:
            if event.matched is not None:
                started = sum(entry.event_id == event.id for entry in self._played.entries)
                self.expect("dry run", event.matched, started, event.id)

    def compare_previews(self) -> None:
        for contacts, entries in self._played.previews:
            self.expect("preview", contacts, entries, "a broadcast")

    # --- Trials

    def compare_trials(self) -> None:
        for event in self._played.events:
            for number, prepared in event.trials.items():
                automation_id = self._played.automation_ids[number]
                if not self.is_left_out(limits.engine_was_behind, event) and not self.is_left_out(
                    limits.is_paused, automation_id, event
                ):
                    self._compare_trial(event, number, prepared)

    def _compare_trial(self, event: PlayedEvent, number: int, prepared: PreparedTrial) -> None:
        played, where = self._played, f"automation {number} at {event.at}"
        entry = find_entry(played, number, event)
        simulated = simulate_as_entry(played, event, prepared, entry, event.at)
        self.expect("trial: matched", simulated.matched, entry is not None, where)
        if (
            entry is None
            or self.is_left_out(limits.follows_changes, event)
            or self.is_left_out(limits.others_come_first, entry)
        ):
            return
        is_cut, known_steps = self.is_left_out(limits.delivery_failed, entry), limits.steps_before_failure(entry)
        if (
            self.is_left_out(limits.was_late, entry)
            or self.is_left_out(limits.failed_late, entry)
            or self.is_left_out(limits.others_interfere, entry)
            or self.is_left_out(limits.is_disturbed, entry)
            or self.is_left_out(limits.was_paused, entry)
            or self.is_left_out(limits.is_erased, entry)
        ):
            known = [step for step in entry.steps[:known_steps] if step.at <= event.at]
            steps = steps_of(simulated.steps, without_causes=entry.contact_id in played.erased)
            self.expect("trial of one moment", steps[: len(known)] if is_cut else steps, known, where)
            return
        simulated = simulate_as_entry(played, event, prepared, entry, played.world.begin + PERIOD - MICROSECOND)
        if is_cut:
            steps = steps_of(simulated.steps)[:known_steps]
            self.expect("trial before a failure", steps, entry.steps[:known_steps], where)
            return
        self.expect("trial", steps_of(simulated.steps), entry.steps, where)
        texts = sorted((sent.node_id, sent.body.replace(entry.id, entry.event_id)) for sent in simulated.messages)
        self.expect("trial: messages", texts, entry.texts, where)
        if State(entry.state) in TERMINAL:
            self.expect("trial: end", (simulated.state, simulated.outcome), (entry.state, entry.outcome), where)

    # --- Explanations

    async def compare_explanations(self) -> None:
        stage, played = self._stage, self._played
        reader = ExplainReader(stage.author, stage.show)
        for number, automation_id in enumerate(played.automation_ids):
            for contact_id in {event.contact_id for event in played.events} - played.erased:
                body = ExplainBody(automation_id)
                view = await explain.explain(stage.bench.database, reader, contact_id, automation_id, body)
                assert isinstance(view, ExplainedView), view
                by_event = {explanation.event_id: explanation for explanation in view.explanations}
                for event in played.events:
                    if event.id in by_event:
                        self._compare_explanation(event, number, by_event[event.id])

    def _compare_explanation(self, event: PlayedEvent, number: int, explanation: ExplanationView) -> None:
        played, where = self._played, f"automation {number} at {event.at}"
        entry = find_entry(played, number, event)
        self.expect("explanation: matched", explanation.matched, entry is not None, where)
        if entry is not None:
            reason = REASONS.get(entry.outcome or "")
            self.expect("explanation: reasons", explanation.reasons, () if reason is None else (reason,), where)
        before = event.explanations.get(number)
        if before is None or self.is_left_out(limits.engine_was_behind, event):
            return
        self.expect("explanation before: matched", before.matched, entry is not None, where)
        if entry is None or self.is_left_out(limits.others_come_first, entry):
            return
        if not self.is_left_out(limits.joins_later, entry):
            self.expect("explanation before: reasons", before.reasons, explanation.reasons, where)

    # --- Backtests

    async def compare_backtests(self) -> None:
        played = self._played
        if not played.world.in_notebook:
            return
        for number, automation_id in enumerate(played.automation_ids):
            recorded = [
                entry
                for entry in played.entries
                if entry.automation_id == automation_id and not self.is_left_out(limits.is_erased, entry)
            ]
            versions = played.versions.get(number)
            if versions is None and played.world.answers:  # a draft's deliveries succeed
                versions = [self._stage.first_version(played, number)]
            left_out = self._unknown_contacts(recorded, is_live=versions is not None)
            known = [entry for entry in recorded if entry.contact_id not in left_out]
            self.counts["entries for backtests"] += len(recorded)
            self.counts[UNKNOWN] += len(recorded) - len(known)
            if known:
                await self._compare_backtest(number, known, left_out, versions)

    def _unknown_contacts(self, recorded: list[StartedEntry], *, is_live: bool) -> set[str]:
        """Return the contacts with an entry that a limit applies to: it affects what their other entries do."""
        unknowable = [limits.lost_values, limits.was_late, limits.closing_is_unknown, limits.counted_before]
        if not is_live:  # a backtest of what was live repeats failures at the recorded times
            unknowable.append(limits.failed_late)
        left_out = {
            entry.contact_id for entry in recorded if any(self.is_left_out(limit, entry) for limit in unknowable)
        }
        moved = self._played.moved
        return left_out if left_out.isdisjoint(moved) else left_out | moved

    async def _compare_backtest(
        self, number: int, recorded: list[StartedEntry], left_out: set[str], versions: list[VersionPayload] | None
    ) -> None:
        """Compare the backtest that a notebook makes, by SQL over HTTP, without the contacts that are left out."""
        played, where = self._played, f"automation {number}"
        world, automation_id = played.world, played.automation_ids[number]
        payload = AutomationPayload(automation_id, world.automations[number].trigger, played.graphs[number])
        request = BacktestRequest({"since": world.begin, "until": world.begin + PERIOD}, processes=0)
        label = BacktestLabel("a", saved=True)
        live = (
            None if versions is None else LivePayload(tuple(versions), tuple(played.activations[automation_id]), "live")
        )
        read_live = None if live is None else lambda: live
        arguments = self._stage.connection, label, (payload,), automation_id, request, read_live
        simulated: list[SimulatedEntry] = []
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(simulate_bucket, "backtest", recording(simulated))
            result = await asyncio.to_thread(run, *arguments)
        if live is not None:
            differing = [row for row in result.differences().iter_rows(named=True) if row["contact"] not in left_out]
            self.expect("backtest: differences", differing, [], where)
        steps: dict[str, list[tuple[Any, ...]]] = {}
        for row in result.frame().iter_rows(named=True):
            step = row["node"], row["kind"], row["outcome"], row["handle"], row["reason"], row["at"]
            if row["contact"] not in left_out:
                steps.setdefault(row["entry"], []).append(step)
        taken = {
            entry.event_id: [(*step[:-2], step.at) for step in entry.steps]  # a table has no attempts
            for entry in recorded
            if entry.steps
        }
        self.expect("backtest", steps, taken, where)
        texts = {entry.event.id: texts_of(entry) for entry in simulated if entry.contact_id not in left_out}
        self.expect("backtest: texts", texts, {entry.event_id: entry.texts for entry in recorded}, where)
        ends = {
            (row["entry"], row["state"], row["outcome"], row["node"])
            for row in result.entries().iter_rows(named=True)
            if row["contact"] not in left_out
        }
        self.expect("backtest: ends", ends, ends_of(recorded), where)
        if left_out:
            return
        totals, outcomes = result.totals, Counter(entry.outcome for entry in recorded)
        counts = (totals.entries, totals.turned_away, totals.held_out, totals.failed, sum(totals.sent.values()))
        refused = outcomes["reentry"] + outcomes["loop_guard"] + outcomes["joined"]
        failed = sum(entry.state == "dead" for entry in recorded)
        sent = sum(step.outcome == "sent" for entry in recorded for step in entry.steps)
        expected = (len(recorded) - refused, refused, outcomes["holdout"], failed, sent)
        self.expect("backtest: counts", counts, expected, where)


def find_entry(played: PlayedWorld, number: int, event: PlayedEvent) -> StartedEntry | None:
    automation_id = played.automation_ids[number]
    return next(
        (entry for entry in played.entries if (entry.automation_id, entry.event_id) == (automation_id, event.id)), None
    )


def simulate_as_entry(
    played: PlayedWorld, event: PlayedEvent, prepared: PreparedTrial, entry: StartedEntry | None, until: datetime
) -> Trace:
    """Simulate what a trial read before the event, with the later events of its contact, as the entry of the engine."""
    own = {other.position for other in played.events if other.contact_id == event.contact_id}
    later = tuple(item for position, item in later_events(played.world, event).items() if position in own)
    contact = msgspec.structs.replace(prepared.contact, id=event.contact_id)
    entry_id = trial.SIMULATED_ID if entry is None else entry.id
    circumstances = SimulationInput(prepared.history, later, RETRIES, entry_id, event.id, until, owners=prepared.owners)
    return simulate(prepared.automation, prepared.event, contact, event.at, circumstances)


def steps_of(steps: Iterable[Step], *, without_causes: bool = False) -> list[RecordedStep]:
    """Return steps as those of a `StartedEntry`; `without_causes`: its contact was erased, which deletes them."""
    return [
        RecordedStep(
            step.node_id,
            step.kind,
            step.outcome,
            step.handle,
            None if without_causes else step.detail.get("cause"),
            step.attempt,
            step.at,
        )
        for step in steps
    ]


def texts_of(entry: SimulatedEntry) -> list[tuple[str, str]]:
    """Return the node and the text of each message of an entry."""
    effects = [effect for decision in entry.decisions for effect in decision.effects]
    return sorted((effect.node_id, effect.body) for effect in effects if isinstance(effect, Message))


def recording(simulated: list[SimulatedEntry]) -> Callable[..., Iterator[SimulatedEntry]]:
    """Return the function that simulates the entries of a contact; it adds them to a list.

    The tables of a backtest have no texts, except the first one of each step.
    """

    def backtest_and_record(*arguments: Any) -> Iterator[SimulatedEntry]:
        for entry in backtest(*arguments):
            simulated.append(entry)
            yield entry

    return backtest_and_record


def ends_of(entries: Iterable[StartedEntry]) -> set[tuple[Any, ...]]:
    return {(entry.event_id, entry.state, entry.outcome, entry.node_id) for entry in entries}
