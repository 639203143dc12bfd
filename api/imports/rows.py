"""Convert rows of history to valid events with their keys, as `api.ingest.parse` does for live events, with any age.

Events are kept in columns, and the bytes that COPY sends for them are built while Postgres stores the rows before: most
events of a history need nothing else. Only events with a contact to look up become `PastEvent`s.
"""

from collections.abc import Sequence
from typing import Self, cast

import msgspec

from api.clock import uuid7, uuid7s
from api.crypto import OrgKeys
from api.ingest.parse import ParsedEvent, derived_key, keys_of, raw_body_digests
from api.store.copy import event_heads, event_tails, identifier_fields, key_rows
from workbench.language.codec import Json, encode
from workbench.language.contact import IdentifierKey
from workbench.language.event import Event, Identifiers
from workbench.language.event_batch import read_history
from workbench.language.problem import Problems

MAX_CACHED_IDENTITIES = 200_000  # in a history the same contacts send many events


class Identity(msgspec.Struct, eq=False, gc=False):
    """A combination of identifiers: their keys, the sealed email address, and their COPY fields.

    `contact_id`: the contact that owned all of them at the last lookup (empty: none, or not looked up). `updated_us`:
    when its row was written, as of then. `checked_in`: the number of the transaction that looked (`ContactCache`).

    `expected_id`: the id that their contact will have if it is new (empty: it is not expected to be new).
    """

    keys: tuple[IdentifierKey, ...]
    emails: tuple[str, ...]
    fields: bytes
    contact_id: str = ""
    updated_us: int = 0
    checked_in: int = 0
    expected_id: str = ""


class PastEvent(ParsedEvent, kw_only=True, gc=False):
    """A valid event of history that needs a contact."""

    identity: Identity

    def new_contact_id(self, at_us: int) -> str:
        return self.identity.expected_id or uuid7(at_us)


class PastEvents(msgspec.Struct):
    """Valid events of an organization's history in columns, in the order of their file.

    Digests of idempotency keys and event ids have 16 bytes; times are microseconds since the epoch. `key_rows`, `heads`
    and `tails` are the COPY bytes of `api.store.copy`.
    """

    org_id: int
    identities: list[Identity] = []
    names: list[str] = []
    identifiers: list[Identifiers] = []
    attributes: list[dict[str, Json]] = []
    payloads: list[bytes] = []
    occurred_at_us: list[int] = []
    keys: list[bytes] = []
    key_digests: list[bytes] = []
    ids: list[bytes] = []
    key_rows: list[bytes] = []
    heads: list[bytes] = []
    tails: list[bytes] = []

    def __len__(self) -> int:
        return len(self.identities)

    def extend(self, more: Self) -> None:
        for name in _COLUMNS:
            getattr(self, name).extend(getattr(more, name))

    def span(self, start: int, stop: int) -> Self:
        """Return the events from `start` up to `stop`, or to the end if there are fewer."""
        return type(self)(self.org_id, **{name: getattr(self, name)[start:stop] for name in _COLUMNS})

    def at(self, positions: Sequence[int]) -> Self:
        if len(positions) == len(self):
            return self
        columns = {name: getattr(self, name) for name in _COLUMNS}
        picked = {name: [column[position] for position in positions] for name, column in columns.items()}
        return type(self)(self.org_id, **picked)

    def event(self, position: int, contact_id: str = "") -> PastEvent:
        """Return one of the events, with its contact if that is known."""
        identity, attributes, key = self.identities[position], self.attributes[position], self.keys[position].decode()
        return PastEvent(
            self.org_id,
            Event(self.names[position], self.identifiers[position], attributes, self.payloads[position], key),
            self.ids[position].hex(),
            key,
            self.key_digests[position].hex(),
            self.key_rows[position][-16:].hex(),
            self.occurred_at_us[position],
            identity.keys,
            identity.emails,
            encode(attributes).decode() if attributes else "",
            False,
            contact_id=contact_id,
            identity=identity,
        )


_COLUMNS = PastEvents.__struct_fields__[1:]


class PastReader:
    def __init__(self, org_id: int, org_keys: OrgKeys) -> None:
        self.org_id, self._org_keys = org_id, org_keys
        self._identities: dict[Identifiers, Identity] = {}
        self._used_keys = set[IdentifierKey]()  # of all identities
        self._evicted = False  # True once `_used_keys` was cleared: then unused keys do not prove a new identity
        # The parser returns the same object for identifiers that repeat, so most are found by address, without hashing.
        # `_pinned` keeps these objects alive, or a new one could get the address of another.
        self._by_address: dict[int, Identity] = {}
        self._pinned: list[Identifiers] = []

    def read(self, raws: Sequence[bytes], now_us: int) -> tuple[PastEvents, dict[int, Problems]]:
        """Return the valid events among JSON texts, judged at `now_us`, and the problems of the others by position."""
        history, problems = read_history(raws, now_us)
        if problems:
            raws = [raw for position, raw in enumerate(raws) if position not in problems]
        ats_us, payloads = history.occurred_at_us, history.payloads
        fields = zip(history.idempotency_keys, history.names, history.identifiers, ats_us, strict=True)
        keys = [
            (key or derived_key(self._org_keys, name, identifiers, at_us)).encode()
            for key, name, identifiers, at_us in fields
        ]
        digests = self._org_keys.raw_key_digests(keys)
        ids = uuid7s([max(at_us, 0) for at_us in ats_us])
        identities = list(map(self._by_address.get, map(id, history.identifiers)))
        if not all(identities):
            identities = [
                identity or self._find_identity(identifiers, now_us)
                for identity, identifiers in zip(identities, history.identifiers, strict=True)
            ]
        events = PastEvents(
            self.org_id,
            cast("list[Identity]", identities),
            history.names,
            history.identifiers,
            history.attributes,
            payloads,
            ats_us,
            keys,
            digests,
            ids,
            key_rows(self.org_id, digests, ids, raw_body_digests(raws)),
            event_heads(self.org_id, ids, ats_us, payloads),
            event_tails(keys, history.names),
        )
        return events, problems

    def _find_identity(self, identifiers: Identifiers, now_us: int) -> Identity:
        """Return the cached identity, or a new one."""
        identity = self._identities.get(identifiers)
        if identity is None:
            if len(self._identities) >= MAX_CACHED_IDENTITIES:
                self._identities.clear()
                self._used_keys.clear()
                self._evicted = True
            emails = () if identifiers.email is None else self._org_keys.seal_emails(identifiers.email)
            fields = identifier_fields(identifiers.wallet, emails[0] if emails else None, identifiers.external_id)
            keys = keys_of(self._org_keys, identifiers)
            seems_new = not self._evicted and self._used_keys.isdisjoint(keys)
            self._used_keys.update(keys)
            identity = Identity(keys, emails, fields, expected_id=uuid7(now_us) if seems_new else "")
            self._identities[identifiers] = identity
        if len(self._pinned) >= MAX_CACHED_IDENTITIES:  # both together: an address is valid only while it is pinned
            self._pinned.clear()
            self._by_address.clear()
        self._by_address[id(identifiers)] = identity
        self._pinned.append(identifiers)
        return identity
