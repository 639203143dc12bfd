"""Events and contacts to try an automation with: the newest real ones, or ones made up from what was seen."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from api.language.codec import decode
from api.language.contact import Contact
from api.language.described import read_contact
from api.language.onchain import TYPE as ONCHAIN_EVENT
from api.language.onchain import OnChain
from workbench.author import JsonObject
from workbench.canvas.known import Known
from workbench.connection import Connection
from workbench.display.page import moment
from workbench.display.words import short
from workbench.errors import DraftError

_EVENTS = """
SELECT e.event, e.payload::text, e.created_at::text, e.contact_id::text, c.email, c.wallet_address, c.external_id
FROM app_events e JOIN contacts c ON c.id = e.contact_id
WHERE :any OR e.event = ANY (:names::text[])
ORDER BY e.created_at DESC LIMIT 12
"""
_NOBODY = {"externalId": "simulated"}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_IDENTIFIERS = ("walletAddress", "email", "externalId")


class Sample(msgspec.Struct, frozen=True, rename="camel"):
    """An event to try: its name, its payload as JSON, and whose it is (an id, and how to call them)."""

    label: str
    event: str
    payload: str = "{}"
    contact_id: str = ""
    contact: str = ""


def samples(known: Known, names: Iterable[str]) -> list[Sample]:
    """Return the newest events of these names (of any, when there are none), first those of contacts we can write to in most ways.

    Where none came yet, an empty one of each name.
    """
    wanted = [*names]
    rows = known.rows(_EVENTS, any=not wanted, names=wanted)
    found = [
        Sample(f"{event}, {moment(at)}", event, payload or "{}", contact_id, short(wallet or external_id or email))
        for event, payload, at, contact_id, email, wallet, external_id in sorted(rows, key=_silent)
    ]
    return found or [Sample("an empty event", name) for name in wanted or ["event"]]


def _silent(row: Sequence[Any]) -> int:
    """Return in how many ways the contact of a row cannot be written to."""
    *_, email, wallet, _ = row
    return (email is None) + (wallet is None)


class Person(msgspec.Struct, frozen=True, rename="camel"):
    """A contact to try: as the service describes it, and what an event of theirs would carry.

    `hidden`: this key sees nothing by which the server would know them.
    """

    id: str
    label: str
    described: JsonObject
    identifiers: JsonObject
    hidden: bool = False

    def contact(self) -> Contact:
        """Return the contact as the language reads it."""
        read = read_contact(self.described)
        if isinstance(read, Contact):
            return read
        raise DraftError("; ".join(map(str, read)))


NOBODY = Person("", "somebody new", _NOBODY, _NOBODY)


def person(connection: Connection | None, wanted: str) -> Person:
    """Return the contact of that id, address, wallet or external id; nobody in particular when nothing is wanted."""
    wanted = wanted.strip()
    if not wanted:
        return NOBODY
    if connection is None:
        raise DraftError("without a server there are no contacts to choose from")
    if _UUID.fullmatch(wanted):
        return _person(connection.get(f"/contacts/{wanted}"))
    return _person(connection.post("/contacts/find", {"contact": {_kind_of(wanted): wanted}}))


def _kind_of(wanted: str) -> str:
    if "@" in wanted:
        return "email"
    return "walletAddress" if wanted.lower().startswith("0x") else "externalId"


def _person(answer: JsonObject) -> Person:
    names = (*_IDENTIFIERS, "id", "attributes", "tags", "segments", "optedOut")
    described = {name: answer[name] for name in names if answer.get(name)}
    masked = "*" in described.get("email", "")  # to a key without pii:read
    known = {name: described[name] for name in _IDENTIFIERS if name in described and not (masked and name == "email")}
    if masked:
        described["email"] = "address-hidden@example.com"
    label = short(next(iter(known.values()), answer["id"]))
    return Person(answer["id"], label, described, known or _NOBODY, hidden=not known)


def event_of(name: str, payload: str, who: Person, source: OnChain | None = None) -> JsonObject:
    """Return an event as a caller would post it, a log (of `source`) as the service describes it.

    Raises DraftError when the payload is no JSON object.
    """
    if source is None:
        return {"event": name, "contact": who.identifiers, "payload": payload_of(payload)}
    whose = {source.wallet_arg: who.identifiers["walletAddress"]} if "walletAddress" in who.identifiers else {}
    return {"type": ONCHAIN_EVENT, "args": payload_of(payload) | whose}


def payload_of(text: str) -> dict[str, Any]:
    """Return a payload that somebody wrote."""
    try:
        payload = decode(text.encode()) if text.strip() else {}
    except ValueError as error:
        raise DraftError(f"the payload is no JSON: {error}") from None
    if not isinstance(payload, dict):
        raise DraftError('the payload is an object, like {"amountUsd": 100}')
    return payload
