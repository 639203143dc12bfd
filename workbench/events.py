"""Sending events: one idempotency key per call, the same on every retry, so that an event is stored once whatever happens.

429 and 4xx mean that nothing was stored. A 503 (any 5xx) and a connection that broke mean that nobody knows. All but the other
4xx are tried again, later and later with some jitter, a bounded number of times; what is still unknown then is said to be unknown.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, Unpack

import msgspec

from workbench import surroundings
from workbench.connection import Answer, Connection
from workbench.curl import CurlLine
from workbench.display.page import html
from workbench.display.table import Column, plain, table
from workbench.errors import (
    DraftError,
    Helpful,
    KeyRefusedError,
    UnavailableError,
    UnknownOutcomeError,
    UnreachableError,
    WorkbenchError,
    spoken,
)
from workbench.recent import Outcomes, Tail, recent, rejected

if TYPE_CHECKING:
    import polars as pl

BATCH = 100
_RATE_LIMITED, _UNAVAILABLE = "RATE_LIMITED", "INGEST_UNAVAILABLE"  # the service's own words for one event of a batch
_UNANSWERED, _NOT_SENT = "UNANSWERED", "NOT_SENT"
_JsonObject: TypeAlias = dict[str, Any]
T = TypeVar("T")


class Patience(msgspec.Struct, frozen=True):
    """How often to try, and how long to wait: `first` seconds, doubled each time up to `longest`, ±50 %."""

    tries: int = 7
    first: float = 0.25
    longest: float = 8.0

    def pauses(self) -> Iterator[float]:
        """Yield the waits between the tries."""
        for number in range(self.tries - 1):
            yield min(self.first * 2**number, self.longest) * (0.5 + surroundings.chance())


class Receipt(msgspec.Struct, frozen=True, rename="camel"):
    """What the service said to one event. `idempotency_key` finds it again: `automation.watch(receipt)`."""

    accepted: bool
    deduplicated: bool = False
    idempotency_key: str = ""
    dry_run: bool = False
    matched_automations: int | None = None
    error: str | None = None

    @property
    def unknown(self) -> bool:
        """Whether nobody can say if the event was stored: send it again with the same idempotency key."""
        return not self.accepted and (self.error or "").startswith((_UNAVAILABLE, _UNANSWERED))

    def sentence(self) -> str:
        """Say it in words."""
        if self.unknown:
            return f"Not known to be stored: {self.error}. {_again(self.idempotency_key)}"
        if not self.accepted:
            return f"Not stored: {self.error}"
        if self.dry_run:
            starts = f"{self.matched_automations or 0} automation{'' if self.matched_automations == 1 else 's'}"
            return f"Dry run: it would start {starts}. Nothing was sent; no contact, event or entry was stored."
        if self.deduplicated:
            return "Accepted before: this idempotency key is known, so nothing happened again."
        return "Accepted."

    def __repr__(self) -> str:
        return f"{self.sentence()} Idempotency key: {self.idempotency_key}"

    def _repr_html_(self) -> str:
        state, look = _state(self)
        note = f"idempotency key {self.idempotency_key}" if self.idempotency_key else ""
        return html("line.html.j2", text=self.sentence(), state=state, look=look, note=note, block="")


class Receipts(Sequence[Receipt]):
    """The answers to many events, in their order. `refused` are those to look at."""

    def __init__(self, receipts: Sequence[Receipt]) -> None:
        self._receipts = tuple(receipts)

    @property
    def refused(self) -> list[tuple[int, Receipt]]:
        """The events that were not stored, or may not have been: their place in the input, and the answer."""
        return [(index, each) for index, each in enumerate(self._receipts) if not each.accepted]

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per event."""
        import polars as pl

        columns = ("accepted", "deduplicated", "idempotency_key", "error")
        schema = {"accepted": pl.Boolean, "deduplicated": pl.Boolean, "idempotency_key": pl.String, "error": pl.String}
        return pl.DataFrame({name: [getattr(each, name) for each in self] for name in columns}, schema=schema)

    def __getitem__(self, index: Any) -> Any:
        return self._receipts[index]

    def __len__(self) -> int:
        return len(self._receipts)

    def _counts(self) -> str:
        again = sum(each.deduplicated for each in self)
        new = sum(each.accepted for each in self) - again
        unknown = sum(each.unknown for each in self)
        counts = f"{new} accepted, {again} known before, {len(self.refused) - unknown} not stored"
        return f"{counts}, {unknown} not known to be stored" if unknown else counts

    def __repr__(self) -> str:
        rows = [(index, each.error) for index, each in self.refused]
        return "\n".join([self._counts(), *([plain(_REFUSED, rows), _SO_AGAIN] if rows else [])])

    def _repr_html_(self) -> str:
        rows = [(index, each.error) for index, each in self.refused[:50]]
        return table(
            _REFUSED, rows, title=self._counts(), note=_SO_AGAIN if rows else "", empty="Every event was taken."
        )


