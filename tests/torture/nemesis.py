"""The faults of a run: a plan derived from a seed, and the nemesis that executes it.

A kill is SIGKILL, or the termination of a backend; the victim is restarted after a moment. Between kills, processes are
frozen (SIGSTOP, then SIGCONT), restarted gracefully and renewed. Faults of different victims overlap; one victim has
one fault at a time.
"""

import asyncio
import signal
from collections.abc import Sequence
from random import Random
from typing import Literal

import msgspec

from tests.torture.installation import Installation, Process, children, frozen, signal_all
from tests.torture.log import now_us

Role = Literal["api", "worker", "engine", "postmaster", "postgres", "backend"]
Kind = Literal["kill", "terminate", "freeze", "restart", "renew"]

KILLS: dict[tuple[Role, Kind], int] = {  # weights; kills of engines have their own number
    ("api", "kill"): 28,
    ("worker", "kill"): 8,  # one of several behind a port; the others keep serving
    ("postmaster", "kill"): 10,  # alone: its backends notice it and exit
    ("postgres", "kill"): 10,  # with all its processes, at once
    ("backend", "kill"): 16,  # the server ends all other backends and recovers
    ("backend", "terminate"): 16,
}
OTHERS: dict[tuple[Role, Kind], int] = {
    ("api", "freeze"): 4,
    ("worker", "freeze"): 2,
    ("postgres", "freeze"): 2,
    ("backend", "freeze"): 3,
    ("api", "restart"): 2,
    ("worker", "renew"): 1,
}
ENGINE_KILLS: dict[tuple[Role, Kind], int] = {("engine", "kill"): 1}
ENGINE_OTHERS: dict[tuple[Role, Kind], int] = {("engine", "freeze"): 3, ("engine", "restart"): 2}
KILLS_PER_OTHER = 3
_DOWN = (0.0, 1.5)  # seconds until the victim is restarted
_FROZEN: dict[Role, tuple[float, float]] = {
    "api": (0.3, 4.5),  # clients time out after three
    "worker": (0.3, 4.5),
    "engine": (1.0, 13.0),  # leases last ten
    "postgres": (0.3, 25.0),  # answers are promised within five, and the machine may be ten late
    "backend": (0.3, 3.0),  # processes wait for locks for two
}


class PlannedFault(msgspec.Struct, frozen=True):
    """A planned fault: seconds after the start, its victim, and its duration in seconds."""

    at: float
    role: Role
    kind: Kind
    victim: int
    lasts: float


class Fault(msgspec.Struct, frozen=True):
    """A fault that happened: its start, and when the victim was restarted or resumed, in microseconds."""

    role: Role
    kind: Kind
    victim: int
    began: int
    ended: int


class RunSpec(msgspec.Struct, frozen=True):
    """The size of a run: kills, kills of engines, duration in seconds, and the longest freeze.

    `slack`: seconds that anything may take in addition to the faults.
    """

    seed: int
    kills: int
    engine_kills: int
    seconds: float
    clients: int = 12
    longest_freeze: float = 25.0
    slack: float = 2.0


def plan(spec: RunSpec) -> list[PlannedFault]:
    """Return the kills and a third as many other faults, spread over the run."""
    chance = Random(f"{spec.seed}/nemesis")
    faults = [
        *_drawn(chance, KILLS, spec.kills),
        *_drawn(chance, OTHERS, spec.kills // KILLS_PER_OTHER),
        *_drawn(chance, ENGINE_KILLS, spec.engine_kills),
        *_drawn(chance, ENGINE_OTHERS, spec.engine_kills // KILLS_PER_OTHER),
    ]
    return sorted((_planned(chance, role, kind, spec) for role, kind in faults), key=lambda each: each.at)


def _drawn(chance: Random, proportions: dict[tuple[Role, Kind], int], number: int) -> list[tuple[Role, Kind]]:
    """Draw every kind of fault once if `number` allows, and the rest by weight."""
    each_once = list(proportions)
    rest = max(0, number - len(each_once))
    chance.shuffle(each_once)
    return each_once[:number] + chance.choices(list(proportions), list(proportions.values()), k=rest)


def _planned(chance: Random, role: Role, kind: Kind, spec: RunSpec) -> PlannedFault:
    least, most = _FROZEN[role] if kind == "freeze" else _DOWN
    lasts = chance.uniform(least, min(most, max(least, spec.longest_freeze)))
    return PlannedFault(chance.uniform(0, spec.seconds), role, kind, chance.randrange(1_000), lasts)


class Nemesis:
    """Executes a plan and records its faults."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.faults: list[Fault] = []

    async def run(self, faults: Sequence[PlannedFault]) -> None:
        """Execute the faults. Returns when they are over and every process runs again."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(began + fault.at - asyncio.get_running_loop().time())
                group.create_task(self._strike(fault))

    async def _strike(self, fault: PlannedFault) -> None:
        installation = self.installation
        match fault.role:
            case "api":
                await self._strike_process(installation.apis, fault)
            case "worker":
                await self._strike_worker(installation.apis[0], fault)
            case "engine":
                await self._strike_process(installation.engines, fault)
            case _:
                async with installation.postgres.busy:
                    began = now_us()
                    await self._strike_postgres(fault)
                    self._note(fault, fault.victim, began)

    async def _strike_process(self, processes: list[Process], fault: PlannedFault) -> None:
        victim = fault.victim % len(processes)
        process = processes[victim]
        async with process.busy:
            began = now_us()
            if fault.kind == "freeze":
                async with frozen([process.pid]):
                    await asyncio.sleep(fault.lasts)
            else:
                await asyncio.to_thread(process.kill if fault.kind == "kill" else process.stop)
                await asyncio.sleep(fault.lasts)
                await asyncio.to_thread(process.start)
            self._note(fault, victim, began)

    async def _strike_worker(self, process: Process, fault: PlannedFault) -> None:
        async with process.busy:
            while not (workers := children(process.pid)):  # started a moment ago, without workers yet
                await asyncio.sleep(0.1)
            worker, began = workers[fault.victim % len(workers)], now_us()
            match fault.kind:
                case "kill":
                    signal_all([worker], signal.SIGKILL)
                case "renew":
                    process.send(signal.SIGHUP)
                case _:
                    async with frozen([worker]):
                        await asyncio.sleep(fault.lasts)
            self._note(fault, 0, began)

    async def _strike_postgres(self, fault: PlannedFault) -> None:
        postgres = self.installation.postgres
        match fault.role, fault.kind:
            case "backend", "terminate":
                await postgres.backend(terminate=True)
            case "backend", "kill":
                pid = await postgres.backend()
                signal_all([pid], signal.SIGKILL)
                await postgres.recover(pid)
            case role, "freeze":
                async with frozen([await postgres.backend()] if role == "backend" else postgres.pids()):
                    await asyncio.sleep(fault.lasts)
            case role, _:
                signal_all([postgres.postmaster()] if role == "postmaster" else postgres.pids(), signal.SIGKILL)
                await asyncio.sleep(fault.lasts)
                await postgres.start()

    def _note(self, fault: PlannedFault, victim: int, began: int) -> None:
        self.faults.append(Fault(fault.role, fault.kind, victim, began, now_us()))
