"""A contract's events, from its ABI as it is pasted: JSON, an artifact of a compiler, or lines of Solidity."""

from collections.abc import Iterator

import msgspec

from api.language.abi import Declared, Word, read_abi, read_signature, written
from api.language.codec import MalformedJsonError, decode
from workbench.display.table import Column, plain, table
from workbench.errors import DraftError


class ContractEvent(msgspec.Struct, frozen=True):
    """An event of a contract. `wallets`: its parameters that can be a contact, for `to_contact`."""

    name: str
    signature: str
    wallets: tuple[str, ...]
    parameters: dict[str, str]


class ContractEvents:
    """The events of a contract: shows itself; `events["Transfer"]`, or by the signature where two share a name."""

    def __init__(self, events: list[ContractEvent]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[ContractEvent]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, name: str) -> ContractEvent:
        found = [each for each in self._events if name in (each.name, each.signature)]
        if len(found) == 1:
            return found[0]
        if found:
            said = ", ".join(repr(each.signature) for each in found)
            raise DraftError(f"there are {len(found)} events called {name!r}: {said}")
        raise DraftError(f"there is no event {name!r}; there are {', '.join(each.name for each in self._events)}")

    def __repr__(self) -> str:
        return plain(_COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return table(_COLUMNS, self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        return [(each.signature, ", ".join(each.wallets)) for each in self._events]


_COLUMNS = (Column("event"), Column("wallets"))


def abi(text: str) -> ContractEvents:
    """Return the events in an ABI; raise DraftError saying what is wrong with it."""
    if not str(text).strip():
        raise DraftError("paste the ABI of a contract as a text: JSON, or lines like event Transfer(address from, …)")
    found = _from_json(text) if text.lstrip()[0] in "[{" else _from_lines(text)
    if isinstance(found, str):
        raise DraftError(f"this ABI {found}")
    return ContractEvents([_event(each) for each in found])


def _from_json(text: str) -> list[Declared] | str:
    try:
        return read_abi(decode(text.encode()))
    except (MalformedJsonError, UnicodeEncodeError) as error:
        return f"is not JSON: {error}"


def _from_lines(text: str) -> list[Declared] | str:
    events: list[Declared] = []
    for statement in filter(None, (each.strip() for each in text.split(";"))):
        found = read_signature(statement)
        if isinstance(found, str):
            return f"has {statement[:60]!r}, which {found}"
        events.append(found)
    return events


def _event(declared: Declared) -> ContractEvent:
    wallets = tuple(each.name for each in declared.parameters if each.type == Word("address", 20))
    return ContractEvent(
        declared.name, declared.full, wallets, {each.name: written(each.type) for each in declared.parameters}
    )
