"""An automation at the notebook: the verbs that write it, and those that check, simulate, publish and watch it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import msgspec

from api.language.catalog import check_against, events_of, is_on_chain, segments_of
from api.language.check import Remark
from workbench import entries as watching
from workbench import publish as publishing
from workbench.audit import audit
from workbench.author import Draft, from_json
from workbench.catalog import Catalog, seen
from workbench.chains import chained
from workbench.connection import Connection
from workbench.dead_letters import DeadLetters, dead_letters
from workbench.display.graph import draw, picture
from workbench.display.page import html
from workbench.entries import Entries, Entry, Until
from workbench.errors import DraftError, NotThereError, WorkbenchError, spoken
from workbench.events import Receipt
from workbench.impact import Impact
from workbench.known_segments import known_names
from workbench.periods import During
from workbench.plan import Plan, planned
from workbench.publish import Record, Versions
from workbench.send_test import Addresses, TestSent, send_test
from workbench.simulate import Simulation, Trial, simulated
from workbench.texts.besides import Besides
from workbench.texts.forms import as_python, described, spoken_lines, understood, with_besides
from workbench.verbs import Rules
from workbench.watch.figures import Stats, stats
from workbench.watch.live import Live

if TYPE_CHECKING:  # polars takes 0.3 s to load
    import polars as pl

    from workbench.backtest.result import Backtest
    from workbench.backtest.verb import Against
    from workbench.canvas.widget import Canvas


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
        self._canvases: dict[bool, Canvas] = {}  # by whether they are for looking only

    @classmethod
    def from_json(cls, payload: Mapping[str, Any]) -> Self:
        """Return the automation in a contract payload (`name`, `triggerSpec`, `graph`); nothing is lost."""
        return cls(from_json(payload))

    @classmethod
    def from_sentences(cls, text: str, *, name: str) -> Self:
        """Return the automation that sentences tell, as `describe` writes them; raises DraftError naming the line that is not one."""
        return cls(understood(name, text))

    def _with(self, draft: Draft) -> Self:
        return type(self)(draft, self._place)

    @property
    def name(self) -> str:
        """The name by which it is saved and opened."""
        return self._draft.name

    # Writing

    @spoken(".retold(text), where text is like what .describe() returns")
    def retold(self, text: str) -> Self:
        """Write it anew, from sentences."""
        return self._with(understood(self.name, text))

    @spoken('.besides({"nodes.add_tag_vip.data.label": "VIP"})')
    def besides(self, values: Mapping[str, object], *, without: Sequence[str] = ()) -> Self:
        """Set what no verb says, by its path: positions, foreign keys, ids of edges. `without`: paths to take out."""
        return self._with(with_besides(self._draft, Besides(dict(values), tuple(without))))

    # Reading

    def to_json(self) -> dict[str, Any]:
        """Return the contract's payload: `name`, `triggerSpec`, `graph`."""
        return self._draft.payload()

    def check(self) -> tuple[Remark, ...]:
        """Return every remark, errors first: errors stand against publishing, warnings are worth a look."""
        return (*self._draft.remarks(), *self._archived(), *self._unseen())

    def describe(self) -> str:
        """Return the automation in plain sentences, and below them what no sentence says. `from_sentences` reads it back."""
        return described(self._draft)

    def to_python(self) -> str:
        """Return the code that writes this automation."""
        return as_python(self._draft)

    def svg(self) -> str:
        """Return the graph as an SVG document."""
        return draw(*self._draft.language(), chosen=self._draft.places())[0]

    # Drawing

    @spoken(".canvas() or .canvas(height=800), .canvas(read_only=True)")
    def canvas(self, *, height: int = 640, read_only: bool = False) -> "Canvas":
        """Open it on a canvas, to draw it, test it, publish it and watch it. What is drawn there is this automation from then on.

        `canvas.automation` is what is drawn; assign another value of it, `a.add_tag("vip")` say, and that is shown. `height` in pixels.
        """
        from workbench.canvas.widget import Canvas  # loads the widgets, which whoever only writes code does not need

        if read_only not in self._canvases:
            self._canvases[read_only] = Canvas(self, height=height, read_only=read_only)
        canvas = self._canvases[read_only]
        canvas.height = height
        return canvas

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
        saved = None if record is None else record.id
        simulation = simulated(self._draft, Trial(event, contact, now, events, automation_id=saved), speaks)
        simulation.note = record.off() if record is not None else ""
        return simulation

    @spoken('.backtest(days=30) or .backtest(days=30, against="published", segment="whales", sample=0.1)')
    def backtest(
        self,
        *,
        against: "Against | None" = None,
        segment: str | None = None,
        sample: float = 1.0,
        processes: int | None = None,
        **during: Unpack[During],
    ) -> "Backtest":
        """Return what it would have done in the last `days` (30 unless told), or from `since` up to `until`, had it run then.

        Every event that was stored in that time goes through the engine's interpreter, contact by contact, with delays, waits, caps and
        quiet hours on the clock of then. Nothing is sent and nothing written. Contacts are taken as they are today: what they were
        like in the past is not kept.

        `against="published"` (or the number of a version) compares it with that. `segment="whales"` takes its members only: those of now,
        whenever they entered. `sample=0.1` takes a tenth of the contacts, always the same ones. `processes` is how many help; as many as
        there are cores unless told.
        """
        from workbench.backtest.run import Asked
        from workbench.backtest.source import Whom
        from workbench.backtest.verb import backtested

        asked = Asked(during, Whom(sample, segment), processes)
        return backtested(self._connected(), self._draft, self._place.record, against, asked)

    @spoken('.send_test({"contact": {"email": "ada@example.com"}}, email="me@example.com")')
    def send_test(self, event: Mapping[str, Any], *, node: str | None = None, **to: Unpack[Addresses]) -> TestSent:
        """Send what it would send for `event` to yourself: to `email`, `wallet_address`, or `url` for webhooks; return what became of it.

        `event` is as for `.simulate`; the texts are those that its contact would get. They are marked as tests, nobody else gets them, and
        nothing counts them. `node` means one message alone. The draft is saved for that, not published.
        """
        self.save()
        return send_test(self._connected(), self._saved().id, self._draft, event, cast("dict[str, str]", to), node)

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

    @spoken(".plan() or .plan(against=2)")
    def plan(self, *, against: int | None = None) -> Plan:
        """Return what publishing would change: from the live version, or `against` another, and whom it finds on their way."""
        return planned(self._draft, self._place.record, self._connected(), against)

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

    def pause(self) -> Self:
        """Let it stand still: no event starts it, and whoever is on the way rests once it is due. Nobody is cancelled."""
        return self._switch("pause")

    @spoken('.resume() or .resume(overdue="cancel")')
    def resume(self, *, overdue: publishing.Overdue = "run") -> Self:
        """Let it go on after `.pause()`. What came due meanwhile happens now; `overdue="cancel"` ends those entries instead."""
        self._place.record = publishing.resume(self._connected(), self._saved(), overdue)
        return self

    def archive(self) -> Self:
        """Put it away for good; its history stays."""
        return self._switch("archive")

    def versions(self) -> Versions:
        """Return the published versions, newest first."""
        return publishing.versions(self._connected(), self._saved())

    @spoken(".audit() or .audit(limit=500)")
    def audit(self, limit: int = 100) -> "pl.DataFrame":
        """Return who changed it, newest first: when, with which key, and from which live version to which."""
        return audit(self._connected(), limit, subject_id=self._saved().id)

    # Watching

    @spoken(".stats() or .stats(days=7)")
    def stats(self, *, days: int = 30) -> Stats:
        """Return how it is doing now: who stands at which step, what happened there, what failed, and the goal rate of these `days`."""
        return stats(self._connected(), self._saved(), days)

    @spoken(".live() or .live(days=7)")
    def live(self, *, days: int = 30) -> Live:
        """Watch those figures: they are asked for again while somebody looks, and what failed has a button that tries it again."""
        connection, record = self._connected(), self._saved()
        return Live(lambda: stats(connection, record, days))

    @spoken('.entries() or .entries(limit=200, state="waiting")')
    def entries(self, limit: int = 50, *, state: str | None = None) -> Entries:
        """Return the newest entries: one per event that started it; of those that stand in a state when it is given."""
        return watching.listed(self._connected(), self._saved().id, limit, state)

    def dead_letters(self) -> DeadLetters:
        """Return what failed for good, by cause; its `.replay()` tries it again."""
        return dead_letters(self._connected(), self._saved().id)

    @spoken('.watch(receipt) or .watch(receipt, until="waiting"), where receipt = wb.events.send("deposit", …)')
    def watch(self, sent: Receipt | str, timeout: float = 30.0, *, until: Until = "ended") -> Entry:
        """Watch the entry that one event started until it ends, or until it waits, and return it.

        `sent` is the receipt of `wb.events.send`, an idempotency key or an event id.
        """
        key = _key_of(sent)
        entry = watching.started_by(self._connected(), self._saved().id, key)
        if entry is None:
            raise NotThereError(
                f"that event did not start {self.name!r}. Either it was not active when the event came, or the event does not pass "
                "its filters: .simulate(event) says which"
            )
        return entry.wait(timeout, until=until)

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
        """Warn about events and values that nobody has sent, and segments that nobody has defined: why nothing happens."""
        if self._place.catalog is None:
            return []
        try:
            trigger, graph = self._draft.language()
            known = seen(self._place.catalog, events_of(trigger, graph))
            if segments_of(graph):
                known = msgspec.structs.replace(known, segments=known_names(self._connected()))
            if is_on_chain(trigger, graph):
                known = msgspec.structs.replace(known, chained=chained(self._connected()))
            return [*check_against(known, trigger, graph)]
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
        return "\n".join([f"{self.name} ({states})", *spoken_lines(self._draft), *remarks, *impact])

    def _repr_html_(self) -> str:
        trigger, graph = self._draft.language()
        return html(
            "automation.html.j2",
            name=self.name,
            pills=self._pills(),
            picture=picture(trigger, graph, chosen=self._draft.places()) if graph.nodes else _EMPTY,
            remarks=self.check() if graph.nodes else self._archived(),
            sentences="\n".join(spoken_lines(self._draft)),
            impact=self.impact,
        )


_EMPTY = 'Empty so far. Begin with .on("deposit"), or draw it: .canvas().'


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