_REFUSED = (Column("event", number=True), Column("why it was not stored, or may not have been"))
_SO_AGAIN = 'To send one again, give it the key of its receipt: {**event, "idempotencyKey": receipt.idempotency_key}'


class About(TypedDict, total=False):
    """What an event says, besides its name."""

    contact: Mapping[str, Any] | None
    email: str | None
    wallet_address: str | None
    external_id: str | None
    payload: Mapping[str, Any] | None
    attributes: Mapping[str, Any] | None
    idempotency_key: str | None
    occurred_at: datetime | str | None
    test: bool


_SEND = '("deposit", email="ada@example.com", payload={"amountUsd": 100})'


class Events(Helpful):
    """Sends events with a secret key (`sk_live_…`, or `sk_test_…` for dry runs), and shows what became of all that came in.

    `reader`: a connection with the key to look with, if that is another one.
    """

    def __init__(
        self, url: str, key: str | None, patience: Patience | None = None, *, reader: Connection | None = None
    ) -> None:
        self._url = url
        self._key = key
        self._patience = patience or Patience()
        self._connection = Connection(url, key)
        self._reader = reader if reader is not None and reader.has_key else self._connection

    @property
    def has_key(self) -> bool:
        """Whether there is a key to send with."""
        return self._key is not None

    @spoken(f"wb.events.send{_SEND}")
    def send(self, event: str, **about: Unpack[About]) -> Receipt:
        """Send one event about a contact and return the receipt.

        Who: one or more of `email`, `wallet_address`, `external_id`, or `contact={…}`. `payload` are facts of the event, `attributes`
        lasting traits of the contact. Without an `idempotency_key` each call is an event of its own; with one, calling again stores
        nothing. `test=True` only reports which automations would start. Raises RefusedError naming the field, UnavailableError,
        UnreachableError (of all three nothing was stored) or UnknownOutcomeError (it may have been; the error names the key to repeat it with).
        """
        return self.post(_body(event, about))

    @spoken('wb.events.post({"event": "deposit", "contact": {"email": "ada@example.com"}})')
    def post(self, event: Mapping[str, Any]) -> Receipt:
        """Send one event in the contract's own words, as `curl` would."""
        body = _keyed(event)
        return self._patiently("/events", body, str(body["idempotencyKey"]), _receipt)[0]

    @spoken('wb.events.send_many([{"event": "deposit", "contact": {"email": "ada@example.com"}}, …])')
    def send_many(self, events: Iterable[Mapping[str, Any]]) -> Receipts:
        """Send any number of events in the contract's own words, a hundred at a time; one bad event stops no other.

        When the server stops answering, the receipts say for every event what is known. To send those again that were not stored, or
        may not have been, give each the key of its receipt: `{**event, "idempotencyKey": receipt.idempotency_key}`.
        """
        receipts: list[Receipt] = []
        waiting = iter(events)
        while chunk := [_keyed(each) for each in islice(waiting, BATCH)]:
            away = bool(receipts) and (receipts[-1].error or "").startswith((_UNANSWERED, _NOT_SENT))
            receipts += [_not_sent(each) for each in chunk] if away else self._batch(chunk)
        return Receipts(receipts)

    @spoken(f"wb.events.curl{_SEND}")
    def curl(self, event: str, *, show_key: bool = False, **about: Unpack[About]) -> CurlLine:
        """Return the `curl` line that does the same as `send`. The key stays in $WORKBENCH_EVENTS_KEY unless `show_key`."""
        body = _keyed(_body(event, about))
        return CurlLine(
            f"{self._connection.url}/api/v1/events", body, self._needed(), show_key, lambda: self.post(body)
        )

    @spoken('wb.events.recent(outcome="rejected", limit=20)')
    def recent(self, outcome: Outcomes = None, limit: int = 50) -> "pl.DataFrame":
        """Return the newest events, up to 500, the newest last, and what became of each: a polars frame.

        `outcome`: only `accepted`, `deduplicated`, `dry_run` or `rejected`, or a list of these.
        """
        return recent(self._reader, outcome, limit)

    @spoken("wb.events.rejected()")
    def rejected(self, limit: int = 50) -> "pl.DataFrame":
        """Return why events did not arrive: when, which event, which field, the error, and the keys that were sent.

        Values are not kept, only their types; refusals are, for seven days, in SQL too: the table `rejected_events`.
        """
        return rejected(self._reader, limit)

    @spoken("wb.events.tail(seconds=30)")
    def tail(self, seconds: float | None = None, outcome: Outcomes = None) -> Tail:
        """Return the events from now on, as they come, for some seconds or until you stop: `for event in wb.events.tail(): …`.

        At the end of a cell it shows them: in a notebook as a live table that can be paused and filtered, elsewhere as lines.
        """
        return Tail(self._reader, outcome, seconds)

    def __repr__(self) -> str:
        key = (
            "no key yet: WORKBENCH_EVENTS_KEY or Workbench(events_key=…)"
            if self._key is None
            else f"with key {self._key[:8]}…"
        )
        return f'Sends events to {self._url}, {key}. Try wb.events.send("deposit", email=…, payload={{…}})'

    def _needed(self) -> str:
        if self._key is None:
            raise KeyRefusedError(
                "there is no key for sending events: set WORKBENCH_EVENTS_KEY (`make up` does), or write "
                'Workbench(events_key="sk_live_…"). Workbench keys read and publish; they do not send'
            )
        return self._key

    def _batch(self, events: Sequence[_JsonObject]) -> list[Receipt]:
        """Return one receipt per event; those the server had no room or time for are sent again, the rest are not."""
        receipts: dict[int, Receipt] = {}
        doubted: set[int] = set()
        pauses = self._patience.pauses()
        while left := [index for index in range(len(events)) if index not in receipts or _later(receipts[index])]:
            if receipts:
                pause = next(pauses, None)
                if pause is None:
                    break
                surroundings.sleep(pause)
            answered, doubtful = self._once([events[index] for index in left])
            receipts |= dict(zip(left, answered, strict=True))
            doubted.update(index for index in left if doubtful or receipts[index].unknown)
        return [_doubted(receipts[index]) if index in doubted else receipts[index] for index in range(len(events))]

    def _once(self, events: Sequence[_JsonObject]) -> tuple[list[Receipt], bool]:
        """Return the receipts, and whether there was a try whose outcome nobody knows."""
        keys = [str(event["idempotencyKey"]) for event in events]
        try:
            results, doubtful = self._patiently("/events/batch", {"events": events}, None, _results)
        except UnknownOutcomeError as error:
            return [Receipt(False, idempotency_key=key, error=f"{_UNANSWERED}: {error}") for key in keys], True
        except (UnavailableError, UnreachableError) as error:
            return [Receipt(False, idempotency_key=key, error=f"{_NOT_SENT}: {error}") for key in keys], False
        return [
            receipt if receipt.idempotency_key else msgspec.structs.replace(receipt, idempotency_key=key)
            for key, receipt in zip(keys, results, strict=True)
        ], doubtful

    def _patiently(
        self, path: str, body: Mapping[str, Any], key: str | None, read: Callable[[Answer], T]
    ) -> tuple[T, bool]:
        """Post until the server decides; return what it said, and whether there was a try whose outcome nobody knows.

        Raises RefusedError; UnavailableError or UnreachableError when nothing was stored; UnknownOutcomeError when nobody knows.
        """
        self._needed()
        pauses = self._patience.pauses()
        doubtful = False
        while True:
            trouble: WorkbenchError
            try:
                answer = self._connection.exchange("POST", path, body=body)
            except UnreachableError as error:
                trouble = error
            except UnknownOutcomeError as error:
                trouble, doubtful = error, True
            else:
                if answer.status != 429 and answer.status < 500:
                    return read(self._connection.check(answer)), doubtful
                trouble = UnavailableError(_busy(answer, self._patience.tries))
                doubtful = doubtful or answer.status != 429
            pause = next(pauses, None)
            if pause is None:
                raise _unknown(trouble, key) if doubtful else _nothing_stored(trouble, key)
            surroundings.sleep(pause)


