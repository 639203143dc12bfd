"""A contract's events, from its ABI as it is pasted: JSON, an artifact of a compiler, or lines of Solidity.

What is read of chains: how far, what hinders it, and the contract events that were kept.

Logs of chains that were seen: samples for simulations.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableColumn, moment, plain, table
from workbench.errors import InvalidArgumentError, WorkbenchError
from workbench.language.abi import AbiEvent, AbiWord, canonical_type, read_abi, read_signature
from workbench.language.check import ChainFacts
from workbench.language.codec import MalformedJsonError, decode, encode


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
            raise InvalidArgumentError(f"there are {len(found)} events called {name!r}: {said}")
        raise InvalidArgumentError(
            f"there is no event {name!r}; there are {', '.join(each.name for each in self._events)}"
        )

    def __repr__(self) -> str:
        return plain(_ABI_COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return table(_ABI_COLUMNS, self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        return [(each.signature, ", ".join(each.wallets)) for each in self._events]


_ABI_COLUMNS = (TableColumn("event"), TableColumn("wallets"))


def abi(text: str) -> ContractEvents:
    """Return the events in an ABI; raise InvalidArgumentError saying what is wrong with it."""
    if not str(text).strip():
        raise InvalidArgumentError(
            "paste the ABI of a contract as a text: JSON, or lines like event Transfer(address from, …)"
        )
    found = _from_json(text) if text.lstrip()[0] in "[{" else _from_lines(text)
    if isinstance(found, str):
        raise InvalidArgumentError(f"this ABI {found}")
    return ContractEvents([_event(each) for each in found])


def _from_json(text: str) -> list[AbiEvent] | str:
    try:
        return read_abi(decode(text.encode()))
    except (MalformedJsonError, UnicodeEncodeError) as error:
        return f"is not JSON: {error}"


def _from_lines(text: str) -> list[AbiEvent] | str:
    events: list[AbiEvent] = []
    for statement in filter(None, (each.strip() for each in text.split(";"))):
        found = read_signature(statement)
        if isinstance(found, str):
            return f"has {statement[:60]!r}, which {found}"
        events.append(found)
    return events


def _event(declared: AbiEvent) -> ContractEvent:
    wallets = tuple(each.name for each in declared.parameters if each.type == AbiWord("address", 20))
    return ContractEvent(
        declared.name, declared.full, wallets, {each.name: canonical_type(each.type) for each in declared.parameters}
    )


class ChainStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One chain: up to which block it was read, its newest block, when that was, and what hinders its follower."""

    chain_id: int
    block_number: int | None = None
    head: int | None = None
    read_at: str | None = None
    trouble: str | None = None


class FollowedEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event of a contract, and how often it is among the newest logs."""

    chain_id: int
    contract: str
    event: str
    signature: str
    count: int

    @property
    def name(self) -> str:
        """What a wait or a goal calls it."""
        return f"{self.contract}:{self.event}"


class UnknownWalletCount(msgspec.Struct, frozen=True, rename="camel"):
    """How many logs that an automation would have taken were about wallets nobody knew, within a day, and what became of that."""

    automation_id: str
    automation: str
    what: str
    count: int

    @property
    def sentence(self) -> str:
        """What became of it."""
        return _BECAME.get(self.what, self.what)


class ChainsStatus(msgspec.Struct, frozen=True):
    """The chains that are read, the events among the newest 100,000 logs of the organization, and what became of unknown wallets."""

    chains: tuple[ChainStatus, ...] = ()
    events: tuple[FollowedEvent, ...] = ()
    strangers: tuple[UnknownWalletCount, ...] = ()

    def seen(self) -> ChainFacts:
        """Return what automations are checked against."""
        return ChainFacts(
            frozenset(each.chain_id for each in self.chains), frozenset(each.name.lower() for each in self.events)
        )

    def __repr__(self) -> str:
        unknown = f"\n\n{plain(_STRANGERS, self._unknown())}" if self.strangers else ""
        return f"{plain(_CHAINS, self._read(), _UNREAD)}\n\n{plain(_EVENTS, self._kept())}{unknown}"

    def _repr_html_(self) -> str:
        kept = "as waits call it: .wait_for(name, within=…); its logs: wb.logs(contract=…)"
        unknown = table(_STRANGERS, self._unknown()) if self.strangers else ""
        return (
            table(_CHAINS, self._read(), empty=_UNREAD)
            + table(_EVENTS, self._kept(), note=kept if self.events else "")
            + unknown
        )

    def _read(self) -> list[tuple[str, str, str, str, str]]:
        return [
            (
                str(each.chain_id),
                _chain_block(each.block_number),
                _chain_block(each.head),
                moment(each.read_at),
                each.trouble or "",
            )
            for each in self.chains
        ]

    def _kept(self) -> list[tuple[str, str, str, str]]:
        return [(str(each.chain_id), each.name, each.signature, f"{each.count:,}") for each in self.events]

    def _unknown(self) -> list[tuple[str, str, str]]:
        return [(each.automation, each.sentence, f"{each.count:,}") for each in self.strangers]


_CHAINS = (
    TableColumn("chain"),
    TableColumn("read up to", number=True),
    TableColumn("newest block", number=True),
    TableColumn("last new (UTC)"),
    TableColumn("trouble"),
)
_EVENTS = (TableColumn("chain"), TableColumn("name"), TableColumn("signature"), TableColumn("logs", number=True))
_STRANGERS = (
    TableColumn("automation"),
    TableColumn("wallets that nobody knew, in a day"),
    TableColumn("logs", number=True),
)
_BECAME = {
    "created": "became contacts",
    "unknown": "started nothing: create_contacts=True would make contacts of them",
    "limit": "started nothing: it made as many contacts as it may in that hour (WORKBENCH_CHAIN_CONTACTS)",
    "zero_address": "started nothing: the zero address is nobody",
    "erased": "started nothing: their contacts were erased",
}
_UNREAD = "No chain is read here: `workbench chain` needs a node in WORKBENCH_EVM_RPC."


def _chain_block(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def chains(connection: Connection) -> ChainsStatus:
    """Return what is read of chains."""
    return msgspec.convert(connection.get("/chain"), ChainsStatus)


def chained(connection: Connection) -> ChainFacts | None:
    """Return what automations are checked against, None when it cannot be had."""
    try:
        return chains(connection).seen()
    except WorkbenchError:
        return None


_LOGS_COLUMNS = (TableColumn("block", number=True), TableColumn("event"), TableColumn("contract"), TableColumn("args"))


class Logs(Sequence[dict[str, Any]]):
    """Logs, the newest first: a table, and samples: `a.simulate(wb.logs()[0])`."""

    def __init__(self, logs: Sequence[dict[str, Any]]) -> None:
        self._logs = logs

    def __getitem__(self, index: Any) -> Any:
        return self._logs[index]

    def __len__(self) -> int:
        return len(self._logs)

    def __repr__(self) -> str:
        return plain(_LOGS_COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return table(_LOGS_COLUMNS, self._rows())

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (_log_block(each), each["event"], each["contract"], encode(each["args"]).decode()) for each in self._logs
        ]


def _log_block(log: dict[str, Any]) -> str:
    return f"{log['blockNumber']} (removed)" if log["removed"] else str(log["blockNumber"])


def logs(connection: Connection, contract: str | None, event: str | None, before: str | None, limit: int) -> Logs:
    """Return the logs that were seen last, of a contract and an event, and before one, when they are named."""
    found = connection.get("/chain/events", contract=contract, event=event, before=before, limit=limit)
    return Logs(found["events"])
