"""A client for backends: `track` stores an event in a file on this machine, and threads send it to the service.

An event that `track` returned from is not lost when its process is killed, or the service cannot be reached. It has one
idempotency key from the beginning, so the service stores it once, however often it is sent. Events that the service
rejects are kept apart, the newest 16 MB of them, and logged.

    track → Spool.add → (a thread for each lane) Lane.oldest → POST /events/batch → Lane.settle

An event is encoded once, by `track`, and the threads join these bytes. Importing this module loads no HTTP library; the
threads that send do.
"""

import atexit
import contextlib
import logging
import math
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from workbench import environment
from workbench.errors import (
    InvalidArgumentError,
    InvalidRequestError,
    SpoolError,
    UnavailableError,
    UnknownOutcomeError,
    WorkbenchError,
)
from workbench.event_json import (
    BATCH_SIZE,
    RATE_LIMITED,
    UNAVAILABLE,
    EventFields,
    JsonObject,
    encode_exactly,
    event_body,
    sending_key,
)
from workbench.language.codec import decode
from workbench.spool import LANES, Backlog, EventFile, Lane, Spool, fork_lock

if TYPE_CHECKING:
    from workbench.connection import Connection
    from workbench.events import Receipt

MAX_SPOOL_BYTES = 1_073_741_824
_WAIT_FOR_OTHERS_S = 0.1  # before the first event of a request is sent
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # after failures
_LONGEST_RETRY_AFTER_S = 300.0
_IDLE_S = 60.0  # a thread that has nothing to send is woken by `track`
_SYNC_INTERVAL_S = 1.0
_REGISTER_TIMEOUT_S = 2.0
_REJECTED_LOG_INTERVAL_S = 60.0
_TAKE_OVER_INTERVAL_S = 5.0  # how often a process looks for files of processes that ended
_TOO_LARGE = 413
_REFUSALS = (400, 422)
_EXIT_TIMEOUT_S = 2.0  # the end of a process waits so long; the file keeps the other events

logger = logging.getLogger("workbench.client")


class RejectedEvent(msgspec.Struct, frozen=True):
    """An event that the service rejected, and its error. `event` is in the JSON format of the API."""

    error: str
    event: JsonObject


