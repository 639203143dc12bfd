"""A client for backends: `track` stores an event in a file on this machine, and a thread sends it to the service.

An event that `track` returned from is not lost when its process is killed, or the service cannot be reached. It has one
idempotency key from the beginning, so the service stores it once, however often it is sent.

    track → Spool.add → (thread) Spool.oldest → POST /events/batch, in four lanes → Spool.settle

Importing this module loads no HTTP library; the thread that sends does.
"""

import atexit
import hashlib
import logging
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from workbench import environment
from workbench.errors import (
    AuthenticationError,
    InvalidArgumentError,
    InvalidRequestError,
    PermissionDeniedError,
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
    with_key,
)
from workbench.language.codec import decode
from workbench.spool import Spool, WaitingEvent, no_fork

if TYPE_CHECKING:
    from workbench.connection import Connection
    from workbench.events import Receipt

LANES = 4  # requests at a time. Events with the same contact are in one lane, so they arrive in order
_EVENTS_READ = LANES * BATCH_SIZE * 5 // 4  # so that nearly every lane has a full batch
MAX_SPOOL_BYTES = 1_073_741_824
_FOLDER = Path(".local/state/event-workbench")  # in the home of the user
_WAIT_FOR_OTHERS_S = 0.1  # before the first event of a request is sent
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # after failures
_LONGEST_RETRY_AFTER_S = 300.0
_TAKE_OVER_INTERVAL_S = 1.0  # how often a process tries to become the one that sends
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

    `url` and `key`: by default WORKBENCH_URL and WORKBENCH_EVENTS_KEY. `spool`: the file that keeps the events, by
    default one for each URL in `~/.local/state/event-workbench`; `max_spool_bytes`: the size at which `track` raises
    SpoolError. `on_receipt` is called with the Receipt of each accepted or rejected event, by the thread that sends.

    `track` waits for no network, so it needs no `await`; `aflush`, `aclose` and `async with` are for asyncio.

    Threads and forked processes may share a client, and clients of several processes a file: one of those with keys
    of an organization and kind sends for all of these.
    Raises AuthenticationError for a key that cannot send events, SpoolError for a file that cannot be used.
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
        name = hashlib.sha256(self._url.encode()).hexdigest()[:16]
        path = Path(spool) if spool is not None else Path.home() / _FOLDER / f"{name}.sqlite"
        self._spool = Spool(path, self._key, max_spool_bytes)
        self._on_receipt = on_receipt
        self._closed = False
        self._sender: _Sender | None = None
        if self.waiting:
            self._send()
        atexit.register(self.close, _EXIT_TIMEOUT_S)

    def track(
        self, event: str | Mapping[str, Any], *, unique_by: str | Sequence[str] = (), **fields: Unpack[EventFields]
    ) -> str:
        """Store an event for sending, and return its idempotency key.

        The event and its fields are as in `Workbench.events.send`; `occurred_at` is now by default. `unique_by`: the
        payload fields that identify the event, such as "orderId". The key is made from them and the name of the event,
        so an event counts once, also if your code runs twice. Without it each call is a new event.

        Raises InvalidArgumentError for values that JSON lacks, SpoolError if the file is full. Nothing is stored then.
        """
        body = event_body(event, fields)
        if unique_by:
            body["idempotencyKey"] = _business_key(str(body.get("event")), body.get("payload", {}), unique_by)
        body = with_key(body)
        body.setdefault("occurredAt", environment.now().isoformat())
        encoded = encode_exactly(body)
        if self._closed:
            raise SpoolError("the client is closed; the event was not stored")
        self._spool.add(zlib.crc32(repr(body["contact"]).encode()) % LANES, encoded)
        self._send()
        return str(body["idempotencyKey"])

    def flush(self, timeout_s: float = 30.0) -> int:
        """Wait until the events that are stored now were accepted or rejected; return how many still wait."""
        newest = self._spool.newest_id()
        sender = self._send(now=True)
        until_s = environment.monotonic_s() + timeout_s
        while waiting := self._spool.count(newest):
            rest_s = until_s - environment.monotonic_s()
            if rest_s <= 0:
                return waiting
            # Another process may be the one that sends, so its progress is read from the file.
            sender.settled.wait(min(rest_s, _WAIT_FOR_OTHERS_S))
        return 0

    @property
    def waiting(self) -> int:
        """The number of events that were not accepted yet."""
        return self._spool.count()

    @property
    def failure(self) -> WorkbenchError | None:
        """Why the last request of this process failed; None if it succeeded."""
        return None if self._sender is None else self._sender.failure

    def rejected(self, limit: int = 1_000) -> list[RejectedEvent]:
        """Return the newest events that the service rejected, such as those older than seven days.

        The file keeps the newest 10,000.
        """
        return [RejectedEvent(error, decode(body)) for error, body in self._spool.rejected(limit)]

    def retry_rejected(self) -> None:
        """Let the rejected events wait again, such as after a mistake in the service was mended."""
        self._spool.retry_rejected()
        self._send()

    def discard_rejected(self) -> None:
        """Delete the rejected events from the file."""
        self._spool.discard_rejected()

    def close(self, timeout_s: float = 10.0) -> int:
        """Send for up to `timeout_s` seconds, and return how many events the file keeps for a later client."""
        if self._closed:
            return 0
        self._closed = True
        atexit.unregister(self.close)
        waiting = self.flush(timeout_s)
        if self._sender is not None:
            self._sender.stop()
        self._spool.close()
        return waiting

    async def aflush(self, timeout_s: float = 30.0) -> int:
        """Do what `flush` does, without blocking the event loop."""
        import asyncio  # takes 30 ms to import, and only asyncio programs need it

        return await asyncio.to_thread(self.flush, timeout_s)

    async def aclose(self, timeout_s: float = 10.0) -> int:
        """Do what `close` does, without blocking the event loop."""
        import asyncio

        return await asyncio.to_thread(self.close, timeout_s)

    def _send(self, *, now: bool = False) -> "_Sender":
        """Let the thread send; a forked process and one whose thread died start their own."""
        sender = self._sender
        if sender is None or not sender.is_alive():
            sender = self._sender = _Sender(self._spool, self._url, self._key, self._on_receipt)
            sender.start()
        sender.wake(now=now)
        return sender

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _business_key(event: str, payload: Any, names: str | Sequence[str]) -> str:
    names = [names] if isinstance(names, str) else [*names]
    missing = [name for name in names if not isinstance(payload, dict) or payload.get(name) is None]
    if missing:
        raise InvalidArgumentError(f"unique_by: the payload has no {missing[0]!r}; nothing was stored")
    values = encode_exactly({name: payload[name] for name in names}, "payload")
    return f"{event.lower()}:{hashlib.sha256(values).hexdigest()}"


