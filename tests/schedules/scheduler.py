"""Runs processes as tasks of one event loop, in an order that a seed chooses, on a real Postgres.

Every round trip to Postgres and every delivery passes a gate. A task that arrives at a gate waits there. Once no task
can run, the schedule opens one gate, or stalls the task there while the others continue and time passes. With a gate it
may inject a fault: a crash, a lost request or a lost answer.

- Where the event loop would wait for sockets and timers, it asks the schedule instead. Time is virtual: leases, retries
  and timeouts pass only when the schedule moves the clock.
- A statement that waits for a lock does not hold up the schedule: it stays in flight while other gates open, and ends
  when the lock is free. `pg_locks` shows which statements wait.
- Answers are handed over one at a time, in the order of the tasks' names. So one task at a time runs Python code, and
  the same seed gives the same schedule.
- A crash is a `kill -9`: the tasks of the process never run again, and what it had not committed is rolled back: at
  once, or when its statement that waits for a lock has ended.
- A schedule always ends: its steps and pauses are bounded, and a violation says so if tasks only wait for one another.
"""

import asyncio
import contextlib
import random
import selectors
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from enum import StrEnum
from typing import Any

import msgspec
import psycopg
from psycopg import AsyncConnection, errors
from psycopg.abc import PQGen
from psycopg.pq import PGconn, TransactionStatus

from api.clock import Clock
from api.store.database import Database, Transaction, is_distributed, transaction_offset

MAX_STEPS = 1_500
MIN_PAUSE_S, MAX_PAUSES = 2.1, 60  # while tasks only wait for time; engines look for due entries every two seconds
SPEEDS = (1, 6, 1_000)  # how much faster a process is than the next slower ones; one of them for a schedule
SURPRISE = 1 / 12  # the probability, at each step, of a stall or a fault
STALLS_S = (0.0, 0.0, 0.6, 2.1, 4.0, 11.0)  # the last three: a client's timeout, a renewal of leases, a lease
STALL_STEPS = (5, 10, 20, MAX_STEPS)  # of other processes; a stalled one also continues when no other one can
_STALLED = 1e-9  # its weight
_STUCK_S = 10.0  # real time without an answer to a statement that waits for no lock

_SESSIONS = """
    SELECT a.pid, a.pid IN (SELECT l.pid FROM pg_locks l WHERE NOT l.granted)
    FROM unnest(%s::integer[]) AS k (pid) CROSS JOIN LATERAL pg_stat_get_activity(k.pid) a
"""


class Fault(StrEnum):
    CRASH_BEFORE = "crash before it is sent"
    CRASH_AFTER = "crash after it"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"


Work = Callable[["Process"], Coroutine[Any, Any, None]]


class Process:
    """Tasks that end together in a crash, with their connections and their source of random ids."""

    def __init__(self, schedule: "Schedule", name: str, work: Work, *, mortal: bool) -> None:
        self.schedule, self.name, self.work, self.mortal = schedule, name, work, mortal
        self.random = random.Random(f"{schedule.seed}/{name}")
        self.alive = True
        self.tasks: list[asyncio.Task[Any]] = []
        self.connections: set[ScheduledTransaction] = set()
        self.wake: Callable[[], None] = lambda: None  # called after a commit that notifies the engines


_process: ContextVar[Process | None] = ContextVar("process", default=None)


class _Gate(msgspec.Struct, eq=False):
    process: Process
    opened: Any  # a future of the fault with which it opens
    label: str