class Client:
    """Sends events in the background.

        client = Client()
        client.track("deposit", external_id="u1", payload={"amountUsd": 100})

    `url` and `key`: by default WORKBENCH_URL and WORKBENCH_EVENTS_KEY. `spool`: the folder that keeps the events, by
    default one for each URL in `~/.local/state/event-workbench`; `max_spool_bytes`: the size at which `track` raises
    SpoolError. `on_receipt` is called with the Receipt of each accepted or rejected event, by the threads that send,
    one call at a time.

    `track` waits for no network, so it needs no `await`; `aflush`, `aclose` and `async with` are for asyncio.

    Threads and forked processes may share a client, and clients of several processes a folder: each sends its own
    events, and those of processes that ended.
    Raises AuthenticationError for a key that cannot send events, SpoolError for a folder that cannot be used.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        spool: Path | str | None = None,
        max_spool_bytes: int = MAX_SPOOL_BYTES,
        on_receipt: "Callable[[Receipt], object] | None" = None,
    ) -> None:
        self._url = url or environment.variable("WORKBENCH_URL") or environment.DEFAULT_URL
        self._key = sending_key(key or environment.variable(environment.EVENTS_KEY_VARIABLE), "Client(key=…)")
        name = sha256(self._url.encode()).hexdigest()[:16]
        folder = Path(spool) if spool is not None else Path.home() / environment.STATE_FOLDER / name
        self._spool = Spool(folder, self._key, max_spool_bytes)
        self._on_receipt = on_receipt
        self._closed = False
        self._sender: _Sender | None = None
        self._start_failure: WorkbenchError | None = None
        self._is_starting = False
        if not self._spool.backlog().is_settled():
            self._send()
        atexit.register(self._exit)

    def track(
        self, event: str | Mapping[str, Any], *, unique_by: str | Sequence[str] = (), **fields: Unpack[EventFields]
    ) -> str:
        """Store an event for sending, and return its idempotency key.

        The event and its fields are as in `Workbench.events.send`; `occurred_at` is now by default. `unique_by`: the
        payload fields that identify the event, such as "orderId". The key is made from them and the name of the event,
        so an event counts once, also if your code runs twice. Without it each call is a new event.

        Raises InvalidArgumentError for values that JSON lacks, SpoolError if the folder is full. Nothing is stored
        then.
        """
        body = event_body(event, fields)
        if unique_by:
            body["idempotencyKey"] = _business_key(str(body.get("event")), body.get("payload", {}), unique_by)
        elif body.get("idempotencyKey") is None:
            body["idempotencyKey"] = environment.new_key()
        if "occurredAt" not in body:
            body["occurredAt"] = environment.now().isoformat()
        encoded = encode_exactly(body)
        if self._closed:
            raise SpoolError("the client is closed; the event was not stored")
        lane = _lane(body["contact"])
        self._spool.add(lane, encoded)
        if (sender := self._send()) is not None:
            sender.wake(lane)
        return str(body["idempotencyKey"])

    def flush(self, timeout_s: float = 30.0) -> int:
        """Wait until the events that are stored now were accepted or rejected; return how many still wait.

        Events of processes that ended count, too.
        """
        return self._send_all(timeout_s).count()

    @property
    def waiting(self) -> int:
        """The number of events of this process, and of those it took over, that were not accepted or rejected yet.

        The first time, it reads the files that were taken over.
        """
        return self._spool.backlog().count()

    @property
    def failure(self) -> WorkbenchError | None:
        """Why the last request of this process failed; None if it succeeded."""
        return self._start_failure if self._sender is None else self._sender.failure

    def rejected(self, limit: int = 1_000) -> list[RejectedEvent]:
        """Return the newest events that the service rejected, such as those older than seven days.

        The folder keeps the newest 16 MB of all processes.
        """
        return [RejectedEvent(rejected.error, decode(rejected.event)) for rejected in self._spool.rejected(limit)]

    def retry_rejected(self) -> None:
        """Let the rejected events wait again, such as after a mistake in the service was mended."""
        self._spool.retry_rejected()
        if (sender := self._send()) is not None:
            sender.wake()

    def discard_rejected(self) -> None:
        """Delete the rejected events from the folder."""
        self._spool.discard_rejected()

    def close(self, timeout_s: float = 10.0) -> int:
        """Send for up to `timeout_s` seconds, and return how many events the folder keeps for a later client."""
        if self._closed:
            return 0
        with self._closing():
            return self.flush(timeout_s)

    async def aflush(self, timeout_s: float = 30.0) -> int:
        """Do what `flush` does, without blocking the event loop."""
        import asyncio  # takes 30 ms to import, and only asyncio programs need it

        return await asyncio.to_thread(self.flush, timeout_s)

    async def aclose(self, timeout_s: float = 10.0) -> int:
        """Do what `close` does, without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(self.close, timeout_s)

    def _exit(self) -> None:
        if not self._closed:
            with self._closing():
                self._send_all(_EXIT_TIMEOUT_S)

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        self._closed = True
        atexit.unregister(self._exit)
        try:
            yield
        finally:
            # A forked process has a copy of its parent's, whose locks threads of the parent may have held.
            if self._sender is not None and self._sender.is_alive():
                self._sender.stop()
            self._spool.close()

    def _send_all(self, timeout_s: float) -> Backlog:
        """Wait until the events that are stored now were accepted or rejected, and return them."""
        until_s = environment.monotonic_s() + timeout_s
        while True:
            backlog = self._spool.backlog()
            if not backlog.is_settled():
                if (sender := self._send()) is None:
                    return backlog
                sender.hurry()
                while not backlog.is_settled():
                    if (rest_s := until_s - environment.monotonic_s()) <= 0:
                        return backlog
                    sender.settled.wait(min(rest_s, _WAIT_FOR_OTHERS_S))
            sender = self._sender
            of_other_keys = sender is not None and sender.is_alive() and sender.register()
            if not self._spool.take_over(of_other_keys=of_other_keys):
                return backlog

    def _send(self) -> "_Sender | None":
        """Return the threads that send; a forked process, and the first event, start them. None if they cannot start.

        Events wait then, and the next call tries again.
        """
        sender = self._sender
        if sender is not None and sender.is_alive():
            return sender
        with fork_lock():
            if self._sender is not None and self._sender.is_alive():  # another thread was faster
                return self._sender
            if self._is_starting:  # and this is a signal handler of that thread
                return None
            # It is set before it runs: if that is interrupted, the next call sees that it does not run.
            self._sender = sender = _Sender(self._spool, self._url, self._key, self._on_receipt)
            self._is_starting = True
            try:
                sender.start()
            except RuntimeError as error:  # there are too many threads, or the interpreter ends
                if self._start_failure is None:
                    logger.warning("events wait in %s: %s", self._spool.folder, error)
                self._start_failure = UnavailableError(str(error))
                self._sender = None
                return None
            finally:
                self._is_starting = False
            self._start_failure = None
            return sender

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _lane(contact: Mapping[str, Any]) -> int:
    """Return the lane of a contact, which is the same whichever of its other identifiers an event has."""
    identifier = contact.get("externalId") or contact.get("email") or contact.get("walletAddress")
    return zlib.crc32(str(identifier).encode()) % LANES


