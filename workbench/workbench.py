"""The entry point: `wb = Workbench()`."""

import re
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from workbench import entries, environment, publish
from workbench.account import SCOPE_ACTIONS, Keys, audit, caller, set_timezone, timezone, usage
from workbench.approvals import Approvals
from workbench.automation import Automation, open_automation
from workbench.broadcasts import Broadcasts, list_broadcasts
from workbench.catalog import Catalog
from workbench.chain import ChainsStatus, ContractEvents, Logs, abi, chains, logs
from workbench.connection import Connection
from workbench.connections import Connections
from workbench.contacts import Contact, ContactIdentifier, Merge, contact, merge
from workbench.display.html import html, printable_text
from workbench.display.words import WORDS, join_and, join_or
from workbench.entries import DeadLetters, Entry, dead_letters
from workbench.errors import InvalidArgumentError, WorkbenchError, usage_example
from workbench.events import Events
from workbench.export import Exported, engine, export
from workbench.language.responses import CallerView
from workbench.pages import PageContent, PageSchedule, PageSchedules, ReportPage, schedule
from workbench.publish import Automations, Stopped
from workbench.reports import Reports
from workbench.segments import Segment, Segments, audience
from workbench.snippets import Snippets
from workbench.sql import AsOf, Params, SqlQuery, Stream, bind_values, sql, watermark
from workbench.tables import compile_statement, tables
from workbench.topics import Topics

if TYPE_CHECKING:
    from pathlib import Path
    from types import SimpleNamespace

    import polars as pl
    from sqlalchemy import ClauseElement, Engine

    from workbench.display.widgets import FormWindow
    from workbench.forms import Forms
    from workbench.frames import Result
    from workbench.lake import Lake