class _Sender(threading.Thread):
    """The thread that sends what a spool has, while this process has the right to."""

    def __init__(self, spool: Spool, url: str, key: str, on_receipt: "Callable[[Receipt], object] | None") -> None:
        super().__init__(name="workbench-client", daemon=True)
        self.failure: WorkbenchError | None = None
        self.settled = threading.Event()  # set for a moment after each round
        self._spool, self._url, self._key, self._on_receipt = spool, url, key, on_receipt
        self._wake, self._at_once, self._stopping = (threading.Event() for _ in range(3))

    def wake(self, *, now: bool) -> None:
        """Tell the thread that there are events; `now`: it does not wait for others."""
        if now:
            self._at_once.set()
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self.wake(now=True)
        self.join(_EXIT_TIMEOUT_S)

    def run(self) -> None:
        with no_fork:  # httpx imports parts of itself when it is first used
            from workbench.connection import Connection

            connection = Connection(self._url, self._key)
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                # A key that the service refuses never gets the right to send, which others may need.
                me = connection.get("/me")
                owner = (me["organization"], me["key"]["kind"])
                self._spool.register(*owner)
                pause_s = _FIRST_PAUSE_S
                while not self._stopping.is_set():
                    with self._spool.sending(*owner) as is_sender:
                        if is_sender:
                            self._send_all(connection)
                    self._pause(_TAKE_OVER_INTERVAL_S)  # not for the last failure: another process may send by now
            except WorkbenchError as error:
                self._report(error)
            except Exception as error:  # such as the page of a proxy in place of an answer
                logger.exception("sending failed")
                self._report(UnknownOutcomeError(f"sending failed: {error!r}"))
            self._pause(pause_s, self.failure)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _pause(self, seconds: float, failure: WorkbenchError | None = None) -> None:
        """Wait, at most until `flush` or `stop`; for as long as the service asks for, only `stop` ends it."""
        retry_after_s = min(getattr(failure, "retry_after_s", 0.0), _LONGEST_RETRY_AFTER_S)
        if retry_after_s:
            self._stopping.wait(retry_after_s)
        if seconds > retry_after_s:
            self._at_once.wait(seconds - retry_after_s)
        self._at_once.clear()

    def _send_all(self, connection: "Connection") -> None:
        """Send events until the thread is stopped, or the service refuses the key."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            events = self._spool.oldest(_EVENTS_READ)
            if not events:
                self._wake.wait(_TAKE_OVER_INTERVAL_S)  # another process cannot wake this thread
                self._wake.clear()
                continue
            if len(events) < BATCH_SIZE and not self._at_once.wait(_WAIT_FOR_OTHERS_S):
                events = self._spool.oldest(_EVENTS_READ)
            self._at_once.clear()
            failures, is_any_settled = self._send_lanes(connection, events)
            refusal = next((f for f in failures if isinstance(f, AuthenticationError | PermissionDeniedError)), None)
            if refusal is not None:
                raise refusal
            self._report(failures[0] if failures else None)
            self.settled.set()
            self.settled.clear()
            if is_any_settled:
                pause_s = _FIRST_PAUSE_S
            if failures:
                self._pause(pause_s, self.failure)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _send_lanes(
        self, connection: "Connection", events: Sequence[WaitingEvent]
    ) -> tuple[list[WorkbenchError], bool]:
        """Send one batch of each lane, side by side; return why events still wait, and whether any do not."""
        lanes = defaultdict[int, list[WaitingEvent]](list)
        for event in events:
            if len(lanes[event.lane]) < BATCH_SIZE:  # the others are read again
                lanes[event.lane].append(event)
        failures: list[WorkbenchError] = []
        settled: list[int] = []

        def send(lane: Sequence[WaitingEvent]) -> None:
            try:
                count, failure = self._send_batch(connection, lane)
                settled.append(count)
            except WorkbenchError as error:
                failure = error
            except Exception as error:
                logger.exception("sending failed")
                failure = UnknownOutcomeError(f"sending failed: {error!r}")
            if failure is not None:
                failures.append(failure)

        # A ThreadPoolExecutor takes no work once the interpreter ends, when `close` sends the last events.
        first, *others = lanes.values()
        threads = []
        for lane in others:
            thread = threading.Thread(target=send, args=(lane,), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # since Python 3.12 no thread can be started then, either
                send(lane)
            else:
                threads.append(thread)
        send(first)
        for thread in threads:
            thread.join()
        return failures, any(settled)

    def _send_batch(
        self, connection: "Connection", events: Sequence[WaitingEvent]
    ) -> tuple[int, WorkbenchError | None]:
        """Send up to BATCH_SIZE events; return how many do not wait any more, and why the others do."""
        try:
            answer = connection.post("/events/batch", {"events": [msgspec.Raw(event.body) for event in events]})
        except InvalidRequestError as error:
            # Another server, such as a proxy, knows nothing about events; but what is too large for it stays too large.
            if error.status != _TOO_LARGE and (error.status not in _REFUSALS or error.request_id is None):
                return 0, error
            if len(events) > 1:  # the request as a whole, such as one that is too large
                middle = len(events) // 2
                count, failure = self._send_batch(connection, events[:middle])
                if failure is not None:
                    return count, failure
                more, failure = self._send_batch(connection, events[middle:])
                return count + more, failure
            answer = {"results": [{"accepted": False, "error": str(error)}]}
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list) or len(results) != len(events):
            return 0, UnknownOutcomeError(f"the answer is not that of an Event Workbench at {self._url}")
        waits = [str(result.get("error", "")).startswith((RATE_LIMITED, UNAVAILABLE)) for result in results]
        settled = [(event, result) for event, result, wait in zip(events, results, waits, strict=True) if not wait]
        self._spool.settle(
            [event.id for event, result in settled if result["accepted"]],
            [(event.id, result["error"]) for event, result in settled if not result["accepted"]],
        )
        if self._on_receipt is not None:
            self._hand_over(settled)
        reasons = [result["error"] for result, wait in zip(results, waits, strict=True) if wait]
        return len(settled), UnavailableError(reasons[0]) if reasons else None

    def _hand_over(self, settled: Sequence[tuple[WaitingEvent, JsonObject]]) -> None:
        with no_fork:
            from workbench.events import Receipt

        for event, result in settled:
            # The service names no key for an event that is not valid.
            key = result.get("idempotencyKey") or decode(event.body)["idempotencyKey"]
            receipt = msgspec.convert(result | {"idempotencyKey": key}, Receipt)
            try:
                self._on_receipt(receipt)  # type: ignore[misc]
            except Exception:
                logger.exception("on_receipt failed for %s", key)

    def _report(self, failure: WorkbenchError | None) -> None:
        """Remember why events wait, and log it once."""
        if str(failure) != str(self.failure):
            if failure is None:
                logger.info("events are sent again")
            else:
                logger.warning("events wait in %s: %s", self._spool.path, failure)
        self.failure = failure