def _business_key(event: str, payload: Any, names: str | Sequence[str]) -> str:
    names = [names] if isinstance(names, str) else [*names]
    missing = [name for name in names if not isinstance(payload, dict) or payload.get(name) is None]
    if missing:
        raise InvalidArgumentError(f"unique_by: the payload has no {missing[0]!r}; nothing was stored")
    values = encode_exactly({name: payload[name] for name in names}, "payload")
    return f"{event.lower()}:{sha256(values).hexdigest()}"


class _Sender(threading.Thread):
    """Starts a thread for each lane, and looks after the folder."""

    def __init__(self, spool: Spool, url: str, key: str, on_receipt: "Callable[[Receipt], object] | None") -> None:
        super().__init__(name="workbench-client", daemon=True)
        self.settled = threading.Event()  # set for a moment after each batch
        self.url = url
        self.on_receipt = on_receipt
        self.receipts = threading.Lock()
        self.stopping = threading.Event()
        self.has_sent = False
        self._is_registered = False
        self._spool = spool
        self._key = key
        self._lanes = [_LaneSender(self, spool, number) for number in range(LANES)]
        self._connection: Connection | None = None
        self._connecting = threading.Lock()
        self._logged: str | None = None
        self._counting = threading.Lock()  # of what the lanes rejected since the last warning
        self._rejected = self._dropped = 0
        self._rejection = ""
        self._next_warning_s = -math.inf

    @property
    def failure(self) -> WorkbenchError | None:
        """Why a lane waits."""
        return next((lane.failure for lane in self._lanes if lane.failure is not None), None)

    def start(self) -> None:
        # Each has its thread before the first one sends: at the end of the interpreter none can be started.
        try:
            for lane in self._lanes:
                lane.start()
            super().start()
        except BaseException:  # such as KeyboardInterrupt: those that have started must not keep their lanes
            self.stopping.set()
            self.hurry()
            raise

    def wake(self, number: int | None = None) -> None:
        """Tell the thread of a lane, or all, that there are events."""
        for lane in self._lanes if number is None else (self._lanes[number],):
            if lane.woken.empty():
                lane.woken.put(None)

    def hurry(self) -> None:
        """End the pauses, and wait for no other events before the next batch."""
        for lane in self._lanes:
            lane.at_once.set()
        self.wake()

    def stop(self) -> None:
        self.stopping.set()
        self.hurry()
        until_s = environment.monotonic_s() + _EXIT_TIMEOUT_S
        for thread in (self, *self._lanes):
            thread.join(max(0.0, until_s - environment.monotonic_s()))
        self._warn_of_rejected(at_once=True)

    def connection(self) -> "Connection":
        with self._connecting:
            if self._connection is None:
                with fork_lock():  # httpx imports parts of itself when it is first used
                    from workbench.connection import Connection

                    self._connection = Connection(self.url, self._key)
            return self._connection

    def report(self) -> None:
        """Log once why events wait, and that they are sent again."""
        failure = self.failure
        text = None if failure is None else str(failure)
        if text != self._logged:
            self._logged = text
            if failure is None:
                logger.info("events are sent again")
            else:
                logger.warning("events wait in %s: %s", self._spool.folder, failure)

    def report_rejected(self, count: int, dropped: int, error: str) -> None:
        """Count rejected events for the next warning. `error`: of the newest of them."""
        with self._counting:
            self._rejected += count
            self._dropped += dropped
            self._rejection = error
        self._warn_of_rejected()

    def _warn_of_rejected(self, *, at_once: bool = False) -> None:
        """Log how many events were rejected, once a minute at most."""
        with self._counting:
            now_s = environment.monotonic_s()
            if not self._rejected or (not at_once and now_s < self._next_warning_s):
                return
            self._next_warning_s = now_s + _REJECTED_LOG_INTERVAL_S
            older = f" ({self._dropped} older ones were deleted)" if self._dropped else ""
            folder = self._spool.folder
            logger.warning("rejected events in %s: %d%s: %s", folder, self._rejected, older, self._rejection)
            self._rejected = self._dropped = 0

    def register(self) -> bool:
        """Note whose key this is, if the service accepts it; return whether other keys' events may be sent with it.

        A key that is refused must not take over events of others.
        """
        if not self.has_sent or self.failure is not None:
            return False
        if not self._is_registered:
            try:
                # Sent once: `close` waits for it.
                me = self.connection().request("GET", "/me", timeout_s=_REGISTER_TIMEOUT_S).body
                self._spool.register(me["organization"], me["key"]["kind"])
                self._is_registered = True
            except Exception as error:  # noqa: BLE001  such as the page of a proxy; the lanes report failures
                logger.debug("files of other keys wait: %r", error)
        return self._is_registered

    def run(self) -> None:
        """Force new events to the disk, and take over those of processes that ended."""
        next_s = 0.0
        while not self.stopping.wait(_SYNC_INTERVAL_S):
            try:
                self._warn_of_rejected()
                self._spool.sync()
                if environment.monotonic_s() < next_s:
                    continue
                next_s = environment.monotonic_s() + _TAKE_OVER_INTERVAL_S
                if self._spool.take_over(of_other_keys=self.register()):
                    self.wake()
                    next_s = 0.0  # there may be more
            except Exception as error:  # noqa: BLE001  the thread must go on
                logger.debug("files of other processes wait: %r", error)


