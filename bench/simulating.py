"""Simulations per second in one process: a graph of five nodes; one renders a text."""

import itertools
import time
from datetime import UTC, datetime

from bench.automations import thanks_for_much
from bench.effort import Effort
from tests.inapp.wallet import evm_wallet
from workbench.language.codec import encode
from workbench.language.contact import ContactState
from workbench.language.event import Event, Identifiers
from workbench.language.graph import Graph, read_graph
from workbench.language.simulate import SimulatedAutomation, simulate
from workbench.language.trigger import Trigger, read_trigger

_AT_ONCE = 200  # runs between two readings of the clock


def runs_per_second(effort: Effort) -> list[float]:
    """Return the rate of each round; every run has a different event."""
    automation = _automation()
    contact = ContactState("c", Identifiers(evm_wallet("a")))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    numbers, durations = itertools.count(), []
    for _ in range(effort.rounds):
        runs, begun = 0, time.perf_counter()
        while time.perf_counter() < begun + effort.seconds:
            traces = [
                simulate(automation, _event(number), contact, now) for number in itertools.islice(numbers, _AT_ONCE)
            ]
            assert traces[-1].outcome == "exit"
            runs += len(traces)
        durations.append(runs / (time.perf_counter() - begun))
    return durations


def _automation() -> SimulatedAutomation:
    posted = thanks_for_much()
    trigger, graph = read_trigger(posted["triggerSpec"]), read_graph(posted["graph"])
    assert isinstance(trigger, Trigger)
    assert isinstance(graph, Graph)
    return SimulatedAutomation(trigger, graph)


def _event(number: int) -> Event:
    return Event("deposit", Identifiers(evm_wallet("a")), {}, encode({"amountUsd": number, "asset": "USDC"}))
