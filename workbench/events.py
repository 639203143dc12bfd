"""Sending events, and viewing those that arrived.

Each call has one idempotency key, which stays the same on every retry, so an event is stored at most once. After a
429 or another 4xx nothing was stored. After a 5xx, or if the connection broke, the outcome is unknown. A 429, a 5xx
and a broken connection are retried a limited number of times, with growing pauses. An outcome that is still unknown
then is reported as unknown.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from workbench import environment
from workbench.catalog import Catalog
from workbench.connection import Connection
from workbench.display.html import ItemSequence, html, plain, printable_text, table, table_columns
from workbench.display.words import quantity
from workbench.duration import PeriodArguments, read_period
from workbench.errors import (
    ConnectionFailedError,
    InvalidArgumentError,
    MethodHints,
    UnavailableError,
    UnknownOutcomeError,
    WorkbenchError,
    usage_example,
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
from workbench.language.responses import EventResponse
from workbench.sql import SqlQuery, sql
from workbench.tail import EventTail, Outcomes, misspelt, recent, rejected

if TYPE_CHECKING:
    import polars as pl

    from workbench.frames import EventFrame

T = TypeVar("T")

# The error of a receipt begins with one of these words, or with one of the service.
_UNANSWERED, _NOT_SENT, _REFUSED = "UNANSWERED", "NOT_SENT", "REFUSED"


class SendRetries(msgspec.Struct, frozen=True):
    """The number of attempts, and the pauses: `first_s` seconds, doubled each time up to `longest_s`, ±50 %."""

    attempts: int = 7
    first_s: float = 0.25
    longest_s: float = 8.0

    def pauses_s(self) -> Iterator[float]:
        for number in range(self.attempts - 1):
            # The random part spreads the retries of clients that were rejected at the same moment.
            yield min(self.first_s * 2**number, self.longest_s) * (0.5 + environment.random_fraction())


_FRAME_SQL = """
select id, contact_id, occurred_at, created_at, payload
from app_events where event = :event and occurred_at >= {since} and occurred_at < {until}
order by occurred_at, id
"""
_NESTED = re.compile(r"[.\[]")  # in the path of a value inside an object or a list
_SEND = '("deposit", email="ada@example.com", payload={"amountUsd": 100})'


class Events(MethodHints):
    """Sends events with a secret key (`sk_live_…`, or `sk_test_…` for dry runs), and shows those that arrived.

    `reader`: the connection to read events with; by default the connection that sends them.
    """

    def __init__(
        self, url: str, key: str | None, retries: SendRetries | None = None, *, reader: Connection | None = None
    ) -> None:
        self._url = url
        self._key = key
        self._retries = retries or SendRetries()
        self._connection = Connection(url, key)
        self._reader = reader if reader is not None and reader.has_key else self._connection

    @property
    def has_key(self) -> bool:
        return self._key is not None

    @usage_example(f"wb.events.send{_SEND}")
    def send(self, event: str | Mapping[str, Any], **fields: Unpack[EventFields]) -> "Receipt":
        """Send one event about a contact and return the receipt.

        `event`: its name, or the event in the JSON format of the API, `{"event": "deposit", "contact": {…}}`.
        The contact is one or more of `email`, `wallet_address` and `external_id`, or `contact={…}`. `payload` has the
        facts of the event, `attributes` the lasting traits of the contact. Without an `idempotency_key` each call is
        a new event; a second call with the same key stores nothing. `test=True` only reports how many automations
        would start. `.warnings` of the receipt name fields that look misspelt, and attributes for which the contact has
        no room.

        Raises InvalidRequestError with the field, UnavailableError or ConnectionFailedError if nothing was stored, or
        UnknownOutcomeError if the event may have been stored; its message has the key to retry with.
        """
        return self.post(event_body(event, fields))

    @usage_example('wb.events.post({"event": "deposit", "contact": {"email": "ada@example.com"}})')
    def post(self, event: Mapping[str, Any]) -> "Receipt":
        """Send one event in the JSON format of the API."""
        body = with_key(event)
        key = str(body["idempotencyKey"])
        return self._post_with_retries("/events", body, key, Receipt, self._retries.pauses_s())[0]

    @usage_example('wb.events.send_many([{"event": "deposit", "contact": {"email": "ada@example.com"}}, …])')
    def send_many(self, events: Iterable[Mapping[str, Any]]) -> "Receipts":
        """Send any number of events in the JSON format of the API, a hundred per request; return one receipt per event.

        An invalid event does not stop the others: its receipt has the error. If the server stops responding, or refuses
        a whole request (such as with a key that was revoked meanwhile), the receipts of these events have an error. To
        retry one of `receipts.failed`, send it with the key of its receipt:
        `{**event, "idempotencyKey": receipt.idempotency_key}`. Events over the rate limit of the server, its setting
        WORKBENCH_INGEST_RATE, are sent again after pauses, and `receipts.limited_s` is their sum in seconds.

        Raises AuthenticationError, PermissionDeniedError or InvalidRequestError if the first request is refused, so
        that nothing was stored.
        """
        receipts: list[Receipt] = []
        limited_s, responding, requested = 0.0, True, False
        remaining = enumerate(events)
        while batch := list(islice(remaining, BATCH_SIZE)):
            bodies: dict[int, JsonObject] = {}
            results: dict[int, Receipt] = {}
            for index, event in batch:
                key = ""
                try:
                    body = with_key(event)
                    key = str(body["idempotencyKey"])
                    encode_exactly(body, f"events[{index}]")
                    bodies[index] = body
                except InvalidArgumentError as refusal:
                    # Raised, it would lose the receipts of the events that are already stored.
                    results[index] = Receipt(False, idempotency_key=key, error=str(refusal))
            if responding:
                sent, paused_s = self._send_batch(list(bodies.values()), is_first=not requested)
                limited_s += paused_s
                requested = requested or bool(bodies)
                # After a batch that used up its retries, retrying every other one of a large import would take hours.
                responding = not (sent and (sent[-1].error or "").startswith((_UNANSWERED, _NOT_SENT)))
            else:
                error = f"{_NOT_SENT}: the server did not respond to the events before this one"
                sent = [Receipt(False, idempotency_key=body["idempotencyKey"], error=error) for body in bodies.values()]
            results |= dict(zip(bodies, sent, strict=True))
            receipts += [results[index] for index, _ in batch]
        return Receipts(tuple(receipts), limited_s)

    @usage_example(f"wb.events.curl{_SEND}")
    def curl(
        self, event: str | Mapping[str, Any], *, show_key: bool = False, **fields: Unpack[EventFields]
    ) -> "CurlLine":
        """Return the `curl` command that sends the same request as `send`; nothing is sent yet.

        The command reads the key from $WORKBENCH_EVENTS_KEY; with `show_key` it contains the key.
        """
        body = with_key(event_body(event, fields))
        url = f"{self._connection.url}/api/v1/events"
        return CurlLine(url, body, self._required_key(), show_key, lambda: self.post(body))

    @usage_example('wb.events.recent(outcome="rejected", limit=20)')
    def recent(self, outcome: Outcomes = None, limit: int = 50) -> "pl.DataFrame":
        """Return a polars frame of the newest events with their outcomes, up to 500, newest last.

        `outcome`: only `accepted`, `deduplicated`, `dry_run` or `rejected`, or a list of these.

        Columns: at (UTC), outcome, event, error, idempotency_key, contact_id, payload (JSON), entries,
        matched_automations, field, body (JSON), id.
        """
        return recent(self._reader, outcome, limit)

    @usage_example('wb.events.frame("deposit", days=7)')
    def frame(self, event: str, **during: Unpack[PeriodArguments]) -> "EventFrame":
        """Return the events of one name as a polars frame, oldest first, with a column for each field of the payload.

        The last `days` (default 30) before `until` (default now), or `since` to `until`, by `occurred_at`.

        Columns: id, contact_id, occurred_at, created_at (UTC), then the fields, with the types of `wb.structs`. Numbers
        are exact. A field with values of several types is text, and `.notes` names it. Every field in the catalog has a
        column, except objects, even if no event of the period has it. The column of a field with the name of another
        column, such as `id`, is `payload.id`.
        """
        from workbench.frames import event_frame

        period, shape = read_period(during), Catalog(self._reader)[event]
        until = ":until ::timestamptz" if "until" in period else "now()"
        since = ":since ::timestamptz" if "since" in period else f"{until} - :days * interval '1 day'"
        query = _FRAME_SQL.format(since=since, until=until)
        rows = sql(self._reader, SqlQuery(query, {"event": shape.event, **period}))
        return event_frame(rows, {path.path: path.samples for path in shape.paths if not _NESTED.search(path.path)})

    @usage_example("wb.events.rejected()")
    def rejected(self, limit: int = 50) -> "pl.DataFrame":
        """Return a polars frame of rejected events, newest last; in SQL they are the table `rejected_events`.

        Columns: at (UTC), event, field, error, body (JSON, with the type in place of each value). Rejected events are
        kept for seven days.
        """
        return rejected(self._reader, limit)

    @usage_example("wb.events.misspelt()")
    def misspelt(self) -> "pl.DataFrame":
        """Return a polars frame of the fields of accepted events that look misspelt, the most frequent first.

        Columns: field, warning, count, last_at (UTC), key, key_name, key_id. They are counted by key and kept for seven
        days. `wb.keys.edit(…, strict=True)` lets a key refuse such events.
        """
        return misspelt(self._reader)

    @usage_example("wb.events.tail(seconds=30)")
    def tail(self, seconds: float | None = None, outcome: Outcomes = None) -> EventTail:
        """Return events as they arrive, from now on: `for event in wb.events.tail(): …`.

        It ends after `seconds`, or when it is interrupted. At the end of a cell the events are displayed: in a
        notebook as a live table that can be paused and filtered, elsewhere as lines.
        """
        return EventTail(self._reader, outcome, seconds)

    @printable_text
    def __repr__(self) -> str:
        key = "without a key: set WORKBENCH_EVENTS_KEY" if self._key is None else f"with key {self._key[:8]}…"
        return f'Sends events to {self._url}, {key}. Try wb.events.send("deposit", email=…, payload={{…}})'

    def _required_key(self) -> str:
        return sending_key(self._key, "Workbench(events_key=…)")

    def _send_batch(self, events: Sequence[JsonObject], is_first: bool) -> tuple[list["Receipt"], float]:
        """Return one receipt per event, and the seconds of pauses because of the rate limit.

        Events with a retryable receipt are sent again. Raises the error of a refused request if it is the first one.
        """
        receipts: dict[int, Receipt] = {}
        limited_s = 0.0
        # An unknown outcome stays unknown when a later attempt is rejected, so it is remembered for each event.
        unanswered: set[int] = set()
        pauses = self._retries.pauses_s()
        while left := [index for index in range(len(events)) if index not in receipts or receipts[index].retryable]:
            if receipts:
                pause = next(pauses, None)
                if pause is None:
                    break
                if any((receipts[index].error or "").startswith(RATE_LIMITED) for index in left):
                    limited_s += pause
                environment.sleep(pause)
            # One series of pauses for both kinds of retries, so that a batch is sent at most `attempts` times.
            try:
                results, unknown = self._post_batch([events[index] for index in left], pauses)
            except WorkbenchError as refusal:
                if is_first and not receipts:
                    raise
                # Raised, it would lose the receipts of the events that are already stored.
                keys = [str(events[index]["idempotencyKey"]) for index in left]
                results = [Receipt(False, idempotency_key=key, error=f"{_REFUSED}: {refusal}") for key in keys]
                unknown = False
            receipts |= dict(zip(left, results, strict=True))
            unanswered.update(index for index in left if unknown or receipts[index].unknown)
        for index in unanswered:
            receipt = receipts[index]
            if (receipt.error or "").startswith((RATE_LIMITED, _NOT_SENT, _REFUSED)):
                # The last attempt was rejected, but an earlier one may have stored the event.
                error = f"{_UNANSWERED}: the outcome of an earlier attempt is unknown, then {receipt.error}"
                receipts[index] = msgspec.structs.replace(receipt, error=error)
        return [receipts[index] for index in range(len(events))], limited_s

    def _post_batch(self, events: Sequence[JsonObject], pauses: Iterator[float]) -> tuple[list["Receipt"], bool]:
        """Return the receipts, and whether an attempt had an unknown outcome."""
        keys = [str(event["idempotencyKey"]) for event in events]
        try:
            body, unknown = self._post_with_retries("/events/batch", {"events": events}, None, _BatchBody, pauses)
        except UnknownOutcomeError as error:
            return [Receipt(False, idempotency_key=key, error=f"{_UNANSWERED}: {error}") for key in keys], True
        except (UnavailableError, ConnectionFailedError) as error:
            return [Receipt(False, idempotency_key=key, error=f"{_NOT_SENT}: {error}") for key in keys], False
        return [
            receipt if receipt.idempotency_key else msgspec.structs.replace(receipt, idempotency_key=key)
            for key, receipt in zip(keys, body.results, strict=True)
        ], unknown

    def _post_with_retries(
        self, path: str, body: Mapping[str, Any], key: str | None, shape: type[T], pauses: Iterator[float]
    ) -> tuple[T, bool]:
        """Post until the server decides; return the response, and whether an attempt had an unknown outcome.

        Raises InvalidRequestError, UnavailableError or ConnectionFailedError if nothing was stored, else
        UnknownOutcomeError.
        """
        self._required_key()
        unknown = False
        retry = f". {_retry_text(key)}" if key else ""  # for a batch, the receipts have the keys
        while True:
            failure: WorkbenchError
            try:
                response = self._connection.request("POST", path, body=body)
                if response.status != 429 and response.status < 500:
                    return msgspec.convert(self._connection.check(response).body, shape), unknown
                failure = UnavailableError(
                    f"the server did not accept it in {self._retries.attempts} attempts ({response.error})",
                    status=response.status,
                    request_id=response.request_id,
                )
                unknown = unknown or response.status != 429  # only a 429 means that nothing was stored
            except ConnectionFailedError as error:
                failure = error
            except UnknownOutcomeError as error:
                failure, unknown = error, True
            except msgspec.ValidationError:
                raise UnknownOutcomeError("The response is not from an Event Workbench server: check the URL") from None
            except WorkbenchError as refusal:
                if not unknown:
                    raise
                earlier = "It is unknown whether this was stored: the outcome of an earlier attempt is unknown, then"
                raise refusal.rephrased(f"{earlier} {refusal}{retry}", UnknownOutcomeError) from None
            pause = next(pauses, None)
            if pause is None:
                if unknown:
                    message = f"It is unknown whether this was stored: {failure}{retry}"
                    raise failure.rephrased(message, UnknownOutcomeError)
                raise failure.rephrased(f"{failure}. Nothing was stored{retry}")
            environment.sleep(pause)


class Receipt(EventResponse, frozen=True, rename="camel", omit_defaults=True):
    """The response to one event. `automation.wait_for_entry(receipt)` returns the entry that it started."""

    deduplicated: bool = False

    @property
    def unknown(self) -> bool:
        """Whether it is unknown if the event was stored. If so, send it again with the same idempotency key."""
        return not self.accepted and (self.error or "").startswith((UNAVAILABLE, _UNANSWERED))

    @property
    def retryable(self) -> bool:
        """Whether the server was too busy for the event."""
        return not self.accepted and (self.error or "").startswith((RATE_LIMITED, UNAVAILABLE))

    def sentence(self) -> str:
        return self._outcome()[2]

    def _outcome(self) -> tuple[str, str, str]:
        """Return the outcome as a state, its colour, and a sentence."""
        if self.unknown:
            return "unknown", "bad", f"Outcome unknown: {self.error}. {_retry_text(self.idempotency_key)}"
        if not self.accepted:
            return "rejected", "bad", f"Not stored: {self.error}"
        if self.dry_run:
            starts = f"it would start {quantity(self.matched_automations or 0, 'automation')}"
            nothing = "No message was sent, and no contact, event or entry was stored."
            return "dry run", "warn", f"Dry run: {starts}. {nothing}{self._warning_text()}"
        if self.deduplicated:
            duplicate = "Duplicate: an event with this idempotency key was accepted before, so nothing was stored."
            return "duplicate", "warn", f"{duplicate}{self._warning_text()}"
        return "accepted", "warn" if self.warnings else "good", f"Accepted.{self._warning_text()}"

    def _warning_text(self) -> str:
        return "".join(f" Warning: {warning}" for warning in self.warnings)

    @printable_text
    def __repr__(self) -> str:
        return f"{self.sentence()} Idempotency key: {self.idempotency_key}"

    def _repr_html_(self) -> str:
        state, look, sentence = self._outcome()
        note = f"idempotency key {self.idempotency_key}" if self.idempotency_key else ""
        return html("line.html.j2", text=sentence, state=state, look=look, note=note, block="")


class _BatchBody(msgspec.Struct, frozen=True):
    results: tuple[Receipt, ...]


class Receipts(ItemSequence[Receipt]):
    """The receipts of many events, in the order of the events.

    `limited_s`: the seconds of pauses because of the rate limit of the server.
    """

    def __init__(self, items: Sequence[Receipt], limited_s: float = 0.0) -> None:
        super().__init__(items)
        self.limited_s = limited_s

    @property
    def failed(self) -> list[tuple[int, Receipt]]:
        """The index and the receipt of each event that was not stored, or has an unknown outcome."""
        return [(index, receipt) for index, receipt in enumerate(self) if not receipt.accepted]

    @property
    def warnings(self) -> list[tuple[int, str]]:
        """The index of the event and the text of each warning."""
        return [(index, warning) for index, receipt in enumerate(self) for warning in receipt.warnings]

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per event: accepted, deduplicated, idempotency_key, error, warnings."""
        from workbench.frames import frame_of

        return frame_of(self, accepted=bool, deduplicated=bool, idempotency_key=str, error=str, warnings=list)

    def _counts(self) -> str:
        duplicates = sum(receipt.deduplicated for receipt in self)
        accepted = sum(receipt.accepted for receipt in self) - duplicates
        unknown = sum(receipt.unknown for receipt in self)
        not_stored = len(self.failed) - unknown
        counts = f"{accepted} accepted, {quantity(duplicates, 'duplicate')}, {not_stored} not stored"
        counts = f"{counts}, {unknown} of unknown outcome" if unknown else counts
        counts = f"{counts}, {quantity(len(self.warnings), 'warning')}" if self.warnings else counts
        limited = f"; {self.limited_s:.0f} s of pauses because of the server's WORKBENCH_INGEST_RATE"
        return f"{counts}{limited}" if self.limited_s >= 1 else counts

    @printable_text
    def __repr__(self) -> str:
        parts = [self._counts()]
        if self.failed:
            parts += [plain(_FAILED_COLUMNS, [(index, receipt.error) for index, receipt in self.failed]), _RETRY_NOTE]
        if self.warnings:
            parts.append(plain(_WARNING_COLUMNS, self.warnings))
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        rows = [(index, receipt.error) for index, receipt in self.failed[:_MAX_FAILED_ROWS]]
        note = _RETRY_NOTE if rows else ""
        failed = table(_FAILED_COLUMNS, rows, title=self._counts(), note=note, empty="All events accepted.")
        return failed + (table(_WARNING_COLUMNS, self.warnings[:_MAX_FAILED_ROWS]) if self.warnings else "")


