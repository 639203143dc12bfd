"""What is read of chains: how far, what hinders it, and the contract events that were kept."""

import msgspec

from api.language.catalog import Chained
from workbench.connection import Connection
from workbench.display.page import moment
from workbench.display.table import Column, plain, table
from workbench.errors import WorkbenchError


class Chain(msgspec.Struct, frozen=True, rename="camel"):
    """One chain: up to which block it was read, its newest block, when that was, and what hinders its follower."""

    chain_id: int
    block_number: int | None = None
    head: int | None = None
    read_at: str | None = None
    trouble: str | None = None


class ContractEvent(msgspec.Struct, frozen=True, rename="camel"):
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


class Strangers(msgspec.Struct, frozen=True, rename="camel"):
    """How many logs that an automation would have taken were about wallets nobody knew, within a day, and what became of that."""

    automation_id: str
    automation: str
    what: str
    count: int

    @property
    def sentence(self) -> str:
        """What became of it."""
        return _BECAME.get(self.what, self.what)


class Chains(msgspec.Struct, frozen=True):
    """The chains that are read, the events among the newest 100,000 logs of the organization, and what became of unknown wallets."""

    chains: tuple[Chain, ...] = ()
    events: tuple[ContractEvent, ...] = ()
    strangers: tuple[Strangers, ...] = ()

    def seen(self) -> Chained:
        """Return what automations are checked against."""
        return Chained(
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
            (str(each.chain_id), _block(each.block_number), _block(each.head), moment(each.read_at), each.trouble or "")
            for each in self.chains
        ]

    def _kept(self) -> list[tuple[str, str, str, str]]:
        return [(str(each.chain_id), each.name, each.signature, f"{each.count:,}") for each in self.events]

    def _unknown(self) -> list[tuple[str, str, str]]:
        return [(each.automation, each.sentence, f"{each.count:,}") for each in self.strangers]


_CHAINS = (
    Column("chain"),
    Column("read up to", number=True),
    Column("newest block", number=True),
    Column("last new (UTC)"),
    Column("trouble"),
)
_EVENTS = (Column("chain"), Column("name"), Column("signature"), Column("logs", number=True))
_STRANGERS = (Column("automation"), Column("wallets that nobody knew, in a day"), Column("logs", number=True))
_BECAME = {
    "created": "became contacts",
    "unknown": "started nothing: create_contacts=True would make contacts of them",
    "limit": "started nothing: it made as many contacts as it may in that hour (WORKBENCH_CHAIN_CONTACTS)",
    "zero_address": "started nothing: the zero address is nobody",
    "erased": "started nothing: their contacts were erased",
}
_UNREAD = "No chain is read here: `workbench chain` needs a node in WORKBENCH_EVM_RPC."


def _block(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def chains(connection: Connection) -> Chains:
    """Return what is read of chains."""
    return msgspec.convert(connection.get("/chain"), Chains)


def chained(connection: Connection) -> Chained | None:
    """Return what automations are checked against, None when it cannot be had."""
    try:
        return chains(connection).seen()
    except WorkbenchError:
        return None
