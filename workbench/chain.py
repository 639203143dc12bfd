"""Contract events from a pasted ABI, the state of the followed chains, and stored logs as samples for simulations."""

from collections.abc import Iterator
from typing import Any

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableSequence, TableView, moment, plain, table, table_columns
from workbench.errors import InvalidArgumentError, WorkbenchError
from workbench.language.abi import AbiEvent, AbiWord, canonical_type, read_abi, read_signature
from workbench.language.check import ChainFacts
from workbench.language.codec import MalformedJsonError, decode, encode


class ContractEvent(msgspec.Struct, frozen=True):
    """An event of a contract. `wallets`: the names of its address parameters, any of which `to_contact` accepts."""

    name: str
    signature: str
    wallets: tuple[str, ...]
    parameters: dict[str, str]


class ContractEvents:
    """The events of a contract, displayed as a table.

    `events["Transfer"]` is one event. If several share a name, use the signature: `events["Transfer(address to)"]`.
    """

    def __init__(self, events: list[ContractEvent]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[ContractEvent]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def __getitem__(self, name: str) -> ContractEvent:
        matching = [event for event in self._events if name in (event.name, event.signature)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            signatures = ", ".join(repr(event.signature) for event in matching)
            raise InvalidArgumentError(f"{len(matching)} events are called {name!r}; use a signature: {signatures}")
        names = ", ".join(event.name for event in self._events)
        raise InvalidArgumentError(f"Event not found in the ABI: {name!r}. Its events are {names}")

    def __repr__(self) -> str:
        return plain(_ABI_COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return table(_ABI_COLUMNS, self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        return [(event.signature, ", ".join(event.wallets)) for event in self._events]


_ABI_COLUMNS = table_columns("event", "wallets")


def abi(text: str) -> ContractEvents:
    """Return the events in an ABI: JSON, a compiler's artifact, or lines of Solidity.

    Raises InvalidArgumentError, with the reason, if the text is not an ABI.
    """
    text = str(text)
    if not text.strip():
        raise InvalidArgumentError(
            "the ABI is empty: pass the contract's ABI as JSON, or lines like event Transfer(address from, …)"
        )
    events: list[AbiEvent] | str
    if text.lstrip()[0] in "[{":
        try:
            events = read_abi(decode(text.encode()))
        except (MalformedJsonError, UnicodeEncodeError) as error:
            events = f"is not JSON: {error}"
    else:
        events = _read_solidity(text)
    if isinstance(events, str):
        raise InvalidArgumentError(f"this ABI {events}")
    return ContractEvents(
        [
            ContractEvent(
                event.name,
                event.full,
                tuple(parameter.name for parameter in event.parameters if parameter.type == AbiWord("address", 20)),
                {parameter.name: canonical_type(parameter.type) for parameter in event.parameters},
            )
            for event in events
        ]
    )


def _read_solidity(text: str) -> list[AbiEvent] | str:
    """Return the events declared in lines of Solidity, or what is wrong with the text."""
    events: list[AbiEvent] = []
    for line in filter(None, (line.strip() for line in text.split(";"))):
        event = read_signature(line)
        if isinstance(event, str):
            return f"has {line[:60]!r}, which {event}"
        events.append(event)
    return events


class ChainStatus(msgspec.Struct, frozen=True, rename="camel"):
    """One chain: the last block that was read, the newest block, when both were read, and the current problem."""

    chain_id: int
    block_number: int | None = None
    head: int | None = None
    read_at: str | None = None
    trouble: str | None = None


class FollowedEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event of a contract, with the number of its logs among the newest ones."""

    chain_id: int
    contract: str
    event: str
    signature: str
    count: int

    @property
    def name(self) -> str:
        """The name of the event in waits and goals: `0x…:Transfer`."""
        return f"{self.contract}:{self.event}"


class UnknownWalletCount(msgspec.Struct, frozen=True, rename="camel"):
    """The number of logs in the last day that matched an automation but had an unknown wallet, by what was done."""

    automation_id: str
    automation: str
    what: str
    count: int

    @property
    def sentence(self) -> str:
        """What was done with these logs, in words."""
        return _UNKNOWN_WALLET_WORDS.get(self.what, self.what)


class ChainsStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The followed chains, the events among the organization's newest 100,000 logs, and logs of unknown wallets."""

    chains: tuple[ChainStatus, ...] = ()
    events: tuple[FollowedEvent, ...] = ()
    unknown_wallets: tuple[UnknownWalletCount, ...] = ()

    def facts(self) -> ChainFacts:
        """Return the part that automations are checked against."""
        return ChainFacts(
            frozenset(chain.chain_id for chain in self.chains), frozenset(event.name.lower() for event in self.events)
        )

    def __repr__(self) -> str:
        unknown = f"\n\n{plain(_UNKNOWN_WALLET_COLUMNS, self._unknown_wallet_rows())}" if self.unknown_wallets else ""
        chains = plain(_CHAIN_COLUMNS, self._chain_rows(), _NO_CHAINS)
        return f"{chains}\n\n{plain(_EVENT_COLUMNS, self._event_rows())}{unknown}"

    def _repr_html_(self) -> str:
        note = "Use the name in .wait_for(name, within=…). The logs: wb.logs(contract=…)" if self.events else ""
        return (
            table(_CHAIN_COLUMNS, self._chain_rows(), empty=_NO_CHAINS)
            + table(_EVENT_COLUMNS, self._event_rows(), note=note)
            + (table(_UNKNOWN_WALLET_COLUMNS, self._unknown_wallet_rows()) if self.unknown_wallets else "")
        )

    def _chain_rows(self) -> list[tuple[str, str, str, str, str]]:
        rows = []
        for chain in self.chains:
            blocks = ["" if number is None else f"{number:,}" for number in (chain.block_number, chain.head)]
            rows.append((str(chain.chain_id), blocks[0], blocks[1], moment(chain.read_at), chain.trouble or ""))
        return rows

    def _event_rows(self) -> list[tuple[str, str, str, str]]:
        return [(str(event.chain_id), event.name, event.signature, f"{event.count:,}") for event in self.events]

    def _unknown_wallet_rows(self) -> list[tuple[str, str, str]]:
        return [(count.automation, count.sentence, f"{count.count:,}") for count in self.unknown_wallets]


_CHAIN_COLUMNS = table_columns(
    "chain", "read up to", "newest block", "last read (UTC)", "problem", numbers=("read up to", "newest block")
)
_EVENT_COLUMNS = table_columns("chain", "name", "signature", "logs", numbers=("logs",))
_UNKNOWN_WALLET_COLUMNS = table_columns("automation", "logs of unknown wallets, last day", "logs", numbers=("logs",))
_UNKNOWN_WALLET_WORDS = {
    "created": "a contact was created",
    "unknown": "ignored: create_contacts=True would create a contact",
    "limit": "ignored: the automation reached its limit of new contacts in that hour (WORKBENCH_CHAIN_CONTACTS)",
    "zero_address": "ignored: the zero address is never a contact",
    "erased": "ignored: the contact was erased",
}
_NO_CHAINS = "No chain is followed: `workbench chain` needs a node in WORKBENCH_EVM_RPC."


def chains(connection: Connection) -> ChainsStatus:
    """Return the state of the followed chains."""
    return msgspec.convert(connection.get("/chain"), ChainsStatus)


def chain_facts(connection: Connection) -> ChainFacts | None:
    """Return the facts that automations are checked against; None if the request fails."""
    try:
        return chains(connection).facts()
    except WorkbenchError:
        return None


class Logs(TableSequence[dict[str, Any]]):
    """Logs, newest first, displayed as a table. Each is a sample for a simulation: `a.simulate(wb.logs()[0])`."""

    def _view(self) -> TableView:
        columns = table_columns("block", "event", "contract", "args", numbers=("block",))
        rows = []
        for log in self:
            block = f"{log['blockNumber']} (removed)" if log["removed"] else str(log["blockNumber"])
            rows.append((block, log["event"], log["contract"], encode(log["args"]).decode()))
        return TableView(columns, rows, "", "Nothing yet.")


def logs(connection: Connection, contract: str | None, event: str | None, before: str | None, limit: int) -> Logs:
    """Return the newest logs, optionally of one contract and event, and stored before the log with the id `before`."""
    body = connection.get("/chain/events", contract=contract, event=event, before=before, limit=limit)
    return Logs(body["events"])
