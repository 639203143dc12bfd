"""The entrance: `wb = Workbench()`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from workbench import entries, publish, surroundings
from workbench.abi import ContractEvents, abi
from workbench.audience import audience
from workbench.audit import audit
from workbench.author import Draft
from workbench.automation import Automation, Place
from workbench.catalog import Catalog
from workbench.chains import Chains, chains
from workbench.connection import Connection
from workbench.contacts import Contact, Identified, contact
from workbench.dead_letters import DeadLetters, dead_letters
from workbench.display.page import html
from workbench.display.words import both
from workbench.engine import engine
from workbench.entries import Entry
from workbench.errors import DraftError, WorkbenchError, spoken
from workbench.events import Events
from workbench.export import Exported, export
from workbench.keys import Keys
from workbench.logs import Logs, logs
from workbench.merging import Merge, merge
from workbench.publish import Automations
from workbench.query import Question, sql, watermark
from workbench.reports import Reports
from workbench.rights import rights
from workbench.segments import Segment, Segments
from workbench.stream import Stream
from workbench.usage import usage
from workbench.values import bound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl
    from sqlalchemy import Engine

    from workbench.result import Result

_HOW = (
    ("see which events there are", "wb.catalog"),
    ("look into one of them", 'wb.catalog["deposit"]'),
    ("ask a ready-made question", 'wb.funnel(["signup", "deposit"], within="7d")'),
    ("ask SQL, get a polars frame", 'wb.sql("select event, count(*) from app_events group by 1")'),
    (
        "write or open an automation",
        'wb.automation("Thanks for the deposit").on("deposit").send_inapp(title="…", body="…")',
    ),
    ("draw it with the mouse", "a.canvas()"),
    ("try it on an event", 'a.simulate({"contact": {"walletAddress": "0x…"}, "payload": {"amountUsd": 100}})'),
    ("see what it would have done last month", "a.backtest(days=30)"),
    ("see the automations there are", "wb.automations"),
    ("let it run, and watch it", "a.publish(), then a.entries()"),
    ("send an event", 'wb.events.send("deposit", email="ada@example.com", payload={"amountUsd": 100})'),
    ("watch events as they come", "wb.events.tail()"),
    ("see why one did not arrive", "wb.events.rejected()"),
    ("see what failed for good, and try it again", "wb.dead_letters()"),
    ("see what happened to a contact, and see to it", 'wb.contact(email="ada@example.com")'),
    ("make one of two contacts", "wb.merge(keep, absorb)"),
    ("name the contacts that a query finds", 'wb.segments.define("whales", sql="SELECT contact_id FROM …")'),
    ("see the segments there are", "wb.segments"),
    ("count what was sent", "wb.usage()"),
    ("see to the keys", "wb.keys"),
    ("take everything with you, as parquet", 'wb.export("history")'),
)


class Workbench(Reports):
    """A server and your key for it.

    `url` and `key` (`wb_…`) come from WORKBENCH_URL and WORKBENCH_KEY, `events_key` (`sk_…`, only for sending events)
    from WORKBENCH_EVENTS_KEY; `make up` sets all three. Every error is a `WorkbenchError` in plain words.
    """

    def __init__(self, url: str | None = None, key: str | None = None, *, events_key: str | None = None) -> None:
        self.url = (url or surroundings.variable("WORKBENCH_URL") or surroundings.DEFAULT_URL).rstrip("/")
        self._connection = Connection(self.url, key or surroundings.variable("WORKBENCH_KEY"))
        self.catalog = Catalog(self._connection)
        self.segments = Segments(self._connection)
        sending = events_key or surroundings.variable(surroundings.EVENTS_KEY_VARIABLE)
        self.events = Events(self.url, sending, reader=self._connection)

    @overload
    def sql(
        self,
        query: str,
        *,
        stream: Literal[False] = False,
        as_of: "str | Result | None" = "",
        params: "Mapping[str, Any] | None" = None,
        **values: Any,
    ) -> "Result": ...

    @overload
    def sql(
        self,
        query: str,
        *,
        stream: Literal[True],
        as_of: "str | Result | None" = "",
        params: "Mapping[str, Any] | None" = None,
        **values: Any,
    ) -> Stream: ...

    @spoken('wb.sql("select * from contacts where id = :id", id="…")')
    def sql(
        self,
        query: str,
        *,
        stream: bool = False,
        as_of: "str | Result | None" = "",
        params: "Mapping[str, Any] | None" = None,
        **values: Any,
    ) -> "Result | Stream":
        """Return the result of one read-only query as a polars frame.

        Write `:name` in the query and give `name=value`: values never become part of the text. Columns and arrays are values, too. Where a
        name is one of this call's own (`stream`, `as_of`), write `params={"stream": value}`. Raises SqlError pointing at the spot.

        With `stream=True` the result may be larger than memory: `for frame in wb.sql(…, stream=True)`, or `.to_parquet(path)`.
        `as_of=frame` (an earlier result, or its `.watermark`) asks app_events, and nothing else, as they were for that result.

        Tables and their columns:

        - app_events: id, contact_id, event, occurred_at, created_at, payload, idempotency_key, sent_wallet_address, sent_email,
          sent_external_id
        - contacts: id, email, wallet_address, external_id, metadata, tags, created_at, updated_at, email_domain, opted_out, erased_at
        - messages: id, contact_id, automation_id, entry_id, node_id, channel, status, subject, body, created_at, sent_at, delivered_at
        - message_outcomes: message_id, channel, outcome, reason, at
        - automations: id, name, active, published_version, created_at, updated_at, archived_at
        - automation_entries: id, automation_id, automation_version, contact_id, event_id, state, outcome, node_id, attempts,
          last_error, created_at, updated_at
        - dead_letters: entry_id, automation_id, automation, automation_version, contact_id, event_id, node_id, cause, last_error,
          attempts, died_at
        - onchain_events: id, contact_id, chain_id, contract, event, tx_hash, log_index, block_number, block_time, args, removed,
          signature, block_hash, created_at
        - segment_members: segment, contact_id, entered_at
        - segments: name, kind, size, refreshed_at, last_error, failing_since, created_at, updated_at
        - segment_sizes: segment, at, size, entered, departed
        - rejected_events: id, event, field, reason, body, idempotency_key, received_at
        """
        if not isinstance(query, str):
            raise DraftError('a query is a text: wb.sql("select event, count(*) from app_events group by 1")')
        given = bound(query, values, params, ("self", "query", "stream", "as_of", "params"))
        question = Question(query, given, watermark(as_of))
        return Stream(self._connection, question) if stream else sql(self._connection, question)

    @spoken('wb.structs(frame, "payload")')
    def structs(self, frame: "pl.DataFrame", *columns: str) -> "pl.DataFrame":
        """Return any frame with columns of JSON as structs, numbers exact: `wb.structs(frame, "payload").unnest("payload")`."""
        from workbench.result import with_structs

        return with_structs(frame, columns)

    @spoken("wb.engine()")
    def engine(self) -> "Engine":
        """Return a SQLAlchemy engine on the direct login of WORKBENCH_DSN, where the operator allows one (docs/sql.md).

        It speaks to Postgres, not to the service: contacts have no addresses there, and `as_of` is not known.
        """
        return engine()

    @spoken('wb.export("history") or wb.export("history", tables=["events", "contacts", "messages", "entries"])')
    def export(self, path: "str | Path", tables: "Sequence[str]" = ("events", "contacts")) -> Exported:
        """Write tables as parquet files below `path`, events by month: `path/events/month=2026-10/part-0.parquet`.

        Any number of rows; a file appears when it is whole. Begun again, it goes on: months that are complete stay as they are,
        unless events were added or contacts erased, merged or identified since.
        Events carry their contact's identifiers, so `workbench import path --org …` takes them in elsewhere.
        """
        return export(self._connection, path, tables)

    @spoken('wb.automation("Thanks for the deposit")')
    def automation(self, name: str) -> Automation:
        """Open the automation of that name, or begin a new one."""
        if not isinstance(name, str):
            raise DraftError('an automation is opened by its name: wb.automation("Thanks for the deposit")')
        record = publish.find(self._connection, name)
        archived = record is None and publish.was_archived(self._connection, name)
        place = Place(self._connection, record, archived=archived)
        return Automation(Draft(name) if record is None else record.draft(), place)

    @spoken('wb.abi(text)["Transfer"]')
    def abi(self, text: str) -> ContractEvents:
        """Return the events in the ABI of a contract, pasted as JSON or as lines of Solidity: for `.on_chain(event=…)`."""
        return abi(text)

    @spoken('wb.logs(contract="0x…", event="Transfer")')
    def logs(
        self, contract: str | None = None, event: str | None = None, limit: int = 20, before: str | None = None
    ) -> Logs:
        """Return the logs that were seen last (at most 500), the newest first; each is a sample for `.simulate(…)`.

        `before`: the `id` of a log, for those that were seen before it.
        """
        return logs(self._connection, contract, event, before, limit)

    @property
    def chains(self) -> Chains:
        """The chains that are read, how far, and the contract events that were kept, by the names that waits have for them."""
        return chains(self._connection)

    @property
    def automations(self) -> Automations:
        """The automations of the organization, newest first: a table, and a sequence."""
        return publish.listed(self._connection)

    @spoken('wb.contact(email="ada@example.com") or wb.contact("0198c0de-…")')
    def contact(self, contact_id: str | None = None, **sent: Unpack[Identified]) -> Contact:
        """Return one contact, by its id or by what identifies it: to look, opt it out, tag it, export or erase it."""
        return contact(self._connection, contact_id, cast("dict[str, str]", sent))

    @spoken('wb.merge(keep=wb.contact(email="ada@example.com"), absorb=wb.contact(wallet_address="0x…"))')
    def merge(self, keep: Contact | str, absorb: Contact | str) -> Merge:
        """Return what making one contact of two would do; `.apply()` does it, `.undo()` takes it back. Contacts, or their ids."""
        return merge(self._connection, *(each.id if isinstance(each, Contact) else each for each in (keep, absorb)))

    @spoken('wb.audience(frame, name="invited")')
    def audience(self, contacts: "pl.DataFrame | pl.Series | Sequence[str]", name: str) -> Segment:
        """Freeze the contacts of a frame (its column contact_id) as a segment, with the query it came from, if it came from `wb.sql`.

        Done again, it replaces the audience of that name, and shows what that changed.
        """
        return audience(self._connection, contacts, name)

    @spoken('wb.usage() or wb.usage(month="2026-11")')
    def usage(self, month: str | None = None) -> "pl.DataFrame":
        """Return how many messages were sent in a month of UTC, this one unless you name another, by channel."""
        return usage(self._connection, month)

    @spoken('wb.audit() or wb.audit(limit=500, action="automation.publish")')
    def audit(self, limit: int = 100, *, action: str | None = None) -> "pl.DataFrame":
        """Return who changed what, newest first, as far as your key may look at it; all of it with `keys:admin`."""
        return audit(self._connection, limit, action)

    @property
    def keys(self) -> Keys:
        """The keys there are; `.create(…)`, `.roll(…)`, `.revoke(…)`. Your own key needs keys:admin."""
        return Keys(self._connection)

    @spoken('wb.entry("0198c0de-…")')
    def entry(self, entry_id: str) -> Entry:
        """Return one entry by its id."""
        return entries.one(self._connection, entry_id)

    def dead_letters(self) -> DeadLetters:
        """Return what failed for good in all automations, by cause; its `.replay()` tries it again."""
        return dead_letters(self._connection)

    def __repr__(self) -> str:
        _, note, _ = self._standing()
        width = max(len(purpose) for purpose, _ in _HOW)
        return "\n".join(["Event Workbench", note, *(f"  {purpose.ljust(width)}  {code}" for purpose, code in _HOW)])

    def _repr_html_(self) -> str:
        state, note, look = self._standing()
        return html("welcome.html.j2", state=state, note=note, look=look, lines=_HOW)

    def _standing(self) -> tuple[str, str, str]:
        """Return whether the server answers this key, and what it may do: a word, sentences, a colour."""
        try:
            seen = len(self.catalog)
            asked = rights(self._connection)
        except WorkbenchError as error:
            return "not connected", str(error), "bad"
        may = both([deed for deed, allowed in asked if allowed])
        may_not = both([deed for deed, allowed in asked if not allowed])
        sending = "Events are sent with a key of their own." if self.events.has_key else _NO_EVENTS_KEY
        note = f"{self.url}, {seen} kinds of events in the last 30 days. Your key may {may}"
        return "connected", f"{note}{f', but not {may_not}' if may_not else ''}. {sending}", "good"


_NO_EVENTS_KEY = "There is no key for sending events: set WORKBENCH_EVENTS_KEY."