class Schedule:
    """One order of gates, chosen by a seed."""

    def __init__(self, loop: "ScheduledLoop", control: psycopg.Connection[Any], seed: int) -> None:
        self.seed = seed
        self.trace: list[str] = []
        self.violations: list[str] = []
        self.crashes = self.losses = 0
        self.waits_for_locks = 0
        self.over = False
        self._loop, self._control = loop, control
        self._random = random.Random(seed)
        self._processes: list[Process] = []
        self._gates: dict[str, _Gate] = {}  # by task, which stands at it
        self._answers: dict[str, tuple[Process, Any]] = {}  # by task: the future that hands it its answer
        self._in_flight: dict[str, ScheduledTransaction] = {}  # by task
        self._deliveries = 0  # that use sockets now
        self._orphans: set[int] = set()  # sessions of Postgres whose client has gone
        self._weights: dict[str, float] = {}
        self._stalled: dict[str, int] = {}  # until how many steps were taken
        self._speed = self._random.choice(SPEEDS)
        self._stalls_left, self._faults_left = self._random.choice((1, 2, 3, 5)), self._random.choice((0, 1, 1, 2, 3))
        self._pauses_left = MAX_PAUSES
        self._done = loop.create_future()
        self._next_s: Callable[[], float | None] = lambda: None

    def start(self, name: str, work: Work, *, mortal: bool = False) -> None:
        """Start a process. A mortal one may crash; it is then started again, as `name#1`, `name#2` and so on."""
        number = sum(process.name.partition("#")[0] == name for process in self._processes)
        process = Process(self, f"{name}#{number}" if number else name, work, mortal=mortal)
        self._processes.append(process)
        context = copy_context()
        context.run(_process.set, process)
        self._loop.create_task(self._run(process), context=context)

    async def _run(self, process: Process) -> None:
        try:
            await process.work(process)
        except Exception as error:  # noqa: BLE001  the work of a process handles its errors
            if process.alive and not self.over:
                self.violations.append(f"{process.name} failed: {error!r}")

    async def run(self, next_s: Callable[[], float | None]) -> None:
        """Open gates until the work is done. `next_s`: in how many seconds work is due, or None if there is none."""
        self._next_s = next_s
        self._loop.schedule = self
        try:
            await self._done
        finally:
            self._loop.schedule, self.over = None, True
            await self._end_processes()

    async def _end_processes(self) -> None:
        for process in self._processes:
            process.alive = False
            self._hang_up(process)
        # Again and again, because `asyncio.wait_for` of Python 3.11 may swallow a cancellation.
        while tasks := [task for process in self._processes for task in process.tasks if not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.1)
        while self._sessions(self._orphans):  # noqa: ASYNC110  sessions of Postgres send no notification
            await asyncio.sleep(0.001)

    # --- What tasks of processes call

    async def _pass_gate(self, process: Process, label: str) -> Fault | None:
        if self.over:
            raise errors.OperationalError("the process has ended")
        task = _task_name()
        gate = self._gates[task] = _Gate(process, self._loop.create_future(), label)
        try:
            return await gate.opened
        finally:
            del self._gates[task]

    @contextlib.asynccontextmanager
    async def effect(self, label: str) -> AsyncIterator[Fault | None]:
        """An effect outside of Postgres: yields a fault that has taken place, or that the caller is to report."""
        process = _process.get()
        if process is None:
            yield None
            return
        fault = await self._pass_gate(process, label)
        self._deliveries += 1
        try:
            yield fault
        finally:
            self._deliveries -= 1
        await self._hand_over(process, fault)

    async def round_trip(self, process: Process, tx: "ScheduledTransaction", gen: PQGen[Any]) -> Any:
        label, notifies = _label(gen), _notifies(gen)
        fault = await self._pass_gate(process, label)
        if fault is Fault.REQUEST_LOST:
            self._disconnect(process, tx)
            raise errors.OperationalError("the connection broke before the request arrived")
        task = _task_name()
        self._in_flight[task] = tx
        result, error = None, None
        try:
            result = await AsyncConnection.wait(tx, gen, 1e9)
        except Exception as raised:  # noqa: BLE001  handed over like an answer
            error = raised
        finally:
            del self._in_flight[task]
        if isinstance(error, errors.DeadlockDetected):
            self.violations.append(f"deadlock: {task} {label}")
        tx.notifies |= notifies
        if tx.notifies and tx.pgconn.transaction_status == TransactionStatus.IDLE:
            tx.notifies = False
            for other in self._processes:
                other.wake()
        await self._hand_over(process, fault)
        if fault is Fault.ANSWER_LOST:
            self._disconnect(process, tx)
            raise errors.OperationalError("the connection broke before the answer arrived")
        if error is not None:
            raise error
        return result

    async def _hand_over(self, process: Process, fault: Fault | None) -> None:
        if fault is Fault.CRASH_AFTER:
            self._crash(process)
        task, turn = _task_name(), self._loop.create_future()
        self._answers[task] = process, turn
        try:
            await turn
        finally:
            del self._answers[task]

    def _crash(self, process: Process) -> None:
        process.alive = False
        self._hang_up(process)
        self.start(process.name.partition("#")[0], process.work, mortal=True)

    def _hang_up(self, process: Process) -> None:
        for tx in list(process.connections):
            self._disconnect(process, tx)

    def _disconnect(self, process: Process, tx: "ScheduledTransaction") -> None:
        process.connections.discard(tx)
        if tx in self._in_flight.values():  # Postgres notices it when the statement has ended
            self._orphans.add(tx.pid)
            tx.shut_down()
        else:
            tx.hub.take_back(tx)

    # --- What the event loop calls

    def idle(self, select: Callable[[float], list[Any]]) -> list[Any]:
        """Called when no task can run: return events of sockets, or let something happen."""
        stuck_at = time.monotonic() + _STUCK_S
        while True:
            is_busy = bool(self._in_flight or self._deliveries)
            if events := select(self._patience_s() if is_busy else 0):
                return events
            if not (is_busy or self._orphans) or self._is_quiet():
                break
            if time.monotonic() > stuck_at:
                self._stop("a statement or delivery does not end: " + ", ".join(sorted(self._in_flight)))
                return []
        answers = sorted(task for task, (process, _) in self._answers.items() if process.alive)
        if answers:
            self._answers[answers[0]][1].set_result(None)
        elif not self._choose():
            # Tasks wait for locks of one another only. Postgres ends such a deadlock after `deadlock_timeout`.
            if events := select(_STUCK_S):
                return events
            self._stop("all tasks wait for locks")
        return []

    def _patience_s(self) -> float:
        """Return how long to wait for an answer before asking whether statements wait for locks.

        The only open transaction waits for none.
        """
        open_transactions = len(self._orphans) + sum(
            tx.pgconn.transaction_status != TransactionStatus.IDLE
            for process in self._processes
            for tx in process.connections
        )
        return 0.005 if open_transactions > 1 and not self._deliveries else 1.0

    def _is_quiet(self) -> bool:
        """Whether nothing happens without a gate or time: all statements in flight wait for locks."""
        if self._deliveries:
            return False
        waiting = self._sessions(self._orphans.union(tx.pid for tx in self._in_flight.values()))
        self._orphans &= waiting.keys()
        return all(waiting.values())

    def _sessions(self, pids: set[int]) -> dict[int, bool]:
        """Return which of these sessions of Postgres exist, and whether they wait for a lock."""
        return dict(self._control.execute(_SESSIONS, [list(pids)]).fetchall()) if pids else {}

    def _choose(self) -> bool:
        """Open a gate or move the clock; return False if only statements that wait for locks could continue."""
        tasks = sorted(task for task, gate in self._gates.items() if gate.process.alive and not gate.opened.done())
        if len(self.trace) > MAX_STEPS:
            self._stop("it does not end")
        elif tasks:
            self._open_one(tasks)
        elif any(task.partition(".")[0] in self._living for task in self._in_flight):
            return False
        elif (next_s := self._next_s()) is None:
            self._done.set_result(None)
        elif self._pauses_left:
            self._pauses_left -= 1
            self._move_clock(max(next_s, MIN_PAUSE_S))
        else:
            self._stop("work is due that no process takes")
        return True

    def _open_one(self, tasks: list[str]) -> None:
        draw = self._random
        processes = [self._gates[task].process.name for task in tasks]
        weights = [
            _STALLED
            if self._stalled.get(name, 0) > len(self.trace)
            else self._weights.setdefault(name, self._speed ** draw.randrange(4))
            for name in processes
        ]
        (task,) = draw.choices(tasks, weights)
        gate, fault = self._gates[task], None
        if draw.random() < SURPRISE:
            if self._stalls_left and draw.random() < 0.6:
                self._stalls_left -= 1
                self._stalled[gate.process.name] = len(self.trace) + draw.choice(STALL_STEPS)
                self.trace.append(f"{task:12} {gate.label} [stalls]")
                self._move_clock(draw.choice(STALLS_S))
                return
            if self._faults_left and gate.process.mortal:
                self._faults_left -= 1
                fault = draw.choice(list(Fault))
        self.trace.append(f"{task:12} {gate.label}" + (f" [{fault}]" if fault else ""))
        self.waits_for_locks += bool(self._in_flight)
        self._loop.now += 0.001
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            self.crashes += 1
        elif fault:
            self.losses += 1
        if fault is Fault.CRASH_BEFORE:
            self._crash(gate.process)
        else:
            gate.opened.set_result(fault)

    @property
    def _living(self) -> set[str]:
        return {process.name for process in self._processes if process.alive}

    def _move_clock(self, seconds: float) -> None:
        if not seconds:
            return
        self.trace.append(f"{'clock':12} + {seconds:g} s")
        self._loop.now += seconds

    def _stop(self, violation: str) -> None:
        self.violations.append(violation)
        if not self._done.done():
            self._done.set_result(None)


