"""An automation in the notebook: write it, check it, simulate it, publish it and watch it run."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import msgspec

from workbench import entries as watching
from workbench import publish as publishing
from workbench.account import audit
from workbench.catalog import Catalog, seen
from workbench.chain import chained
from workbench.connection import Connection
from workbench.display.graph import draw, picture
from workbench.display.html import html
from workbench.draft import Draft, from_json
from workbench.duration import PeriodArguments
from workbench.entries import DeadLetters, Entries, Entry, Until, dead_letters
from workbench.errors import InvalidAutomationError, NotFoundError, WorkbenchError, usage_example
from workbench.events import Receipt
from workbench.language.check import Diagnostic, check_against, events_of, segments_of, uses_chain
from workbench.plan import Plan, planned
from workbench.publish import AutomationRecord, Impact, Versions
from workbench.segments import segment_names
from workbench.send_test import TestReceivers, TestSent, send_test
from workbench.simulate import Simulation, SimulationArguments, simulated
from workbench.stats import Dashboard, Stats, stats
from workbench.text.forms import from_sentences, sentence_lines, to_python, to_sentences, with_extras
from workbench.text.remainder import Extras
from workbench.verbs import AutomationVerbs

if TYPE_CHECKING:
    import polars as pl

    from workbench.backtest.result import Backtest
    from workbench.backtest.run import Against
    from workbench.canvas.widget import Canvas


class SavedAutomation:
    """The server that an automation belongs to, and its record there. Shared by all values made from one automation.

    `archived`: no automation has this name, but an archived one had it.
    """

    def __init__(
        self, connection: Connection | None = None, record: AutomationRecord | None = None, *, archived: bool = False
    ) -> None:
        self.connection = connection
        self.record = record
        self.archived = archived
        self.catalog = Catalog(connection) if connection is not None and connection.has_key else None


class Automation(AutomationVerbs):
    """An automation: what starts it, and its steps. Every method that writes returns a new value.

    ```
    a = (wb.automation("Thanks for the deposit")
           .on("deposit").where("amountUsd", eq=100)
           .send_inapp(title="Thanks!", body="Your {{ amountUsd }} USD have arrived."))
    a                       # drawn, with errors and warnings
    a.simulate({...})       # what would happen
    a.publish()             # from now on events start it
    a.entries()             # what did happen
    ```
    """

    def __init__(self, draft: Draft, server: SavedAutomation | None = None) -> None:
        self._draft = draft
        self._server = server or SavedAutomation()
        self._canvases: dict[bool, Canvas] = {}  # by read_only

    @classmethod
    def from_json(cls, payload: Mapping[str, Any]) -> Self:
        """Return the automation in a contract payload (`name`, `triggerSpec`, `graph`); nothing is lost."""
        return cls(from_json(payload))

    @classmethod
    def from_sentences(cls, text: str, *, name: str) -> Self:
        """Return the automation that sentences describe, as `describe` writes them; raises InvalidAutomationError naming the line."""
        return cls(from_sentences(name, text))

    def _with(self, draft: Draft) -> Self:
        return type(self)(draft, self._server)

    @property
    def name(self) -> str:
        """The name by which it is saved and opened."""
        return self._draft.name

    # Writing

    @usage_example(".from_text(text), where text is like what .describe() returns")
    def from_text(self, text: str) -> Self:
        """Return it rewritten from sentences, with the same name and server."""
        return self._with(from_sentences(self.name, text))

    @usage_example('.with_extras({"nodes.add_tag_vip.data.label": "VIP"})')
    def with_extras(self, values: Mapping[str, object], *, without: Sequence[str] = ()) -> Self:
        """Set fields that no method writes, by path: positions, unknown keys, ids of edges. `without`: paths to remove."""
        return self._with(with_extras(self._draft, Extras(dict(values), tuple(without))))

    # Reading

    def to_json(self) -> dict[str, Any]:
        """Return the contract's payload: `name`, `triggerSpec`, `graph`."""
        return self._draft.payload()

    def check(self) -> tuple[Diagnostic, ...]:
        """Return errors, which prevent publishing, and then warnings."""
        return (*self._draft.remarks(), *self._archive_remarks(), *self._unseen())

    def describe(self) -> str:
        """Return the automation as plain sentences, and below them the extra fields. `from_sentences` reads it back."""
        return to_sentences(self._draft)

    def to_python(self) -> str:
        """Return the code that writes this automation."""
        return to_python(self._draft)

    def svg(self) -> str:
        """Return the graph as an SVG document."""
        return draw(*self._draft.language(), chosen=self._draft.positions())[0]

    # Drawing

    @usage_example(".canvas() or .canvas(height=800), .canvas(read_only=True)")
    def canvas(self, *, height: int = 640, read_only: bool = False) -> "Canvas":
        """Open it on a canvas, to draw it, test it, publish it and watch it. What is drawn there is this automation from then on.

        `canvas.automation` is what is drawn; assign another value of it, `a.add_tag("vip")` say, and that is shown. `height` in pixels.
        """
        from workbench.canvas.widget import Canvas  # loads the widgets, which code without a canvas does not need

        if read_only not in self._canvases:
            self._canvases[read_only] = Canvas(self, height=height, read_only=read_only)
        canvas = self._canvases[read_only]
        canvas.height = height
        return canvas

    # Testing

    @usage_example('.simulate({"contact": {"walletAddress": "0x…"}, "payload": {"amountUsd": 100}})')
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
        connection, record = self._server.connection, self._server.record
        speaks = connection if connection is not None and connection.has_key else None
        saved = None if record is None else record.id
        simulation = simulated(
            self._draft, SimulationArguments(event, contact, now, events, automation_id=saved), speaks
        )
        simulation.note = record.off() if record is not None else ""
        return simulation

    @usage_example('.backtest(days=30) or .backtest(days=30, against="published", segment="whales", sample=0.1)')
    def backtest(
        self,
        *,
        against: "Against | None" = None,
        segment: str | None = None,
        sample: float = 1.0,
        processes: int | None = None,
        **during: Unpack[PeriodArguments],
    ) -> "Backtest":
        """Return what it would have done in the last `days` (default: 30), or from `since` up to `until`, had it run then.

        Every event that was stored in that time goes through the engine's interpreter, contact by contact, with delays, waits, caps and
        quiet hours on the clock of then. Nothing is sent and nothing written. Contacts are taken as they are today: what they were
        like in the past is not kept.

        `against="published"` (or the number of a version) compares it with that. `segment="whales"` takes its members only: those of now,
        whenever they entered. `sample=0.1` takes a tenth of the contacts, always the same ones. `processes` is how many help; as many as
        there are cores unless told.
        """
        from workbench.backtest.run import BacktestRequest, backtested
        from workbench.backtest.source import ContactSample

        asked = BacktestRequest(during, ContactSample(sample, segment), processes)
        return backtested(self._connected(), self._draft, self._server.record, against, asked)

    @usage_example('.send_test({"contact": {"email": "ada@example.com"}}, email="me@example.com")')
    def send_test(self, event: Mapping[str, Any], *, node: str | None = None, **to: Unpack[TestReceivers]) -> TestSent:
        """Send what it would send for `event` to yourself: to `email`, `wallet_address`, or `url` for webhooks; return what became of it.

        `event` is as for `.simulate`; the texts are those that its contact would get. They are marked as tests, nobody else gets them, and
        nothing counts them. `node` means one message alone. The draft is saved for that, not published.
        """
        self.save()
        return send_test(self._connected(), self._saved().id, self._draft, event, cast("dict[str, str]", to), node)

    # Publishing

    @usage_example(".save()")
    def save(self, *, overwrite: bool = False) -> Self:
        """Save the draft under its name; the published version stays. Raises ConflictError when someone else changed it."""
        connection = self._connected()
        self._server.record = publishing.save(connection, self._draft, self._server.record, overwrite=overwrite)
        return self

    @usage_example(".publish()")
    def publish(self, *, overwrite: bool = False) -> Self:
        """Save, publish a new version and switch it on: from now on events start it.

        Entries of earlier versions finish on their version; `.impact` counts them. Raises PublishError listing the errors by node,
        and ConflictError when someone else changed it.
        """
        connection = self._connected()
        publishing.raise_on_errors(self.name, self._draft.remarks())
        self.save(overwrite=overwrite)
        self._server.record = publishing.publish(connection, self._saved())
        return self

    @usage_example(".plan() or .plan(against=2)")
    def plan(self, *, against: int | None = None) -> Plan:
        """Return what publishing would change, compared with the live version or with `against`, and which entries still run."""
        return planned(self._draft, self._server.record, self._connected(), against)

    @usage_example(".rollback(1); .versions() shows which there are")
    def rollback(self, version: int) -> Self:
        """Publish the content of an earlier version as a new version. Unpublished changes stay in the draft."""
        before = self._saved()
        self._server.record = record = publishing.rollback(self._connected(), before, version)
        return self._with(record.draft()) if publishing.unchanged(self._draft, before) else self

    @property
    def impact(self) -> Impact | None:
        """The entries of earlier versions at the last publication from here; None without one."""
        return self._server.record.impact if self._server.record is not None else None

    def activate(self) -> Self:
        """Let events start it again."""
        return self._switch("activate")

    def deactivate(self) -> Self:
        """Switch it off: no event starts it, and waiting entries are cancelled."""
        return self._switch("deactivate")

    def pause(self) -> Self:
        """Pause it: no event starts it, and entries stop at their next step. No entry is cancelled."""
        return self._switch("pause")

    @usage_example('.resume() or .resume(overdue="cancel")')
    def resume(self, *, overdue: publishing.Overdue = "run") -> Self:
        """Resume it after `.pause()`. Steps that came due meanwhile run now; `overdue="cancel"` ends those entries instead."""
        self._server.record = publishing.resume(self._connected(), self._saved(), overdue)
        return self

    def archive(self) -> Self:
        """Archive it permanently; its history stays."""
        return self._switch("archive")

    def versions(self) -> Versions:
        """Return the published versions, newest first."""
        return publishing.versions(self._connected(), self._saved())

    @usage_example(".audit() or .audit(limit=500)")
    def audit(self, limit: int = 100) -> "pl.DataFrame":
        """Return a frame of its changes, newest first: when, with which key, and from which live version to which."""
        return audit(self._connected(), limit, subject_id=self._saved().id)

    # Monitoring

    @usage_example(".stats() or .stats(days=7)")
    def stats(self, *, days: int = 30) -> Stats:
        """Return how it is doing now: who stands at which step, what happened there, what failed, and the goal rate of these `days`."""
        return stats(self._connected(), self._saved(), days)

    @usage_example(".dashboard() or .dashboard(days=7)")
    def dashboard(self, *, days: int = 30) -> Dashboard:
        """Show `stats` as a widget that reads the figures again every few seconds and can replay failed entries."""
        connection, record = self._connected(), self._saved()
        return Dashboard(lambda: stats(connection, record, days))

    @usage_example('.entries() or .entries(limit=200, state="waiting")')
    def entries(self, limit: int = 50, *, state: str | None = None) -> Entries:
        """Return the newest entries: one per event that started it; of those that stand in a state when it is given."""
        return watching.list_entries(self._connected(), self._saved().id, limit, state)

    def dead_letters(self) -> DeadLetters:
        """Return what failed permanently, by cause; its `.replay()` tries it again."""
        return dead_letters(self._connected(), self._saved().id)

    @usage_example(
        '.wait_for_entry(receipt) or .wait_for_entry(receipt, until="waiting"), where receipt = wb.events.send("deposit", …)'
    )
    def wait_for_entry(self, event: Receipt | str, timeout: float = 30.0, *, until: Until = "ended") -> Entry:
        """Wait until the entry that one event started ends, or until it waits, and return it.

        `event` is the receipt of `wb.events.send`, an idempotency key or an event id.
        """
        key = _key_of(event)
        entry = watching.find_entry(self._connected(), self._saved().id, key)
        if entry is None:
            raise NotFoundError(
                f"that event did not start {self.name!r}. Either it was not active when the event came, or the event does not pass "
                "its filters: .simulate(event) says which"
            )
        return entry.wait(timeout, until=until)

    def _connected(self) -> Connection:
        if self._server.connection is None:
            raise InvalidAutomationError(
                'this automation is not connected to a server: wb.automation("name") makes one that is'
            )
        return self._server.connection

    def _saved(self) -> AutomationRecord:
        if self._server.record is None:
            raise NotFoundError(f"{self.name!r} is not on the server yet: .save() or .publish() puts it there")
        return self._server.record

    def _switch(self, action: publishing.Switch) -> Self:
        self._server.record = publishing.switch(self._connected(), self._saved(), action)
        return self

    def _unseen(self) -> list[Diagnostic]:
        """Return warnings about events, values, segments and contracts that the server has not seen."""
        if self._server.catalog is None:
            return []
        try:
            trigger, graph = self._draft.language()
            known = seen(self._server.catalog, events_of(trigger, graph))
            if segments_of(graph):
                known = msgspec.structs.replace(known, segments=segment_names(self._connected()))
            if uses_chain(trigger, graph):
                known = msgspec.structs.replace(known, chain=chained(self._connected()))
            return [*check_against(known, trigger, graph)]
        except WorkbenchError:
            return []  # the automation can be looked at without a server

    def _archive_remarks(self) -> list[Diagnostic]:
        if not self._server.archived or self._server.record is not None:
            return []
        return [
            Diagnostic("warning", f"an archived automation is called {self.name!r} too; saving this one begins anew")
        ]

    def _status_pills(self) -> list[tuple[str, str]]:
        record = self._server.record
        if record is None:
            return [("draft, not saved", "warn")]
        return (
            record.pills()
            if publishing.unchanged(self._draft, record)
            else [*record.pills(), ("unsaved changes", "warn")]
        )

    def __repr__(self) -> str:
        states = ", ".join(text for text, _ in self._status_pills())
        remarks = [f"{'✗' if each.level == 'error' else '!'} {each}" for each in self.check()]
        impact = [repr(self.impact)] if self.impact is not None and self.impact.entries else []
        return "\n".join([f"{self.name} ({states})", *sentence_lines(self._draft), *remarks, *impact])

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
        )


_EMPTY = 'Empty so far. Begin with .on("deposit"), or draw it: .canvas().'


def _key_of(sent: Receipt | str) -> str:
    """Return the idempotency key (or event id) by which an entry is found."""
    if isinstance(sent, str):
        return sent
    if not isinstance(sent, Receipt):
        raise InvalidAutomationError("give the event: a receipt of wb.events.send, an idempotency key or an event id")
    if sent.dry_run:
        raise NotFoundError(
            "that was a dry run, and dry runs make no entries: send it with a live key and without test=True"
        )
    if not sent.accepted and not sent.unknown:
        raise NotFoundError(f"that event was not stored, so it started nothing: {sent.error}")
    return sent.idempotency_key
