"""Simulations per second in one process: a graph of five nodes; one renders a text."""

import itertools
import time
from datetime import UTC, datetime
from typing import Any

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
_NUMBERS = itertools.count()
_FILTERS: dict[str, Any] = {"filters": [{"path": "asset", "operator": "eq", "value": "USDC"}]}
_WHERE: dict[str, Any] = {"where": 'asset == "USDC"'}


def runs_per_second(effort: Effort) -> tuple[list[float], list[float]]:
    """Return the rate of each round, with `filters` and with the same as `where`; every run has a different event."""
    automations = [_automation(condition) for condition in (_FILTERS, _WHERE)]
    rates: tuple[list[float], list[float]] = [], []
    for _ in range(effort.rounds):
        for automation, of_automation in zip(automations, rates, strict=True):
            of_automation.append(_rate(automation, effort.seconds))
    return rates


def _rate(automation: SimulatedAutomation, seconds: float) -> float:
    contact = ContactState("c", Identifiers(evm_wallet("a")))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    runs, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        traces = [simulate(automation, _event(number), contact, now) for number in itertools.islice(_NUMBERS, _AT_ONCE)]
        assert traces[-1].outcome == "exit"
        runs += len(traces)
    return runs / (time.perf_counter() - begun)


def _automation(condition: dict[str, Any]) -> SimulatedAutomation:
    posted = thanks_for_much()
    data = posted["graph"]["nodes"][1]["data"]
    del data["filters"]
    data |= condition
    trigger, graph = read_trigger(posted["triggerSpec"]), read_graph(posted["graph"])
    assert isinstance(trigger, Trigger)
    assert isinstance(graph, Graph)
    return SimulatedAutomation(trigger, graph)


def _event(number: int) -> Event:
    return Event("deposit", Identifiers(evm_wallet("a")), {}, encode({"amountUsd": number, "asset": "USDC"}))