def _task_name() -> str:
    task = asyncio.current_task()
    assert task is not None
    return task.get_name()


def _label(gen: Any) -> str:
    """Name the statements of a round trip."""
    calls = gen.gi_frame.f_locals.get("calls") if gen.gi_frame is not None else None
    if calls is None:
        return str(gen.__name__.strip("_").removesuffix("_gen"))
    return " + ".join(call.statement.name.decode().rpartition(".")[2] for call in calls)


def _notifies(gen: Any) -> bool:
    """Whether statements of a round trip may notify the engines."""
    calls = gen.gi_frame.f_locals.get("calls") or ()
    return any(b"pg_notify('workbench_entries'" in call.statement.text for call in calls)


# --- The event loop


class _Selector(selectors.DefaultSelector):
    """Asks the schedule what happens where the event loop would wait."""

    loop: "ScheduledLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        select = super().select
        if timeout is not None and timeout <= 0:
            return select(0)
        if (schedule := self.loop.schedule) is not None:
            return schedule.idle(select)
        events = select(timeout)
        if not events and timeout:
            self.loop.now += timeout
        return events


class ScheduledLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time, which a schedule moves, and without threads."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.schedule: Schedule | None = None
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run it here: a thread would end at any moment."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  raised where it is awaited
            future.set_exception(error)
        return future


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, context: Context | None = None, **options: Any) -> Any:
    process = _process.get() if context is None else context.get(_process)
    task = asyncio.Task(coro, loop=loop, context=context, **options)
    if process is not None:
        task.set_name(f"{process.name}.{len(process.tasks)}")
        process.tasks.append(task)
    return task