class Workbench(Reports):
    """A connection to a server, with your key.

    `url` and `key` (`wb_…`) default to WORKBENCH_URL and WORKBENCH_KEY, and `events_key` (`sk_…`, for sending events
    only) to WORKBENCH_EVENTS_KEY; `make up` sets all three. Every error that the methods raise is a `WorkbenchError`.
    """

    def __init__(self, url: str | None = None, key: str | None = None, *, events_key: str | None = None) -> None:
        self.url = (url or environment.variable("WORKBENCH_URL") or environment.DEFAULT_URL).rstrip("/")
        self._connection = Connection(self.url, key or environment.variable("WORKBENCH_KEY"))
        self.catalog = Catalog(self._connection)
        self.segments = Segments(self._connection)
        # A secret key only sends events, and a workbench key cannot send them (docs/keys.md).
        events_key = events_key or environment.variable(environment.EVENTS_KEY_VARIABLE)
        self.events = Events(self.url, events_key, reader=self._connection)

    @overload
    def sql(
        self,
        query: "str | ClauseElement",
        *,
        stream: Literal[False] = False,
        as_of: AsOf = "",
        params: Params = None,
        **values: Any,
    ) -> "Result": ...

    @overload
    def sql(
        self,
        query: "str | ClauseElement",
        *,
        stream: Literal[True],
        as_of: AsOf = "",
        params: Params = None,
        **values: Any,
    ) -> Stream: ...

    @usage_example('wb.sql("select * from contacts where id = :id", id="…")')
    def sql(
        self,
        query: "str | ClauseElement",
        *,
        stream: bool = False,
        as_of: AsOf = "",
        params: Params = None,
        **values: Any,
    ) -> "Result | Stream":
        """Return the result of one read-only query as a polars frame. Raises SqlError with the position of the error.

        Write `:name` in the query and pass `name=value`. Values are bound, never written into the text, and may also be
        columns or arrays. For a name that is an argument of this method (`stream`, `as_of`), pass
        `params={"stream": value}`. The query may also be a statement of SQLAlchemy Core over `wb.tables`.

        With `stream=True` the result may be larger than memory: `for frame in wb.sql(…, stream=True)`, or
        `.to_parquet(path)`. `as_of=frame` (an earlier result, or its `.watermark`) reads app_events as they were for
        that result. Other tables keep no history: with `as_of` they are an error.

        Tables and their columns:

        - app_events: id, contact_id, event, occurred_at, created_at, payload, idempotency_key, sent_wallet_address,
          sent_email, sent_external_id, merged_from
        - contacts: id, email, wallet_address, external_id, metadata, tags, created_at, updated_at, email_domain,
          opted_out, erased_at
        - merged_contacts: id, merged_into, email, wallet_address, external_id, metadata, tags, created_at, updated_at,
          email_domain, opted_out
        - contact_changes: contact_id, changed_at, field, old, new, cause, cause_id, event_at
        - contacts_at(moment): id, email, wallet_address, external_id, metadata, tags, segments, opted_out, created_at
        - messages: id, contact_id, automation_id, entry_id, node_id, channel, status, subject, body, created_at,
          sent_at, delivered_at
        - message_outcomes: message_id, channel, outcome, reason, at
        - automations: id, name, active, published_version, created_at, updated_at, archived_at
        - automation_entries: id, automation_id, automation_version, contact_id, event_id, state, outcome, node_id,
          attempts, last_error, created_at, updated_at, merged_from
        - entry_steps: entry_id, claim, step, attempt, node_id, kind, at, outcome, handle, cause
        - entry_moves: entry_id, automation_id, from_version, from_node_id, to_version, to_node_id, moved_at,
          moved_back_at
        - dead_letters: entry_id, automation_id, automation, automation_version, contact_id, event_id, node_id, cause,
          last_error, attempts, died_at
        - onchain_events: id, contact_id, chain_id, contract, event, tx_hash, log_index, block_number, block_time, args,
          removed, signature, block_hash, created_at
        - segment_members: segment, contact_id, entered_at
        - segments: name, kind, size, refreshed_at, last_error, failing_since, created_at, updated_at
        - segment_sizes: segment, at, size, entered, departed
        - broadcasts: id, automation_id, segment, scheduled, at, state, contacts, entered, departed, entries,
          created_at, started_at, ended_at
        - consents: id, contact_id, topic, channel, granted, source, text_sha256, at, merged_from
        - declined_topics: contact_id, topic
        - suppressions: channel, contact_id, cause, created_at
        - rejected_events: id, event, field, reason, body, idempotency_key, received_at
        """
        if not isinstance(query, str) and hasattr(query, "compile"):
            query, params = compile_statement(query, dict(params or {}) | values)
            values = {}
        if not isinstance(query, str):
            raise InvalidArgumentError(
                'the query must be a string: wb.sql("select event, count(*) from app_events group by 1")'
            )
        bound = bind_values(query, values, params, ("self", "query", "stream", "as_of", "params"))
        sql_query = SqlQuery(query, bound, watermark(as_of))
        return Stream(self._connection, sql_query) if stream else sql(self._connection, sql_query)

    @cached_property  # SQLAlchemy takes two objects for one table as two tables
    def tables(self) -> "SimpleNamespace":
        """The tables of `wb.sql` for SQLAlchemy Core, with typed columns.

        `wb.sql(select(wb.tables.app_events.c.event))`. Needs `event-workbench[engine]`.
        """
        return tables(TABLES)

    @usage_example('wb.structs(frame, "payload")')
    def structs(self, frame: "pl.DataFrame", *columns: str) -> "pl.DataFrame":
        """Return a frame with JSON columns as structs, with exact numbers.

        For example `wb.structs(frame, "payload").unnest("payload")`.
        """
        from workbench.frames import with_structs

        return with_structs(frame, columns)

    @usage_example("wb.engine()")
    def engine(self) -> "Engine":
        """Return a SQLAlchemy engine for the direct Postgres login in WORKBENCH_DSN (docs/sql.md).

        An operator creates that login. It bypasses the service: contacts have no email addresses, and `as_of` is not
        available.
        """
        return engine()

    @usage_example('wb.export("history") or wb.export("history", tables=["events", "contacts", "messages", "entries"])')
    def export(self, path: "str | Path", tables: "Sequence[str]" = ("events", "contacts")) -> Exported:
        """Write tables as parquet files below `path`, events by month: `path/events/month=2026-10/part-0.parquet`.

        The number of rows is not limited, and a file appears when it is complete. Run it again to resume: complete
        months are kept, unless events were added or contacts erased, merged or identified since. Events carry their
        contact's identifiers, so `workbench import path --org …` can import them elsewhere.
        """
        return export(self._connection, path, tables)

    @overload
    def lake(self, table: None = None, *, path: "str | Path | None" = None) -> "Lake": ...

    @overload
    def lake(self, table: Literal["events"], *, path: "str | Path | None" = None) -> "pl.LazyFrame": ...

    @usage_example('wb.lake("events") or wb.lake().sql("select event, count(*) from events group by event")')
    def lake(
        self, table: Literal["events"] | None = None, *, path: "str | Path | None" = None
    ) -> "Lake | pl.LazyFrame":
        """Copy all events to this machine, or bring the copy up to date, and return it.

        `wb.lake("events")` returns its events as a lazy polars frame. `path`: the folder of the copy; by default one
        for each server and organization, in `~/.local/state/event-workbench`. Call it again to copy what is new, and
        to remove what was erased since.
        """
        from workbench.lake import sync

        if table not in (None, "events"):
            raise InvalidArgumentError(f"table={table!r}: a lake has the table 'events'")
        lake = sync(self._connection, path)
        return lake if table is None else lake.events

    @usage_example('wb.automation("Thanks for the deposit")')
    def automation(self, name: str) -> Automation:
        """Return the saved draft of the automation with that name, or an empty one to write."""
        if not isinstance(name, str):
            raise InvalidArgumentError(
                'an automation is opened by its name (a string): wb.automation("Thanks for the deposit")'
            )
        return open_automation(self._connection, name)

    @usage_example('wb.abi(text)["Transfer"]')
    def abi(self, text: str) -> ContractEvents:
        """Return the events in a contract's ABI, for `.on_chain(event=…)`. `text`: JSON, or lines of Solidity."""
        return abi(text)

    @usage_example('wb.logs(contract="0x…", event="Transfer")')
    def logs(
        self, contract: str | None = None, event: str | None = None, limit: int = 20, before: str | None = None
    ) -> Logs:
        """Return the newest stored logs (at most 500), newest first. Each is a sample for `.simulate(…)`.

        `contract` and `event` restrict them to one contract or one event. With `before`, the `id` of a log, they are
        the newest ones stored before it.
        """
        return logs(self._connection, contract, event, before, limit)

    @property
    def chains(self) -> ChainsStatus:
        """The followed chains with their last block, and the stored contract events under the names that waits use."""
        return chains(self._connection)

    @property
    def automations(self) -> Automations:
        """The automations of the organization, newest first, as a sequence that is displayed as a table."""
        return publish.list_automations(self._connection)

    def stop_all(self) -> Stopped:
        """Stop everything now: no step of any entry takes effect any more. Returns what was stopped.

        Messages that are being sent may still arrive. Until `.resume_all()`, no event starts an automation, and one
        that is published or activated waits with the others.
        """
        return publish.stop_all(self._connection)

    @usage_example('wb.resume_all() or wb.resume_all(overdue="cancel")')
    def resume_all(self, *, overdue: publish.Overdue = "run") -> Stopped:
        """Resume what `.stop_all()` stopped; automations that were paused or off before stay so.

        Steps that came due meanwhile run now. With `overdue="cancel"` the entries at these steps are cancelled instead.
        Returns the numbers of automations, of entries that run now, and of their messages that are not sent yet.
        """
        return publish.resume_all(self._connection, overdue)

    @property
    def forms(self) -> "Forms":
        """Forms that need no code: `wb.forms.event()`, `.funnel()`, `.retention()`, `.automation()` and `.stats()`."""
        from workbench.forms import Forms  # loads ipywidgets, which code without a notebook does not need

        return Forms(self, self.catalog, self._connection, lambda: self._welcome(folded=True))

    @property
    def broadcasts(self) -> Broadcasts:
        """The newest broadcasts with their progress, as a sequence that is displayed as a table."""
        return list_broadcasts(self._connection)

    @usage_example('wb.page("Monday numbers", wb.funnel(["signup", "deposit"]), ("Assets", wb.sql("select …")))')
    def page(self, title: str, *reports: PageContent) -> ReportPage:
        """Return reports as one document for people without a notebook, with charts, tables, hashes and watermarks.

        Each is a report, or a title with a result of `wb.sql`. `.save("monday.html")` writes the document, which needs
        no network and prints. It has the first 500 rows of each.
        """
        return ReportPage(title, reports)

    @usage_example('wb.schedule(page, every="monday 08:00", to=["ada@example.com"])')
    def schedule(self, page: ReportPage, *, every: str, to: Sequence[str], timezone: str | None = None) -> PageSchedule:
        """Let the engine make a page again at these times, and mail it. Your key needs pages:send.

        `every`: "monday 08:00", "mon,thu 08:30", "day 07:00", "weekday 09:00", "month 08:00" (on the first), or a cron
        expression, at most once an hour. `timezone`: by default that of the organization. Reports over the last days or
        periods move with each run; `since=` and `until=` stay. Addresses of contacts on the page are masked.
        """
        return schedule(self._connection, page, every, to, timezone)

    @property
    def page_schedules(self) -> PageSchedules:
        """The scheduled pages with their last run, as a sequence with `.runs(…)` and `.delete(…)`."""
        return PageSchedules(self._connection)

    @property
    def snippets(self) -> Snippets:
        """The snippets of the organization, by name: texts that messages include with `{% include "footer" %}`."""
        return Snippets(self._connection)

    @property
    def connections(self) -> Connections:
        """The connections of the organization, by name: chat and text message services for `.send_via(…)`."""
        return Connections(self._connection)

    @property
    def topics(self) -> Topics:
        """The topics of the organization, by name: what messages are about, and contacts want or decline."""
        return Topics(self._connection)

    @usage_example('wb.contact(email="ada@example.com") or wb.contact("0198c0de-…")')
    def contact(self, contact_id: str | None = None, **identifier: Unpack[ContactIdentifier]) -> Contact:
        """Return one contact, by its id or by one identifier. Raises NotFoundError if it does not exist."""
        return contact(self._connection, contact_id, cast("dict[str, str]", identifier))

    @usage_example('wb.merge(keep=wb.contact(email="ada@example.com"), absorb=wb.contact(wallet_address="0x…"))')
    def merge(self, keep: Contact | str, absorb: Contact | str) -> Merge:
        """Return a preview of merging `absorb` into `keep` (contacts or their ids).

        `.apply()` on the preview merges them, and `.undo()` reverts that.
        """
        ids = [contact.id if isinstance(contact, Contact) else contact for contact in (keep, absorb)]
        return merge(self._connection, *ids)

    @usage_example('wb.audience(frame, name="invited")')
    def audience(self, contacts: "pl.DataFrame | pl.Series | Sequence[str]", name: str) -> Segment:
        """Store contacts as a segment that does not change, and return it. An audience with the same name is replaced.

        `contacts` is a frame with a column contact_id, a series or a list of ids. For a frame from `wb.sql` the query
        is stored too.
        """
        return audience(self._connection, contacts, name)

    @usage_example('wb.usage() or wb.usage(month="2026-11")')
    def usage(self, month: str | None = None) -> "pl.DataFrame":
        """Return a frame with the messages sent per channel in a month of UTC (default: this one)."""
        return usage(self._connection, month)

    @property
    def timezone(self) -> str | None:
        """The time zone of contacts and automations without one; None: UTC. `wb.set_timezone` changes it."""
        return timezone(self._connection)

    @usage_example('wb.set_timezone("Europe/Zurich")')
    def set_timezone(self, zone: str | None) -> None:
        """Set the time zone of contacts and automations without one; None: UTC.

        Automations keep that of their publication: publish them again to change it.
        """
        set_timezone(self._connection, zone)

    @usage_example('wb.audit() or wb.audit(limit=500, action="automation.publish")')
    def audit(self, limit: int = 100, *, action: str | None = None) -> "pl.DataFrame":
        """Return a frame with the changes that your key may see, newest first; with `keys:admin` all of them."""
        return audit(self._connection, limit, action)

    @property
    def me(self) -> CallerView:
        """The organization, the scopes and the limits of your key, and the version of the server."""
        return caller(self._connection)

    @property
    def approvals(self) -> Approvals:
        """The publications that agents propose, with `.approve(…)`, `.reject(…)` and `.require()`."""
        return Approvals(self._connection)

    @property
    def keys(self) -> Keys:
        """The API keys, with `.create(…)`, `.roll(…)` and `.revoke(…)`. Your own key needs keys:admin."""
        return Keys(self._connection)

    @usage_example('wb.entry("0198c0de-…")')
    def entry(self, entry_id: str) -> Entry:
        """Return one entry by its id. Raises NotFoundError if it does not exist."""
        return entries.read_entry(self._connection, entry_id)

    def dead_letters(self) -> DeadLetters:
        """Return the entries of all automations that failed permanently, by cause. `.replay()` retries them."""
        return dead_letters(self._connection)

    @printable_text
    def __repr__(self) -> str:
        _, note, _ = self._status()
        width = max(map(len, WORDS["tasks"]))
        tasks = [f"  {task.ljust(width)}  {code}" for task, code in WORDS["tasks"].items()]
        return "\n".join(["Event Workbench", note, *tasks])

    def _repr_html_(self) -> str:
        return self._welcome(folded=False)

    def _welcome(self, *, folded: bool) -> str:
        """Return the state of the connection and the code for each task, `folded` above the forms."""
        state, note, look = self._status()
        tasks = WORDS["tasks"].items()
        return html("welcome.html.j2", state=state, note=note, look=look, lines=tasks, folded=folded)

    def _ipython_display_(self) -> None:
        if not environment.in_kernel():
            sys.stdout.write(f"{self!r}\n")
            return
        from workbench.display.widgets import show

        show(self._display_(), self._repr_html_())

    def _display_(self) -> "FormWindow":  # marimo
        return self.forms.page()._display_()

    def _status(self) -> tuple[str, str, str]:
        """Return a state, sentences about the connection and the key, and a colour."""
        try:
            events = len(self.catalog)
            scopes = self.me.key.scopes
        except WorkbenchError as error:  # the repr of a Workbench must not raise
            return "not connected", str(error), "bad"
        may = join_and([action for scope, action in SCOPE_ACTIONS.items() if scope in scopes])
        may_not = join_or([action for scope, action in SCOPE_ACTIONS.items() if scope not in scopes])
        sentences = [
            f"{self.url}, {events} kinds of events in the last 30 days.",
            f"Your key may {may}{f', but not {may_not}' if may_not else ''}.",
            "Events are sent with a separate key."
            if self.events.has_key
            else "To send events, set WORKBENCH_EVENTS_KEY.",
        ]
        return "connected", " ".join(sentences), "good"


# The list in the help of `wb.sql`, which users read: columns by table.
_TABLE = re.compile(r"^ +- (\w+): (.+?)(?=\n +- |\n *$)", re.DOTALL | re.MULTILINE)
TABLES = {table: re.findall(r"\w+", columns) for table, columns in _TABLE.findall(Workbench.sql.__doc__ or "")}