def _receipt(answer: Answer) -> Receipt:
    return _converted(answer.body, Receipt)


def _results(answer: Answer) -> tuple[Receipt, ...]:
    return _converted(answer.body, _Results).results


class _Results(msgspec.Struct, frozen=True):
    results: tuple[Receipt, ...]


def _converted(body: Any, shape: type[T]) -> T:
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError:
        raise UnknownOutcomeError("what answered is not this service: is the address right?") from None


def _busy(answer: Answer, tries: int) -> str:
    return f"the server did not take it in {tries} tries ({answer.error})"


def _nothing_stored(trouble: WorkbenchError, key: str | None) -> WorkbenchError:
    return type(trouble)(f"{trouble}. Nothing was stored{_advice(key)}")


def _unknown(trouble: WorkbenchError, key: str | None) -> UnknownOutcomeError:
    return UnknownOutcomeError(f"nobody can say whether this was stored: {trouble}{_advice(key)}")


def _advice(key: str | None) -> str:
    return f". {_again(key)}" if key else ""  # of a batch, the receipts say it


def _again(key: str) -> str:
    return f'Send it again with idempotency_key="{key}": it is then stored once, whatever happened'


def _not_sent(event: _JsonObject) -> Receipt:
    error = f"{_NOT_SENT}: those before it were not answered"
    return Receipt(False, idempotency_key=str(event["idempotencyKey"]), error=error)


