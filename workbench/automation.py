"""An automation in the notebook: write it, check it, simulate it, publish it and watch it run."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, Unpack

from workbench import entries as watching
from workbench import publish as publishing
from workbench.account import audit
from workbench.broadcasts import Broadcast, SendPreview, create_broadcast, recipients_of
from workbench.connection import Connection
from workbench.display.graph import draw, picture
from workbench.display.html import html, printable_text
from workbench.draft import Draft, from_json
from workbench.duration import Moment, PeriodArguments
from workbench.entries import DeadLetters, Entries, Entry, Until, dead_letters
from workbench.errors import InvalidAutomationError, NotFoundError, WorkbenchError, usage_example
from workbench.event_json import EventFields, EventValues, describe_event
from workbench.events import Receipt
from workbench.language.check import Consent, Diagnostic, check_against
from workbench.moves import MoveArgument, MoveResult, move_back, preview_move
from workbench.plan import Plan, plan_publication
from workbench.publish import AutomationRecord, Impact, SavedAutomation, Stopped, Versions
from workbench.send_test import TestSent, send_test
from workbench.simulate import Simulation, SimulationArguments, simulate_draft
from workbench.snippets import with_pins
from workbench.stats import Dashboard, Stats, stats
from workbench.text.remainder import Extras
from workbench.text.round_trip import from_sentences, sentence_lines, to_python, to_sentences, with_extras
from workbench.verbs import AutomationVerbs

if TYPE_CHECKING:
    import polars as pl

    from workbench.backtest.result import Backtest
    from workbench.backtest.run import Against, BacktestVersion
    from workbench.canvas.widget import Canvas
    from workbench.segments import Segment


class Automation(AutomationVerbs):
    """An automation: its trigger and its steps. Every method that writes returns a new value.

    ```
    a = (wb.automation("Thanks for the deposit")
           .on("deposit").where("amountUsd", eq=100)
           .send_inapp(title="Thanks!", body="Your {{ amountUsd }} USD have arrived."))
    a                       # the graph, with errors and warnings
    a.simulate({...})       # what would happen with an event
    a.publish()             # events start it from now on
    a.entries()             # what happened
    ```
    """

    def __init__(self, draft: Draft, server: SavedAutomation | None = None) -> None:
        super().__init__(draft)
        self._server = server or SavedAutomation()
        self._canvases: dict[bool, Canvas] = {}  # by read_only: `.canvas()` returns the same one again

    @classmethod
    def from_json(cls, payload: Mapping[str, Any]) -> Self:
        """Return the automation in a contract payload. Its `to_json()` is equal to the argument.

        Raises InvalidAutomationError if the payload does not describe an automation.
        """
        return cls(from_json(payload))

    @classmethod
    def from_sentences(cls, text: str, *, name: str) -> Self:
        """Return the automation in sentences that `describe` wrote; raise InvalidAutomationError naming the line."""
        return cls(from_sentences(name, text))

    def _with(self, draft: Draft) -> Self:
        return type(self)(draft, self._server)

    @property
    def name(self) -> str:
        """The name under which the automation is saved and opened."""
        return self._draft.name

    @property
    def state(self) -> str:
        """The state of the automation: `draft` until it is published, then `live`, `paused` or `off`.

        It is that of the last call that read or changed the automation; `wb.automation(name)` reads it again.
        """
        return self._server.record.state if self._server.record is not None else "draft"

    # Writing

    @usage_example(".from_text(text), with a text that .describe() returned")
    def from_text(self, text: str) -> Self:
        """Return the automation that sentences describe, with the name and the server of this one."""
        return self._with(from_sentences(self.name, text))

    @usage_example('.with_extras({"nodes.add_tag_vip.data.label": "VIP"})')
    def with_extras(self, values: Mapping[str, object], *, without: Sequence[str] = ()) -> Self:
        """Set fields that no other method writes, by path: positions, unknown keys, ids of edges.

        `without` is a list of paths to remove.
        """
        return self._with(with_extras(self._draft, Extras(dict(values), tuple(without))))

    # Reading

    def to_json(self) -> dict[str, Any]:
        """Return the contract's payload: `name`, `triggerSpec` and `graph`."""
        return self._draft.payload()

    def check(self) -> tuple[Diagnostic, ...]:
        """Return the errors, which prevent publishing, and then the warnings.

        With a server there are also warnings about events, values, segments and contracts that it has not stored.
        """
        draft = self._draft
        with suppress(WorkbenchError):
            draft = with_pins(draft, self._server.connection)
        remarks = [*draft.remarks(), *self._archive_remarks()]
        # The automation is shown even if its shape is wrong, the server is down, or the key may not read events.
        with suppress(WorkbenchError):
            trigger, graph = draft.language()
            facts = self._server.facts(trigger, graph)
            remarks += check_against(facts, trigger, graph) if facts is not None else ()
        return tuple(remarks)

    def describe(self) -> str:
        """Return the automation as sentences, followed by the extra fields. `from_sentences` reads both."""
        return to_sentences(self._draft)

    def to_python(self) -> str:
        """Return the Python code that writes this automation."""
        return to_python(self._draft)

    def svg(self) -> str:
        """Return the graph as an SVG document."""
        return draw(*self._draft.language(), chosen=self._draft.positions())[0]

    # Drawing

    @usage_example(".canvas() or .canvas(height=800), .canvas(read_only=True)")
    def canvas(self, *, height: int = 640, read_only: bool = False) -> "Canvas":
        """Return a canvas to draw, test, publish and watch the automation on. Edits on the canvas change this value.

        `canvas.automation` is the automation as drawn. Assign to it to show a changed automation: `a.add_tag("vip")`.
        `height` is in pixels.
        """
        from workbench.canvas.widget import Canvas  # loads ipywidgets, which code without a canvas does not need

        if read_only not in self._canvases:
            self._canvases[read_only] = Canvas(self, height=height, read_only=read_only)
        canvas = self._canvases[read_only]
        canvas.height = height
        return canvas

    # Testing

    @usage_example('.simulate("deposit", external_id="user_1", payload={"amountUsd": 100})')
    def simulate(
        self,
        event: str | Mapping[str, Any] | None = None,
        contact: Mapping[str, Any] | None = None,
        now: datetime | None = None,
        *,
        events: Sequence[Mapping[str, Any]] = (),
        locale: str | None = None,
        **fields: Unpack[EventValues],
    ) -> Simulation:
        """Return what would happen with `event`, without doing it. Delays and waits pass at once.

        `event` and its fields are as in `wb.events.send`. The name may be omitted if only one event starts this
        automation. An automation that starts from a segment needs only a contact.

        `contact` (`walletAddress`, `email`, `externalId`, `attributes`, `tags`, `segments`, `optedOut`, `declined`)
        replaces the stored contact; `declined` are topics.
        `now` is the time of the event. `events` are later events of the same contact:
        `[{"event": "purchase", "after": "2h", "payload": {…}}]`. `locale="de-AT"` shows the texts that a contact of
        this locale would get, and `locale="default"` the default texts.

        With a server the stored contact is used. Without one, the same interpreter runs in this process. Raises
        InvalidArgumentError for an event or contact that the service would refuse.
        """
        connection, record = self._server.connection, self._server.record
        if connection is not None and not connection.has_key:
            connection = None  # without a key the server would refuse; this process can still simulate
        automation_id, note = (None, "") if record is None else (record.id, record.inactive_reason())
        described = describe_event(event, fields)
        arguments = SimulationArguments(described, contact, now, events, automation_id=automation_id, locale=locale)
        return simulate_draft(self._draft, arguments, connection, note)

    @usage_example('.backtest(days=30) or .backtest(days=30, against="published", segment="whales", sample=0.1)')
    def backtest(
        self,
        *,
        version: "BacktestVersion" = "draft",
        against: "Against | None" = None,
        segment: str | None = None,
        sample: float = 1.0,
        processes: int | None = None,
        at: Moment | None = None,
        **during: Unpack[PeriodArguments],
    ) -> "Backtest":
        """Return what the automation would have done in a period of stored events.

        Every event of the period goes through the engine's interpreter, contact by contact, with delays, waits, caps
        and quiet hours on the clock of that time. Nothing is sent or written. At each moment a contact has the
        identifiers, attributes, tags, segments, opt-outs and topics that it had then, with the changes that this
        automation would have made in place of those that it made.

        `version="live"` plays what was live instead of the draft: each event with the version of that moment, and the
        failures of deliveries as recorded. The result says with how many of the engine's entries it agrees, and
        `.differences()` lists the others.

        `against="published"`, or the number of a version, compares the draft with that version. `segment="whales"`
        restricts it to the current members of a segment. `sample=0.1` takes a tenth of the contacts, always the same
        ones.
        `processes` is the number of worker processes (default: one per core).
        `at="2026-11-20T09:00Z"` is the time of a broadcast, and `segment` its recipients. Without `at`, the broadcasts
        that were sent in the period are played, and if there are none, one at its beginning.
        """
        from workbench.backtest.run import BacktestRequest, backtested
        from workbench.backtest.source import ContactSample

        request = BacktestRequest(during, ContactSample(sample, segment), processes, at)
        return backtested(self._connected(), self._draft, self._server.record, against, request, version)

    @usage_example('.send_test("deposit", external_id="user_1", to={"email": "me@example.com"})')
    def send_test(
        self,
        event: str | Mapping[str, Any] | None = None,
        *,
        to: Mapping[str, str],
        node: str | None = None,
        locale: str | None = None,
        **fields: Unpack[EventFields],
    ) -> TestSent:
        """Send the messages for `event` to yourself through the real channels, and return the result of each.

        `event`, its fields and `locale` are as for `.simulate`, and the texts are those that its contact would get.
        Messages go only to the addresses in `to` (`email`, `walletAddress`, `url`), are marked as tests and are not
        counted. With `node`, only the message of that step is sent. A message that lacks something is skipped, and the
        draft is not saved.
        """
        record = self._server.record
        automation_id = record.id if record is not None else None
        return send_test(self._connected(), automation_id, self._draft, describe_event(event, fields), to, node, locale)

    # Publishing

    @usage_example(".save()")
    def save(self, *, overwrite: bool = False) -> Self:
        """Save the draft under its name. The published version stays the same.

        Raises ConflictError if the automation was changed since it was opened; `overwrite=True` replaces those changes.
        """
        connection = self._connected()
        self._server.record = publishing.save(connection, self._draft, self._server.record, overwrite=overwrite)
        return self

    @usage_example('.publish() or .publish(move="safe")')
    def publish(
        self,
        *,
        move: MoveArgument = "none",
        overwrite: bool = False,
        accept_dropped: bool = False,
        every_event: bool = False,
    ) -> Self:
        """Save the draft, publish it as a new version and switch the automation on.

        Entries of earlier versions finish on their version; `.impact` counts them. `move="safe"` moves those that wait
        at a step that is the same in the new version, or the same but for its texts; `move={"old_step": "new_step"}`
        moves those that wait at `old_step` to `new_step`. A wait keeps the moment at which it began. `.moves` has what
        was predicted for each, `.preview_move` says it before, and `.move_back` undoes it.
        A filter with an unknown operator, and what a first step of an unknown kind would do, is dropped only with
        `accept_dropped=True`. An empty event name means every event only with `every_event=True`.
        Raises PublishError listing the errors by node, and ConflictError if the automation was changed since it was
        opened.
        """
        connection = self._connected()
        # Checked here first: a draft with errors is not saved either.
        consents: dict[Consent, bool] = {"accept_dropped": accept_dropped, "every_event": every_event}
        agreed = [consent for consent, is_given in consents.items() if is_given]
        publishing.raise_on_errors(self.name, self._draft.remarks(), agreed)
        self.save(overwrite=overwrite)
        self._server.record = publishing.publish(connection, self._saved(), move)
        return self

    @usage_example('.preview_move() or .preview_move({"old_step": "new_step"})')
    def preview_move(self, move: MoveArgument = "safe") -> MoveResult:
        """Return what `.publish(move=…)` would do with the entries of earlier versions, each of them simulated."""
        draft = with_pins(self._draft, self._connected())
        return preview_move(self._connected(), self._saved().id, move, draft.payload())

    def move_back(self) -> MoveResult:
        """Undo the newest move: entries that are still where it put them return to their versions and steps.

        The published version stays the same; `.rollback` publishes an earlier one.
        """
        return move_back(self._connected(), self._saved().id)

    @property
    def moves(self) -> MoveResult | None:
        """The entries that were moved when this value was published; None if none were to be moved."""
        return self._server.record.moves if self._server.record is not None else None

    @usage_example('.send_to("vip") or .send_to(everyone=True, at=datetime(2026, 12, 1, 9, tzinfo=UTC))')
    def send_to(
        self, segment: "str | Segment | None" = None, *, at: datetime | None = None, everyone: bool = False
    ) -> Broadcast:
        """Start the published automation for every contact of a segment or audience, now or `at` a time.

        Its trigger must be `.on_broadcast()`. The contacts are those of the segment when it is sent. `.preview_send`
        counts them before.
        """
        return create_broadcast(self._connected(), self._saved().id, recipients_of(segment, everyone), at)

    @usage_example('.preview_send("vip") or .preview_send(everyone=True)')
    def preview_send(self, segment: "str | Segment | None" = None, *, everyone: bool = False) -> SendPreview:
        """Return how many contacts `.send_to` would start, and some of their ids. `.send()` on the result sends it."""
        return SendPreview(self._connected(), self._saved().id, recipients_of(segment, everyone))

    @usage_example(".plan() or .plan(against=2)")
    def plan(self, *, against: int | None = None) -> Plan:
        """Return the differences from the live version, or from version `against`, and the entries that still run."""
        return plan_publication(self._draft, self._server.record, self._connected(), against)

    @usage_example(".rollback(1); .versions() lists the versions")
    def rollback(self, version: int) -> Self:
        """Publish the content of an earlier version as a new version. Unpublished changes stay in the draft."""
        before = self._saved()
        record = self._change("rollback", version=version)._saved()
        # The server replaces the saved draft; changes that were never saved exist only in this value.
        return self._with(record.draft()) if publishing.unchanged(self._draft, before) else self

    @property
    def impact(self) -> Impact | None:
        """The unfinished entries of earlier versions when this value was published; None if it was not."""
        return self._server.record.impact if self._server.record is not None else None

    @property
    def stopped(self) -> Stopped | None:
        """The entries and messages that the pause of this value stopped; None if it was not paused."""
        return self._server.record.stopped if self._server.record is not None else None

    def activate(self) -> Self:
        """Switch the automation on, so that events start it again."""
        return self._change("activate")

    def deactivate(self) -> Self:
        """Switch the automation off: no event starts it, and waiting entries are cancelled."""
        return self._change("deactivate")

    def pause(self) -> Self:
        """Pause the automation: no event starts it, and no step of its entries takes effect. No entry is cancelled.

        `.stopped` counts what was stopped, and messages that are being sent and may still arrive.
        """
        return self._change("pause")

    @usage_example('.resume() or .resume(overdue="cancel")')
    def resume(self, *, overdue: publishing.Overdue = "run") -> Self:
        """Resume the automation after `.pause()`. Steps that came due during the pause run now.

        With `overdue="cancel"` the entries at these steps are cancelled instead.
        """
        return self._change("resume", overdue=overdue)

    def archive(self) -> Self:
        """Archive the automation permanently; its history stays."""
        return self._change("archive")

    def versions(self) -> Versions:
        """Return the published versions, newest first."""
        return publishing.versions(self._connected(), self._saved())

    @usage_example(".audit() or .audit(limit=500)")
    def audit(self, limit: int = 100) -> "pl.DataFrame":
        """Return a polars frame of changes, newest first: time, action, key, live version before and after."""
        return audit(self._connected(), limit, subject_id=self._saved().id)

    # Monitoring

    @usage_example(".stats() or .stats(days=7)")
    def stats(self, *, days: int = 30) -> Stats:
        """Return current figures: entries per state and step, outcomes, failures, the goal rate of the last `days`."""
        return stats(self._connected(), self._saved(), days)

    @usage_example(".dashboard() or .dashboard(days=7)")
    def dashboard(self, *, days: int = 30) -> Dashboard:
        """Return `stats` as a widget that reads the figures again every few seconds and can replay failed entries."""
        connection, record = self._connected(), self._saved()
        return Dashboard(lambda: stats(connection, record, days))

    @usage_example('.entries() or .entries(limit=200, state="waiting")')
    def entries(self, limit: int = 50, *, state: str | None = None) -> Entries:
        """Return the newest entries, one per event that started an entry; with `state`, only those in that state."""
        return watching.list_entries(self._connected(), self._saved().id, limit, state)

    def dead_letters(self) -> DeadLetters:
        """Return the entries that failed permanently, by cause. `.replay()` on the result retries them."""
        return dead_letters(self._connected(), self._saved().id)

    @usage_example(
        '.wait_for_entry(receipt) or .wait_for_entry(receipt, until="waiting"), '
        'where receipt = wb.events.send("deposit", …)'
    )
    def wait_for_entry(self, event: Receipt | str, timeout: float = 30.0, *, until: Until = "ended") -> Entry:
        """Return the entry that one event started, after it has ended, or with `until="waiting"` once it waits.

        `event` is the receipt of `wb.events.send`, an idempotency key or an event id. Raises NotFoundError if the event
        started no entry, and WaitTimeoutError after `timeout` seconds.
        """
        if isinstance(event, str):
            key = event
        elif not isinstance(event, Receipt):
            raise InvalidAutomationError("pass a receipt of wb.events.send, an idempotency key or an event id")
        elif event.dry_run:
            raise NotFoundError("a dry run starts no entry: send the event with a live key and without test=True")
        elif not event.accepted and not event.unknown:  # an event with an unknown outcome may have been stored
            raise NotFoundError(f"that event was not stored, so it started nothing: {event.error}")
        else:
            key = event.idempotency_key
        entry = watching.find_entry(self._connected(), self._saved().id, key)
        if entry is None:
            raise NotFoundError(
                f"that event did not start {self.name!r}. Either the automation was not active when the event arrived, "
                "or the event does not pass its filters: .simulate(event) says which"
            )
        return entry.wait(timeout, until=until)

    def _connected(self) -> Connection:
        if self._server.connection is None:
            raise InvalidAutomationError(
                'this automation is not connected to a server: open it with wb.automation("name")'
            )
        return self._server.connection

    def _saved(self) -> AutomationRecord:
        if self._server.record is None:
            raise NotFoundError(f"{self.name!r} is not on the server yet: call .save() or .publish() first")
        return self._server.record

    def _change(self, action: publishing.Action, **arguments: object) -> Self:
        self._server.record = publishing.change(self._connected(), self._saved(), action, **arguments)
        return self

    def _archive_remarks(self) -> list[Diagnostic]:
        if not self._server.archived or self._server.record is not None:
            return []
        warning = f"an archived automation also has the name {self.name!r}; saving this one starts a new history"
        return [Diagnostic("warning", warning)]

    def _status_pills(self) -> list[tuple[str, str]]:
        record = self._server.record
        if record is None:
            return [("draft, not saved", "warn")]
        changes = [] if publishing.unchanged(self._draft, record) else [("unsaved changes", "warn")]
        return [*record.pills(), *changes]

    @printable_text
    def __repr__(self) -> str:
        states = ", ".join(text for text, _ in self._status_pills())
        remarks = [f"{'✗' if diagnostic.level == 'error' else '!'} {diagnostic}" for diagnostic in self.check()]
        impact = [repr(self.impact)] if self.impact is not None and self.impact.entries else []
        stopped = [self.stopped.sentence()] if self.stopped is not None else []
        moves = [repr(self.moves)] if self.moves is not None else []
        return "\n".join([f"{self.name} ({states})", *sentence_lines(self._draft), *remarks, *impact, *moves, *stopped])

    def _repr_html_(self) -> str:
        trigger, graph = self._draft.language()
        return html(
            "automation.html.j2",
            name=self.name,
            pills=self._status_pills(),
            picture=picture(trigger, graph, chosen=self._draft.positions()) if graph.nodes else _EMPTY,
            remarks=self.check() if graph.nodes else self._archive_remarks(),
            sentences="\n".join(sentence_lines(self._draft)),
            impact=self.impact,
            moves=self.moves,
            stopped=self.stopped,
        )


_EMPTY = 'Empty so far. Begin with .on("deposit"), or draw it: .canvas().'


def open_automation(connection: Connection, name: str) -> Automation:
    """Return the saved draft of the automation with that name, or an empty one to write."""
    record = publishing.find(connection, name)
    archived = record is None and publishing.was_archived(connection, name)
    server = SavedAutomation(connection, record, archived=archived)
    return Automation(Draft(name) if record is None else record.draft(), server)