class _LaneSender(threading.Thread):
    """Sends the events of a lane, one batch after the other."""

    def __init__(self, sender: _Sender, spool: Spool, number: int) -> None:
        super().__init__(name=f"workbench-client-{number}", daemon=True)
        self.failure: WorkbenchError | None = None
        self.woken: SimpleQueue[None] = SimpleQueue()  # whose `put` a signal handler may interrupt
        self.at_once = threading.Event()
        self._sender = sender
        self._spool = spool
        self._number = number
        self._lane: Lane = spool.lanes[number]

    def run(self) -> None:
        # A former thread may still send a batch; if both did, each would settle the events of both.
        with self._lane.sending:
            self._send_until_stopped()

    def _send_until_stopped(self) -> None:
        pause_s = _FIRST_PAUSE_S
        is_behind = False  # the last batch was full, so that the next one need not wait for others
        while not self._sender.stopping.is_set():
            while not self.woken.empty():
                self.woken.get()
            try:
                batch = self._lane.oldest(BATCH_SIZE)
                if batch is None:
                    is_behind = False
                    with contextlib.suppress(Empty):
                        self.woken.get(timeout=_IDLE_S)
                    continue
                if len(batch[1]) < BATCH_SIZE and not is_behind and self.failure is None:
                    self.at_once.wait(_WAIT_FOR_OTHERS_S)
                    batch = self._lane.oldest(BATCH_SIZE) or batch
            except Exception as error:  # noqa: BLE001  of the disk, or no memory: the thread must go on
                self.failure = SpoolError(f"they cannot be read: {error!r}")
                self._sender.report()
                self._pause(_LONGEST_PAUSE_S, self.failure)
                self.at_once.clear()
                continue
            self.at_once.clear()
            is_behind = len(batch[1]) == BATCH_SIZE
            count, failure = self._try_batch(*batch)
            self.failure = failure
            self._sender.report()
            self._sender.settled.set()
            self._sender.settled.clear()
            if count:
                pause_s = _FIRST_PAUSE_S
            if failure is not None:
                self._pause(pause_s, failure)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _pause(self, seconds: float, failure: WorkbenchError) -> None:
        """Wait as long as the service asks for, which only `stop` ends, and then for a random part of `seconds`.

        `flush` and `stop` end the second wait. It is random so that clients whose requests failed at the same time do
        not all send again at the same time.
        """
        retry_after_s = min(getattr(failure, "retry_after_s", 0.0), _LONGEST_RETRY_AFTER_S)
        if retry_after_s:
            environment.wait(self._sender.stopping, retry_after_s)
        environment.wait(self.at_once, seconds * environment.random_fraction())

    def _try_batch(self, file: EventFile, events: Sequence[bytes]) -> tuple[int, WorkbenchError | None]:
        try:
            return self._send_batch(file, events)
        except WorkbenchError as error:
            return 0, error
        except Exception as error:  # such as the page of a proxy in place of an answer
            logger.exception("sending failed")
            return 0, UnknownOutcomeError(f"sending failed: {error!r}")

    def _send_batch(self, file: EventFile, events: Sequence[bytes]) -> tuple[int, WorkbenchError | None]:
        """Send up to BATCH_SIZE events; return how many do not wait any more, and why the others do."""
        try:
            answer = self._sender.connection().post_bytes("/events/batch", b'{"events":[%b]}' % b",".join(events))
        except InvalidRequestError as error:
            # Another server, such as a proxy, knows nothing about events; but what is too large for it stays too large.
            if error.status != _TOO_LARGE and (error.status not in _REFUSALS or error.request_id is None):
                return 0, error
            if len(events) > 1:  # the request as a whole, such as one that is too large
                middle = len(events) // 2
                count, failure = self._send_batch(file, events[:middle])
                if failure is not None:
                    return count, failure
                more, failure = self._send_batch(file, events[middle:])
                return count + more, failure
            answer = {"results": [{"accepted": False, "error": str(error)}]}
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list) or len(results) != len(events):
            return 0, UnknownOutcomeError(f"the answer is not that of an Event Workbench at {self._sender.url}")
        refused = [(number, result["error"]) for number, result in enumerate(results) if not result["accepted"]]
        # Events after one that waits are sent again, too, so that the order stays; they are stored once.
        waits = next((refusal for refusal in refused if refusal[1].startswith((RATE_LIMITED, UNAVAILABLE))), None)
        count = len(events) if waits is None else waits[0]
        rejected = [(number, error) for number, error in refused if number < count]
        if count:
            self.failure = None
            self._sender.has_sent = True
        # Those before the first rejected one are settled even if the disk has no room for it.
        first = rejected[0][0] if rejected else count
        self._settle(file, events[:first], results)
        if rejected:
            dropped = self._spool.reject(self._number, [(events[number], error) for number, error in rejected])
            self._settle(file, events[first:count], results[first:])
            self._sender.report_rejected(len(rejected), dropped, rejected[-1][1])
        return count, None if waits is None else UnavailableError(waits[1])

    def _settle(self, file: EventFile, events: Sequence[bytes], results: Sequence[JsonObject]) -> None:
        """Note that the oldest events were accepted or rejected, and hand over their receipts."""
        self._lane.settle(file, events)
        on_receipt = self._sender.on_receipt
        if on_receipt is None:
            return
        with fork_lock():
            from workbench.events import Receipt

        for event, result in zip(events, results, strict=False):
            # The service names no key for an event that is not valid.
            key = result.get("idempotencyKey") or decode(event)["idempotencyKey"]
            receipt = msgspec.convert(result | {"idempotencyKey": key}, Receipt)
            try:
                with self._sender.receipts:
                    on_receipt(receipt)
            except BaseException:  # such as SystemExit: the thread must go on
                logger.exception("on_receipt failed for %s", key)
