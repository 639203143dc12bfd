"""What is done to the installation: a plan made from a seed, and the one who carries it out.

A kill is SIGKILL (or a termination of a back-end); what was killed is started again after a moment. Between kills, parts are
frozen (SIGSTOP, then SIGCONT), restarted gracefully and renewed. Faults of different parts overlap; a part suffers one at a time.
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

KILLS: dict[tuple[Role, Kind], int] = {  # how often each, in proportion; those of engines are counted by themselves
    ("api", "kill"): 28,
    ("worker", "kill"): 8,  # one of several behind a port; its neighbours go on
    ("postmaster", "kill"): 10,  # alone: its back-ends notice and end by themselves
    ("postgres", "kill"): 10,  # with all its processes, at once
    ("backend", "kill"): 16,  # the server throws all others out and recovers
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
_DOWN = (0.0, 1.5)  # seconds until what was killed is started again
_FROZEN: dict[Role, tuple[float, float]] = {
    "api": (0.3, 4.5),  # clients wait three
    "worker": (0.3, 4.5),
    "engine": (1.0, 13.0),  # leases last ten
    "postgres": (0.3, 4.0),  # answers are promised within two
    "backend": (0.3, 3.0),  # locks are waited for two
}


class Planned(msgspec.Struct, frozen=True):
    """A fault to come: seconds after the start, whom it hits, and how many seconds it lasts."""

    at: float
    role: Role
    kind: Kind
    victim: int
    lasts: float


class Fault(msgspec.Struct, frozen=True):
    """A fault that happened: from when, and when the part was started or woken again (microseconds)."""

    role: Role
    kind: Kind
    victim: int
    began: int
    ended: int


class Wish(msgspec.Struct, frozen=True):
    """What to do: how many kills in how many seconds, of engines and of all else; how long a freeze lasts at most.

    `slack`: seconds that anything may take beside what faults cost.
    """

    seed: int
    kills: int
    engine_kills: int
    seconds: float
    clients: int = 12
    longest_freeze: float = 13.0
    slack: float = 2.0


def plan(wish: Wish) -> list[Planned]:
    """Return the kills, and a third as many other faults, spread over the time."""
    chance = Random(f"{wish.seed}/nemesis")
    faults = [
        *_drawn(chance, KILLS, wish.kills),
        *_drawn(chance, OTHERS, wish.kills // KILLS_PER_OTHER),
        *_drawn(chance, ENGINE_KILLS, wish.engine_kills),
        *_drawn(chance, ENGINE_OTHERS, wish.engine_kills // KILLS_PER_OTHER),
    ]
    return sorted((_planned(chance, role, kind, wish) for role, kind in faults), key=lambda each: each.at)


def _drawn(chance: Random, proportions: dict[tuple[Role, Kind], int], number: int) -> list[tuple[Role, Kind]]:
    """Return every fault once if there is room, the others by their proportion."""
    each_once = list(proportions)
    rest = max(0, number - len(each_once))
    chance.shuffle(each_once)
    return each_once[:number] + chance.choices(list(proportions), list(proportions.values()), k=rest)


def _planned(chance: Random, role: Role, kind: Kind, wish: Wish) -> Planned:
    least, most = _FROZEN[role] if kind == "freeze" else _DOWN
    lasts = chance.uniform(least, min(most, max(least, wish.longest_freeze)))
    return Planned(chance.uniform(0, wish.seconds), role, kind, chance.randrange(1_000), lasts)


class Nemesis:
    """Carries out a plan; `faults` is what happened."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.faults: list[Fault] = []

    async def run(self, faults: Sequence[Planned]) -> None:
        """Return when all faults are over and everything runs again."""
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(began + fault.at - asyncio.get_running_loop().time())
                group.create_task(self._strike(fault))

    async def _strike(self, fault: Planned) -> None:
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

    async def _strike_process(self, processes: list[Process], fault: Planned) -> None:
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

    async def _strike_worker(self, process: Process, fault: Planned) -> None:
        async with process.busy:
            while not (workers := children(process.pid)):  # it has only just been started
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

    async def _strike_postgres(self, fault: Planned) -> None:
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

    def _note(self, fault: Planned, victim: int, began: int) -> None:
        self.faults.append(Fault(fault.role, fault.kind, victim, began, now_us()))
