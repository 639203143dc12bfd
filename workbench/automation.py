"""An automation at the notebook: the verbs that write it, and those that check, simulate, publish and watch it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self, Unpack

from api.language.catalog import check_against, events_of
from api.language.check import Remark
from workbench import entries as watching
from workbench import publish as publishing
from workbench.abi import ContractEvent
from workbench.author import OPERATORS, Asked, Draft, condition, from_json, narrowed, started, started_on_chain
from workbench.catalog import Catalog, seen
from workbench.connection import Connection
from workbench.dead_letters import DeadLetters, dead_letters
from workbench.display.graph import draw, picture
from workbench.display.page import html
from workbench.display.sentences import sentences
from workbench.entries import Entries, Entry
from workbench.errors import DraftError, NotThereError, WorkbenchError, spoken
from workbench.events import Receipt
from workbench.impact import Impact
from workbench.publish import Record, Versions
from workbench.simulate import Simulation, Trial, simulated
from workbench.verbs import Rules


class Place:
    """Where an automation lives: the server, and what it held when last seen. Shared by all values made from one.

    `archived`: there is no automation of this name, but there was one.
    """

    def __init__(
        self, connection: Connection | None = None, record: Record | None = None, *, archived: bool = False
    ) -> None:
        self.connection = connection
        self.record = record
        self.archived = archived
        self.catalog = Catalog(connection) if connection is not None and connection.has_key else None


class Automation(Rules):
    """An automation: what starts it, and its steps. Every writing verb returns a new value.

    ```
    a = (wb.automation("Thanks for the deposit")
           .on("deposit").where("amountUsd", eq=100)
           .send_inapp(title="Thanks!", body="Your {{ amountUsd }} USD have arrived."))
    a                       # drawn, with what should be looked at
    a.simulate({...})       # what would happen
    a.publish()             # from now on it runs
    a.entries()             # what did happen
    ```
    """

    def __init__(self, draft: Draft, place: Place | None = None) -> None:
        self._draft = draft
        self._place = place or Place()

    @classmethod
    def from_json(cls, payload: Mapping[str, Any]) -> Self:
        """Return the automation in a contract payload (`name`, `triggerSpec`, `graph`); nothing is lost."""
        return cls(from_json(payload))

    def _with(self, draft: Draft) -> Self:
        return type(self)(draft, self._place)

    @property
    def name(self) -> str:
        """The name by which it is saved and opened."""
        return self._draft.name

    # Writing

    @spoken('.on("deposit") or .on("deposit", "trade")')
    def on(self, *events: str) -> Self:
        """Start it on events of these names. Begins the writing anew: filters and steps written before are left behind."""
        if not events:
            raise DraftError('name at least one event: .on("deposit"); every event there is: .on_any_event()')
        return self._with(started(self.name, events))

    @spoken(".on_any_event()")
    def on_any_event(self) -> Self:
        """Start it on every event of the organization. Begins the writing anew."""
        return self._with(started(self.name, ()))

    @spoken('.on_chain(contract="0x…", event="Transfer(address,address,uint256)", to_contact="to", chain_id=1)')
    def on_chain(
        self,
        *,
        contract: str,
        event: str | ContractEvent,
        to_contact: str,
        chain_id: int,
        confirmations: int = 0,
        create_contacts: bool = True,
    ) -> Self:
        """Start it on what a contract logs, about the wallet in one of the event's parameters. Begins the writing anew.

        `event`: a signature as in Solidity, `Transfer(address indexed from, address indexed to, uint256 value)`, or one of
        `wb.abi("…")`. `to_contact`: the parameter with the wallet. `confirmations`: how many blocks have to stand on top of the
        log's own; 0 starts at once, and what a reorganization drops is taken back as far as it has not been sent.
        `create_contacts=False`: only wallets that are known. Filters and texts see the parameters, and `chainId`, `contract`,
        `txHash`, `logIndex`, `blockNumber`; numbers of more than 48 bits are texts: `.where("value", eq="1000000")`.
        """
        spec = {
            "chainId": chain_id,
            "contract": contract,
            "signature": event.signature if isinstance(event, ContractEvent) else event,
            "walletArg": to_contact,
            "confirmations": confirmations,
            "createContacts": create_contacts,
        }
        return self._with(started_on_chain(self.name, spec))

    @spoken(f'.where("amountUsd", eq=100); ask with {OPERATORS}')
    def where(self, path: str, **asked: Unpack[Asked]) -> Self:
        """Start only when a value of the event passes; several `where` all have to.

        `path` is a key of the payload (`amountUsd`, `order.total`), or `event`, `walletAddress`, `email`, `externalId`, `contactId`.
        Ask with one of `eq`, `neq`, `is_in`, `contains`, `exists`. No conversion takes place: the number 100 is not the text "100". What is known of the contact belongs into `.when("contact.plan", …)`.
        """
        if not self._draft.nodes:
            raise DraftError('say first which event: .on("deposit")')
        return self._with(narrowed(self._draft, condition(path, asked)))

    # Reading

    def to_json(self) -> dict[str, Any]:
        """Return the contract's payload: `name`, `triggerSpec`, `graph`."""
        return self._draft.payload()

    def check(self) -> tuple[Remark, ...]:
        """Return every remark, errors first: errors stand against publishing, warnings are worth a look."""
        return (*self._draft.remarks(), *self._archived(), *self._unseen())

    def describe(self) -> str:
        """Return the automation in plain sentences."""
        return "\n".join(sentences(*self._draft.language()))

    def svg(self) -> str:
        """Return the graph as an SVG document."""
        return draw(*self._draft.language())[0]

    # Trying

    @spoken('.simulate({"contact": {"walletAddress": "0x…"}, "payload": {"amountUsd": 100}})')
    def simulate(
        self,
        event: Mapping[str, Any],
        contact: Mapping[str, Any] | None = None,
        now: datetime | None = None,
        *,
        events: Sequence[Mapping[str, Any]] = (),
    ) -> Simulation:
        """Return what would happen with `event`, without doing it. Days of waiting pass at once.

        `event` is as it would be posted; its name may be left out when only one starts this automation. The server looks the contact up as it is
        stored. With `contact` (`walletAddress, email, externalId, attributes, tags, segments`) it is that one instead.
        `events` of the same contact come later: `[{"event": "purchase", "after": "2h", "payload": {…}}]`.
        Without a connection the same interpreter runs here.
        """
        connection, record = self._place.connection, self._place.record
        speaks = connection if connection is not None and connection.has_key else None
        simulation = simulated(self._draft, Trial(event, contact, now, events), speaks)
        simulation.note = record.off() if record is not None else ""
        return simulation

    # Publishing

    @spoken(".save()")
    def save(self, *, overwrite: bool = False) -> Self:
        """Save the draft under its name; what is published stays as it is. Raises StaleError when somebody else changed it."""
        connection = self._connected()
        self._place.record = publishing.save(connection, self._draft, self._place.record, overwrite=overwrite)
        return self

    @spoken(".publish()")
    def publish(self, *, overwrite: bool = False) -> Self:
        """Save, publish a new version and switch it on: from now on events start it.

        Who is on the way through an earlier version finishes there; `.impact` says who they are.
        Raises PublishError listing what stands against it, node by node, and StaleError when somebody else changed it.
        """
        connection = self._connected()
        publishing.refuse_errors(self.name, self._draft.remarks())
        self.save(overwrite=overwrite)
        self._place.record = publishing.publish(connection, self._saved())
        return self

    @spoken(".rollback(1); .versions() shows which there are")
    def rollback(self, version: int) -> Self:
        """Publish what an earlier version said as a new version. Changes that are not published yet stay as they are."""
        before = self._saved()
        self._place.record = record = publishing.rollback(self._connected(), before, version)
        return self._with(record.draft()) if publishing.unchanged(self._draft, before) else self

    @property
    def impact(self) -> Impact | None:
        """Who was on the way through earlier versions when it was published just now; None when it was not."""
        return self._place.record.impact if self._place.record is not None else None

    def activate(self) -> Self:
        """Let events start it again."""
        return self._switch("activate")

    def deactivate(self) -> Self:
        """Switch it off: no event starts it, and whoever is waiting is cancelled."""
        return self._switch("deactivate")

    def archive(self) -> Self:
        """Put it away for good; its history stays."""
        return self._switch("archive")

    def versions(self) -> Versions:
        """Return the published versions, newest first."""
        return publishing.versions(self._connected(), self._saved())

    # Watching

    @spoken('.entries() or .entries(limit=200, state="waiting")')
    def entries(self, limit: int = 50, *, state: str | None = None) -> Entries:
        """Return the newest entries: one per event that started it; of those that stand in a state when it is given."""
        return watching.listed(self._connected(), self._saved().id, limit, state)

    def dead_letters(self) -> DeadLetters:
        """Return what failed for good, by cause; its `.replay()` tries it again."""
        return dead_letters(self._connected(), self._saved().id)

    @spoken('.watch(receipt), where receipt = wb.events.send("deposit", …)')
    def watch(self, sent: Receipt | str, timeout: float = 30.0) -> Entry:
        """Watch the entry that one event started until it ends, and return it.

        `sent` is the receipt of `wb.events.send`, an idempotency key or an event id.
        """
        key = _key_of(sent)
        entry = watching.started_by(self._connected(), self._saved().id, key)
        if entry is None:
            raise NotThereError(
                f"that event did not start {self.name!r}. Either it was not active when the event came, or the event does not pass "
                "its filters: .simulate(event) says which"
            )
        return entry.wait(timeout)

    # Below the surface

    def _connected(self) -> Connection:
        if self._place.connection is None:
            raise DraftError('this automation is not connected to a server: wb.automation("name") makes one that is')
        return self._place.connection

    def _saved(self) -> Record:
        if self._place.record is None:
            raise NotThereError(f"{self.name!r} is not on the server yet: .save() or .publish() puts it there")
        return self._place.record

    def _switch(self, verb: publishing.Verb) -> Self:
        self._place.record = publishing.switch(self._connected(), self._saved(), verb)
        return self

    def _unseen(self) -> list[Remark]:
        """Warn about events and values that nobody has sent: the commonest reasons why nothing happens."""
        if self._place.catalog is None:
            return []
        try:
            trigger, graph = self._draft.language()
            return [*check_against(seen(self._place.catalog, events_of(trigger, graph)), trigger, graph)]
        except WorkbenchError:
            return []  # the automation can be looked at without a server

    def _archived(self) -> list[Remark]:
        if not self._place.archived or self._place.record is not None:
            return []
        return [Remark("warning", f"an archived automation is called {self.name!r} too; saving this one begins anew")]

    def _pills(self) -> list[tuple[str, str]]:
        record = self._place.record
        if record is None:
            return [("draft, not saved", "warn")]
        return (
            record.pills()
            if publishing.unchanged(self._draft, record)
            else [*record.pills(), ("unsaved changes", "warn")]
        )

    def __repr__(self) -> str:
        states = ", ".join(text for text, _ in self._pills())
        remarks = [f"{'✗' if each.level == 'error' else '!'} {each}" for each in self.check()]
        impact = [repr(self.impact)] if self.impact is not None and self.impact.entries else []
        return "\n".join([f"{self.name} ({states})", self.describe(), *remarks, *impact])

    def _repr_html_(self) -> str:
        trigger, graph = self._draft.language()
        return html(
            "automation.html.j2",
            name=self.name,
            pills=self._pills(),
            picture=picture(trigger, graph) if graph.nodes else 'Empty so far. Begin with .on("deposit").',
            remarks=self.check() if graph.nodes else self._archived(),
            sentences=self.describe(),
            impact=self.impact,
        )


def _key_of(sent: Receipt | str) -> str:
    """Return the idempotency key (or event id) by which an entry is found."""
    if isinstance(sent, str):
        return sent
    if not isinstance(sent, Receipt):
        raise DraftError(
            "what should it wait for? Give the receipt of wb.events.send, an idempotency key or an event id"
        )
    if sent.dry_run:
        raise NotThereError(
            "that was a dry run, and dry runs make no entries: send it with a live key and without test=True"
        )
    if not sent.accepted and not sent.unknown:
        raise NotThereError(f"that event was not stored, so it started nothing: {sent.error}")
    return sent.idempotency_key