# --- Parts of processes


class ScheduledClock(Clock):
    """Virtual time, from a moment on."""

    def __init__(self, loop: ScheduledLoop, start_us: int) -> None:
        super().__init__()
        self._loop, self._start_us, self._started, self._last_us = loop, start_us, loop.now, 0

    def calibrate(self, *_times: Any) -> None:
        """Keep virtual time."""

    def now_us(self) -> int:
        return self._start_us + int((self._loop.now - self._started) * 1e6)

    def unique_now_us(self) -> int:
        self._last_us = max(self._last_us + 1, self.now_us())
        return self._last_us


class ScheduledIds:
    """The last 64 bits of ids, drawn by the process that makes them (`api.clock`)."""

    def take(self) -> str:
        process = _process.get()
        bits = (process.random if process else random.SystemRandom()).getrandbits(62) | 1 << 63
        text = f"{bits:016x}"
        return f"{text[:4]}-{text[4:]}"


class ScheduledTransaction(Transaction):
    """A connection whose round trips pass gates, if a process of a schedule makes them."""

    hub: "Hub"
    pid: int
    notifies = False

    async def wait(self, gen: PQGen[Any], interval: float = 0.1, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        process = _process.get()
        sends = self.pgconn.transaction_status != TransactionStatus.IDLE or gen.__name__ not in _ENDS
        if process is None or not sends:
            return await AsyncConnection.wait(self, gen, 1.0)
        return await process.schedule.round_trip(process, self, gen)


_ENDS = ("_commit_gen", "_rollback_gen")  # without a transaction they send nothing


class Hub:
    """Open connections, which processes take and give back: opening them would take most of the time of a schedule."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._idle: list[ScheduledTransaction] = []

    async def fill(self, number: int = 16) -> None:
        """Open connections until so many are idle. Their settings are those of an engine, without timeouts."""
        options = Database(self.dsn, statement_ms=0, lock_ms=0, hot=True)._pool.kwargs  # type: ignore[attr-defined]
        while len(self._idle) < number:
            tx = await ScheduledTransaction.connect(self.dsn, **options)
            tx.hub, tx.pid = self, tx.info.backend_pid
            tx.prepared_until_ns = 1 << 63
            await tx.execute("SET idle_in_transaction_session_timeout = 0")
            await tx.execute("SET synchronous_commit = off")
            await is_distributed(tx)
            await transaction_offset(tx)
            await tx.commit()
            self._idle.append(tx)

    def take_back(self, broken: ScheduledTransaction) -> None:
        """Break a connection, and keep its session of Postgres: a new one takes 40 ms of CPU time."""
        pgconn, broken.pgconn = broken.pgconn, PGconn()
        if pgconn.transaction_status != TransactionStatus.IDLE:
            pgconn.exec_(b"ROLLBACK")
        tx = ScheduledTransaction(pgconn)
        tx.hub, tx.pid, tx.prepared, tx.prepared_until_ns = self, broken.pid, broken.prepared, broken.prepared_until_ns
        tx.transaction_offset, tx.distributed = broken.transaction_offset, broken.distributed
        self._idle.append(tx)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[ScheduledTransaction]:
        process = _process.get()
        if process is not None and not process.alive:
            raise errors.OperationalError("the process has ended")
        tx = self._idle.pop()
        tx._pool = self  # type: ignore[attr-defined]  so that its transaction does not close it
        if process is not None:
            process.connections.add(tx)
        try:
            async with tx:
                yield tx
        finally:
            if not tx.closed and (process is None or (process.alive and not process.schedule.over)):
                self._idle.append(tx)
                if process is not None:
                    process.connections.discard(tx)

    async def open(self, wait: bool = False) -> None:
        """Do nothing: connections are open."""

    async def close(self, timeout: float = 0) -> None:  # noqa: ASYNC109
        """Do nothing: others use the connections."""

    async def end(self) -> None:
        for tx in self._idle:
            await tx.close()


class ScheduledDatabase(Database):
    """A database whose connections are those of a hub."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub.dsn)
        self._pool = hub
