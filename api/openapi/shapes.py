"""What comes out where a route answers a plain object instead of a view of its own."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from api.authoring.audit import AuditView
from api.language.codec import Json
from api.routes.chain import LogView
from api.store.logs import ChainRow, CountRow
from api.store.strangers import StrangerRow

_Absent = msgspec.UnsetType
_ABSENT = msgspec.UNSET


class Result(msgspec.Struct, frozen=True, rename="camel"):
    """What became of an event. `deduplicated`: its key had come before, and nothing changed. `matchedAutomations`: of a dry run."""

    accepted: bool
    deduplicated: bool
    idempotency_key: str | _Absent = _ABSENT
    error: str | _Absent = _ABSENT
    dry_run: bool | _Absent = _ABSENT
    matched_automations: int | _Absent = _ABSENT


class Counted(msgspec.Struct, frozen=True, rename="camel"):
    """A name of events, and how many came; with `detail` also when, and how many on each day."""

    event: str
    count: int
    first_seen: datetime | _Absent | None = _ABSENT
    last_seen: datetime | _Absent | None = _ABSENT
    per_day: list[int] | _Absent = _ABSENT


class Chains(msgspec.Struct, frozen=True):
    """How far each chain was read, which events there are, the most frequent first, and what became of wallets that nobody knew."""

    chains: list[ChainRow]
    events: list[CountRow]
    strangers: list[StrangerRow]


class Logs(msgspec.Struct, frozen=True):
    """Logs, newest first."""

    events: list[LogView]


class Audit(msgspec.Struct, frozen=True):
    """Changes, newest first."""

    changes: list[AuditView]


class Catalog(msgspec.Struct, frozen=True, rename="camel"):
    """The names of events, most frequent first."""

    events: list[Counted]
    window_days: int
    days: list[str] | _Absent = _ABSENT


class Inside(msgspec.Struct, frozen=True, rename="camel"):
    """What is inside one event. `paths`: properties of its newest payloads; `drift`: what changed lately."""

    event: str
    count: int
    first_seen: datetime | None
    last_seen: datetime | None
    window_days: int
    days: list[str]
    per_day: list[int]
    sampled: int
    paths: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    drift: dict[str, Any]


class ContactExport(msgspec.Struct, frozen=True):
    """All that is kept of a contact."""

    contact: dict[str, Any]
    events: list[dict[str, Any]]
    entries: list[dict[str, Any]]
    messages: list[dict[str, Any]]


class Column(msgspec.Struct, frozen=True):
    """A column and its type in Postgres."""

    name: str
    type: str


class Table(msgspec.Struct, frozen=True):
    """The rows of an answer. Accept: text/csv or application/vnd.apache.arrow.stream gives them in another form."""

    columns: list[Column]
    rows: list[list[Json]]


class Usage(msgspec.Struct, frozen=True):
    """Messages sent in a month of UTC, by channel."""

    month: str
    messages: dict[str, int]
    total: int


class Secret(msgspec.Struct, frozen=True):
    """What deliveries are signed with (Standard Webhooks 1.0)."""

    secret: str


class RolledSecret(Secret, frozen=True, rename="camel"):
    """The new secret. The one before signs, too, until `previousUntil`."""

    previous_until: datetime


class Challenge(msgspec.Struct, frozen=True, rename="camel"):
    """The text to sign (EIP-4361)."""

    message: str
    nonce: str
    expires_at: datetime


class Token(msgspec.Struct, frozen=True, rename="camel"):
    """What opens the socket."""

    token: str
    wallet_address: str
    expires_at: datetime


class Notebooks(msgspec.Struct, frozen=True):
    """Versions of the notebook package, as far as compatibility goes: `0.1`."""

    oldest: str
    newest: str


class Version(msgspec.Struct, frozen=True):
    """The server's version, and which notebooks it serves."""

    version: str
    notebooks: Notebooks


class Alive(msgspec.Struct, frozen=True):
    """The process lives."""

    status: Literal["ok"]


class Ready(msgspec.Struct, frozen=True, rename="camel"):
    """Whether it can take in events; `engine` and `engineLagSeconds` say how automations fare, `chains` how each is read."""

    status: Literal["ready", "unavailable"]
    database: str
    writer: str
    engine: str
    engine_lag_seconds: float | _Absent | None = _ABSENT
    chains: dict[str, str] | _Absent = _ABSENT
