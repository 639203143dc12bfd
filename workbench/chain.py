"""Contract events from a pasted ABI, the state of the followed chains, and stored logs as samples for simulations."""

from collections.abc import Iterator
from typing import Any

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableSequence, TableView, moment, plain, printable_text, table_columns
from workbench.display.words import WORDS
from workbench.errors import InvalidArgumentError
from workbench.language.abi import AbiEvent, AbiWord, canonical_type, read_abi, read_signature
from workbench.language.check import ChainFacts
from workbench.language.codec import MalformedJsonError, decode, encode
from workbench.language.responses import ChainsResponse


class ContractEvent(msgspec.Struct, frozen=True):
    """An event of a contract. `wallets`: the names of its address parameters, any of which `to_contact` accepts."""

    name: str
    signature: str
    wallets: tuple[str, ...]
    parameters: dict[str, str]


class ContractEvents(TableSequence[ContractEvent]):
    """The events of a contract, displayed as a table.

    `events["Transfer"]` is one event. If several share a name, use the signature: `events["Transfer(address to)"]`.
    """

    def __getitem__(self, name: Any) -> Any:
        if not isinstance(name, str):
            return super().__getitem__(name)
        matching = [event for event in self if name in (event.name, event.signature)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            signatures = ", ".join(repr(event.signature) for event in matching)
            raise InvalidArgumentError(f"{len(matching)} events are called {name!r}; use a signature: {signatures}")
        names = ", ".join(event.name for event in self)
        raise InvalidArgumentError(f"Event not found in the ABI: {name!r}. Its events are {names}")

    def _view(self) -> TableView:
        rows = [(event.signature, ", ".join(event.wallets)) for event in self]
        return TableView(table_columns("event", "wallets"), rows)


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
        events = []
        for line in filter(None, (line.strip() for line in text.split(";"))):
            event = read_signature(line)
            if isinstance(event, str):
                events = f"has {line[:60]!r}, which {event}"
                break
            events.append(event)
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


class ChainsStatus(ChainsResponse, frozen=True, rename="camel"):
    """The followed chains, the events among the organization's newest 100,000 logs, and logs of unknown wallets.

    `unknown_wallets` counts the logs of the last day that matched an automation, by outcome.
    """

    def facts(self) -> ChainFacts:
        """Return the part that automations are checked against."""
        return ChainFacts(
            frozenset(chain.chain_id for chain in self.chains), frozenset(event.name.lower() for event in self.events)
        )

    def _tables(self) -> Iterator[TableView]:
        blocks = ("read up to", "newest block")
        columns = table_columns("chain", *blocks, "last read (UTC)", "problem", numbers=blocks)
        rows: list[tuple[str, ...]] = []
        for chain in self.chains:
            numbers = ["" if number is None else f"{number:,}" for number in (chain.block_number, chain.head)]
            rows.append((str(chain.chain_id), *numbers, moment(chain.read_at), chain.problem or ""))
        yield TableView(columns, rows, empty=_NO_CHAINS)
        rows = [(str(event.chain_id), event.name, event.signature, f"{event.count:,}") for event in self.events]
        note = "Use the name in .wait_for(name, within=…). The logs: wb.logs(contract=…)" if rows else ""
        yield TableView(table_columns("chain", "name", "signature", "logs", numbers=("logs",)), rows, note=note)
        if self.unknown_wallets:
            columns = table_columns("automation", "logs of unknown wallets, last day", "logs", numbers=("logs",))
            rows = [
                (count.automation, WORDS["unknown_wallets"].get(count.what, count.what), f"{count.count:,}")
                for count in self.unknown_wallets
            ]
            yield TableView(columns, rows)

    @printable_text
    def __repr__(self) -> str:
        return "\n\n".join(plain(view.columns, view.rows, view.empty) for view in self._tables())

    def _repr_html_(self) -> str:
        return "".join(view.html() for view in self._tables())


_NO_CHAINS = "No chain is followed: `workbench chain` needs a node in WORKBENCH_EVM_RPC."


def chains(connection: Connection) -> ChainsStatus:
    return msgspec.convert(connection.get("/chain"), ChainsStatus)


class Logs(TableSequence[dict[str, Any]]):
    """Logs, newest first, displayed as a table. Each is a sample for a simulation: `a.simulate(wb.logs()[0])`."""

    def _view(self) -> TableView:
        columns = table_columns("block", "event", "contract", "args", numbers=("block",))
        rows = []
        for log in self:
            block = f"{log['blockNumber']} (removed)" if log["removed"] else str(log["blockNumber"])
            rows.append((block, log["event"], log["contract"], encode(log["args"]).decode()))
        return TableView(columns, rows)


def logs(connection: Connection, contract: str | None, event: str | None, before: str | None, limit: int) -> Logs:
    """Return the newest logs, optionally of one contract and event, and stored before the log with the id `before`."""
    body = connection.get("/chain/events", contract=contract, event=event, before=before, limit=limit)
    return Logs(body["events"])