_MAX_FAILED_ROWS = 50
_FAILED_COLUMNS = table_columns("event", "error", numbers=("event",))
_WARNING_COLUMNS = table_columns("event", "warning", numbers=("event",))
_RETRY_NOTE = 'To retry one, send it with the key of its receipt: {**event, "idempotencyKey": receipt.idempotency_key}'


class CurlLine:
    """A `curl` command: `print` it, copy it, run `!{command}` in a cell, or call `.run()`.

    `automation.wait_for_entry(command.idempotency_key)` returns the entry that the event started.
    """

    def __init__(self, url: str, body: Mapping[str, Any], key: str, show_key: bool, post: Callable[[], object]) -> None:
        self.idempotency_key = str(body["idempotencyKey"])
        self._key = key
        self._post = post
        variable = environment.EVENTS_KEY_VARIABLE
        # Without show_key the shell reads the key, so that it is stored neither in the notebook nor in the history.
        bearer = f"'Authorization: Bearer {key}'" if show_key else f'"Authorization: Bearer ${variable}"'
        self._text = " \\\n  ".join(
            [
                f"curl -sS -X POST {shlex.quote(url)}",
                f"-H {bearer}",
                "-H 'Content-Type: application/json'",
                f"-d {shlex.quote(encode_exactly(body).decode())}",
            ]
        )

    def run(self) -> str:
        """Run the command and return its output. Without curl, send the same request from Python."""
        shell, curl = shutil.which("sh"), shutil.which("curl")
        if shell is None or curl is None:
            return f"curl is not installed; the same request from Python returned:\n{self._post()!r}"
        variables = environment.all_variables() | {environment.EVENTS_KEY_VARIABLE: self._key}
        process = subprocess.run(  # noqa: S603  the command is ours, and its values are quoted
            [shell, "-c", self._text], env=variables, capture_output=True, text=True, timeout=60, check=False
        )
        return (process.stdout + process.stderr).strip()

    @printable_text
    def __str__(self) -> str:
        return self._text

    @printable_text
    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return html(
            "line.html.j2",
            text="The same request for the terminal",
            state="POST",
            look="busy",
            note="A click selects the command. It contains the idempotency key: sent twice, the event is stored once.",
            block=self._text,
        )


def _retry_text(key: str) -> str:
    return f'Retry with idempotency_key="{key}": the event is then stored once'