def _later(receipt: Receipt) -> bool:
    return not receipt.accepted and (receipt.error or "").startswith((_RATE_LIMITED, _UNAVAILABLE))


def _doubted(receipt: Receipt) -> Receipt:
    """Return the receipt of an event of which an earlier try was not answered: not taken now may mean stored then."""
    if not (receipt.error or "").startswith((_RATE_LIMITED, _NOT_SENT)):
        return receipt
    return msgspec.structs.replace(
        receipt, error=f"{_UNANSWERED}: an earlier try was not answered, then {receipt.error}"
    )


def _state(receipt: Receipt) -> tuple[str, str]:
    if receipt.unknown:
        return "unknown", "bad"
    if not receipt.accepted:
        return "refused", "bad"
    if receipt.dry_run:
        return "dry run", "warn"
    return ("known", "warn") if receipt.deduplicated else ("accepted", "good")


def _who(about: About) -> _JsonObject:
    """Return the contact of an event: the object as given, with the single identifiers laid over it."""
    contact = about.get("contact") or {}
    if not isinstance(contact, Mapping):
        raise DraftError('contact is written like contact={"email": "ada@example.com"}')
    single = {
        "email": about.get("email"),
        "walletAddress": about.get("wallet_address"),
        "externalId": about.get("external_id"),
    }
    who = dict(contact) | {name: value for name, value in single.items() if value is not None}
    if not who:
        raise DraftError("who is it about? Give email=…, wallet_address=…, external_id=… or contact={…}")
    return who


def _body(event: str, about: About) -> _JsonObject:
    """Return the event in the contract's words."""
    body = {
        "event": event,
        "contact": _who(about),
        "payload": about.get("payload"),
        "attributes": about.get("attributes"),
        "occurredAt": _moment(about.get("occurred_at")),
        "test": about.get("test") or None,
        "idempotencyKey": about.get("idempotency_key"),
    }
    return {name: value for name, value in body.items() if value is not None}


def _keyed(event: Mapping[str, Any]) -> _JsonObject:
    """Return the event with an idempotency key of its own, unless it has one."""
    if not isinstance(event, Mapping):
        raise DraftError('an event is written like {"event": "deposit", "contact": {"email": "ada@example.com"}}')
    body = dict(event)
    if body.get("idempotencyKey") is None:
        body["idempotencyKey"] = surroundings.new_key()
    return body


def _moment(at: datetime | str | None) -> str | None:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise DraftError("occurred_at needs a time zone: datetime(…, tzinfo=UTC)")
        return at.isoformat()
    return at
