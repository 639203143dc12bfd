"""Automations on the server: find, save, publish, switch on and off, and what a publication means for running entries.

Every write names the revision that it started from. If two users edit the same automation, the second gets a
ConflictError and no change is lost. Entries that already run finish on the version they entered, unless a publication
moves them (`moves`).
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal

import msgspec

from workbench.catalog import MAX_LISTED, MAX_SHAPES, Catalog
from workbench.chain import chains
from workbench.changes import Changes, changes
from workbench.connection import Connection
from workbench.connections import read_connections
from workbench.display.html import (
    TableColumn,
    TableSequence,
    TableView,
    html,
    moment,
    plain,
    printable_text,
    table,
    table_columns,
)
from workbench.display.words import join_and, quantity
from workbench.draft import Draft, from_json
from workbench.errors import (
    ConflictError,
    InvalidArgumentError,
    InvalidAutomationError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    PublishError,
    SqlError,
    WorkbenchError,
    usage_example,
)
from workbench.language.check import (
    EVERY_EVENT,
    CatalogFacts,
    Consent,
    Diagnostic,
    Need,
    compares_attributes,
    errors,
    events_of,
    needs_of,
    segments_of,
    uses_chain,
    without_consent,
)
from workbench.language.codec import normalize
from workbench.language.connections import connections_of
from workbench.language.graph import Graph
from workbench.language.problem import Problem
from workbench.language.responses import (
    MAX_STOPPED_ENTRIES,
    AutomationView,
    ChangeView,
    EarlierView,
    ImpactView,
    PropertiesView,
    StoppedView,
)
from workbench.language.starts import StartSource
from workbench.language.trigger import Trigger
from workbench.moves import MoveArgument, MoveResult, await_move, move_argument
from workbench.segments import count_missing, count_missing_in_segment, segment_names

Action = Literal["activate", "deactivate", "archive", "pause", "resume", "rollback"]
Overdue = Literal["run", "cancel"]
"""What happens to steps that came due while the automation was paused."""


class EarlierEntries(EarlierView, frozen=True, rename="camel"):
    """The number of entries of a version that are at a step in a state.

    `version`: None for entries from before the first publication. `then` says what the server does with them.
    """

    def consequence(self) -> str:
        """Return what happens to the entries, as the end of a sentence that begins with them."""
        match self.then:
            case "no_published_version":
                return "end at once: nothing was published when they entered"
            case "automation_inactive":
                return "are cancelled: the automation is off"
            case _:
                return f"finish on version {self.version}"


class Impact(ImpactView, frozen=True):
    """The entries of earlier versions that had not ended when a version was published."""

    entries: int = 0
    earlier: tuple[EarlierEntries, ...] = ()

    def headline(self) -> str:
        """Return how many entries of earlier versions have not ended."""
        if not self.entries:
            return "All entries of earlier versions have ended."
        verb = "has" if self.entries == 1 else "have"
        return f"{quantity(self.entries, 'entry', 'entries')} of earlier versions {verb} not ended"

    def table(self) -> tuple[Sequence[TableColumn], Sequence[Sequence[str]]]:
        """Return columns and rows, the newest version first."""
        rows = [
            (
                str(group.version or "none"),
                group.node_id or "not started",
                group.state,
                str(group.entries),
                group.consequence(),
            )
            for group in self.earlier
        ]
        return _IMPACT_COLUMNS, rows

    @printable_text
    def __repr__(self) -> str:
        return f"{self.headline()}\n{plain(*self.table())}" if self.entries else self.headline()

    def _repr_html_(self) -> str:
        return table(*self.table(), title=self.headline() if self.entries else "", empty=self.headline())


_IMPACT_COLUMNS = table_columns("version", "step", "state", "entries", "consequence", numbers=("entries",))


class Stopped(StoppedView, frozen=True, rename="camel"):
    """The numbers of what a stop or pause stopped. Without `stopped_at`: of what a resume started, or a stop would."""

    def counts(self) -> str:
        """Return the numbers of automations, entries and messages."""
        automations, entries = quantity(self.automations, "automation"), quantity(self.entries, "entry", "entries")
        if self.entries == MAX_STOPPED_ENTRIES:  # the server counts no further; a resume counts all
            entries = f"at least {entries}"
        return join_and([automations, entries, f"{quantity(self.unsent, 'message')} not sent yet"])

    def sentence(self) -> str:
        """Return what is stopped, or runs again, and what may still arrive."""
        if self.stopped_at is None:
            return f"Running again: {self.counts()}."
        leaving = f" {quantity(self.leaving, 'message')} being sent now may still arrive." if self.leaving else ""
        return f"Stopped: {self.counts()}.{leaving}"

    @printable_text
    def __repr__(self) -> str:
        return self.sentence()

    def _repr_html_(self) -> str:
        state, look = ("live", "good") if self.stopped_at is None else ("paused", "warn")
        return html("line.html.j2", text=self.sentence(), state=state, look=look, note="", block="")


class AutomationRecord(AutomationView, frozen=True, rename="camel"):
    """An automation as the server returns it. `trigger_spec` and `graph` are the draft, not the published version.

    `impact` is set in the response to a publication, `moves` in that to one that moves entries, `stopped` in the
    response to a pause.
    """

    impact: Impact | None = None
    stopped: Stopped | None = None
    moves: MoveResult | None = None

    def draft(self) -> Draft:
        return from_json({"name": self.name, "triggerSpec": self.trigger_spec, "graph": self.graph})

    def pills(self) -> list[tuple[str, str]]:
        """Return the automation's state and version, each a short text and a colour."""
        if self.archived_at is not None:
            return [("archived", "warn")]
        version = [] if self.published_version is None else [(f"version {self.published_version}", "busy")]
        return [(self.state, "good" if self.state == "live" else "warn"), *version]

    def inactive_reason(self) -> str:
        """Return why events do not start a published automation; empty if they do, or if it was never published."""
        if self.archived_at is not None:
            return "It is archived: no event starts it."
        if self.state == "paused":
            return "It is paused: no event starts it until .resume()."
        return "It is off now: no event starts it until .activate() or .publish()." if self.state == "off" else ""


class SavedAutomation:
    """The server that an automation belongs to, and its record there. Shared by all values made from one automation.

    `record`: None until it is saved. `archived`: an archived automation has this name, and no other one has it.
    `catalog`: None without a server or a key.
    """

    def __init__(
        self, connection: Connection | None = None, record: AutomationRecord | None = None, *, archived: bool = False
    ) -> None:
        self.connection = connection
        self.record = record
        self.archived = archived
        self.catalog = Catalog(connection) if connection is not None and connection.has_key else None

    def facts(self, trigger: Trigger, graph: Graph) -> CatalogFacts | None:
        """Return what the server has stored under the names in an automation; None without a server or a key.

        Raises the errors of `Catalog`.
        """
        if self.catalog is None or self.connection is None:
            return None
        names, paths, types = self.catalog.names, {}, {}
        undeliverable: dict[str, tuple[int, int]] = {}
        # A name that was never sent, such as an unfinished one, needs no request. A full list may lack rare names.
        named = [name for name in events_of(trigger, graph) if name in names or len(names) == MAX_LISTED]
        if trigger.is_wildcard:  # the most frequent events stand for all
            named += [name for name in names if name not in named]
        for name in named[:MAX_SHAPES]:
            with suppress(NotFoundError):
                shape = self.catalog[name]
                types[name] = {path.path: tuple(path.types) for path in shape.paths}
                paths[name] = frozenset(types[name])
                undeliverable[name] = shape.undeliverable, shape.sampled
        if trigger.is_wildcard:
            counts = undeliverable.values()
            undeliverable[EVERY_EVENT] = sum(foreign for foreign, _ in counts), sum(sampled for _, sampled in counts)
        # Segments and contracts cost a request each, so they are read only for an automation that uses them.
        segments = segment_names(self.connection) if segments_of(trigger, graph) else None
        connections = read_connections(self.connection) if connections_of(graph) else None
        topics = None
        if graph.named_topics:
            topics = tuple(topic["name"] for topic in self.connection.get("/topics")["topics"])
        missing: dict[Need, dict[str | None, tuple[int, int]]] = {}
        is_sample = False
        if needs := needs_of(trigger, graph)[:_MAX_NEEDS]:
            attribute = graph.settings.locale_attribute
            with suppress(PermissionDeniedError, SqlError):  # the key may not run SQL, or there are too many contacts
                if isinstance(trigger.source, StartSource):
                    segment = trigger.source.segment
                    missing, is_sample = count_missing_in_segment(self.connection, segment, needs, attribute)
                else:
                    since = self.catalog.newest_since(trigger.names)
                    missing = count_missing(self.connection, since, needs, attribute)
        attributes: dict[str, tuple[str, ...]] = {}
        if compares_attributes(trigger, graph):
            with suppress(PermissionDeniedError):
                properties = msgspec.convert(self.connection.get("/contacts/properties"), PropertiesView)
                attributes = {path.path: tuple(path.types) for path in properties.paths}
        events = tuple(dict.fromkeys((*names, *paths)))
        facts = CatalogFacts(
            events,
            paths,
            types,
            attributes,
            segments,
            connections,
            topics,
            undeliverable=undeliverable,
            missing=missing,
            is_sample=is_sample,
        )
        if uses_chain(trigger, graph):
            with suppress(WorkbenchError):
                return msgspec.structs.replace(facts, chain=chains(self.connection).facts())
        return facts


_MAX_NEEDS = 100  # values that are counted in one query


class Version(msgspec.Struct, frozen=True, rename="camel"):
    """A published version; it never changes."""

    version: int
    published_at: str = ""
    trigger_spec: dict[str, Any] = {}
    graph: dict[str, Any] = {}

    def payload(self) -> dict[str, Any]:
        """Return trigger spec and graph. The name does not belong to a version."""
        return {"triggerSpec": self.trigger_spec, "graph": self.graph}


class VersionDiff(msgspec.Struct, frozen=True):
    """The differences between two versions, displayed as sentences. True if the versions differ."""

    before: int
    after: int
    changes: Changes

    def __bool__(self) -> bool:
        return bool(self.changes)

    def headline(self) -> str:
        """Return how many differences there are."""
        return f"Version {self.after} against version {self.before}: {self.changes.summary()}"

    @printable_text
    def __repr__(self) -> str:
        return "\n".join([self.headline(), *self.changes.lines()])

    def _repr_html_(self) -> str:
        return html("plan.html.j2", headline=self.headline(), note="", picture="", changes=self.changes, impact=None)


class AuditEntry(ChangeView, frozen=True, rename="camel"):
    """A change of an automation; `by` is the name of the key that made it, or the key's id."""

    @printable_text
    def __str__(self) -> str:
        return f"{self.action.removeprefix('automation.')} by {self.by or 'an unknown key'}, {moment(self.at)} UTC"


class Versions(TableSequence[Version]):
    """The published versions, newest first."""

    def __init__(self, versions: Sequence[Version]) -> None:
        super().__init__(tuple(sorted(versions, key=lambda version: -version.version)))

    @usage_example(".diff(1, 2) or .diff(1), against the newest")
    def diff(self, before: int, after: int | None = None) -> VersionDiff:
        """Return the differences of version `after` (default: the newest) from version `before`.

        Raises NotFoundError for an unknown version.
        """
        newest = self[0].version if self else 0
        old, new = self.numbered(before), self.numbered(newest if after is None else after)
        return VersionDiff(old.version, new.version, changes(old.payload(), new.payload()))

    def numbered(self, number: int) -> Version:
        """Return the version with this number; raise NotFoundError if it is unknown."""
        for version in self:
            if version.version == number:
                return version
        raise NotFoundError(f"version not found: {number}. {quantity(len(self), 'version')} published; see .versions()")

    def _view(self) -> TableView:
        columns = table_columns("version", "published at (UTC)", "against the previous", numbers=("version",))
        previous = {later.version: earlier for later, earlier in pairwise(self)}
        rows = []
        for version in self:
            before = previous.get(version.version)
            if before is None:  # version 1, or the oldest of the newest hundred
                text = "the first" if version.version == 1 else ""
            else:
                items = changes(before.payload(), version.payload()).items
                rest = len(items) - _MAX_SHOWN_CHANGES
                more = [f"and {rest} more"] if rest > 0 else []
                text = "; ".join([*map(str, items[:_MAX_SHOWN_CHANGES]), *more]) or "nothing that matters"
            rows.append((version.version, moment(version.published_at), text))
        note = "Compare two versions: .diff(1, 2)" if len(self) > 1 else ""
        return TableView(columns, rows, "", "Never published.", note)


_MAX_SHOWN_CHANGES = 3


class Automations(TableSequence[AutomationRecord]):
    """The automations of the organization, newest first. `wb.automations` reads them again each time."""

    def __call__(self) -> "Automations":
        """Return itself, so that `wb.automations()` works like `wb.automations`."""
        return self

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            raise InvalidArgumentError(f"to open an automation by its name, write wb.automation({index!r})")
        return super().__getitem__(index)

    def _view(self) -> TableView:
        columns = table_columns("name", "state", "changed at (UTC)")
        rows = [
            (record.name, ", ".join(text for text, _ in record.pills()), moment(record.updated_at)) for record in self
        ]
        note = 'Open one with wb.automation("name")' if self else ""
        return TableView(columns, rows, "Automations", 'No automations yet. wb.automation("a name") starts one.', note)


_PAGE = _MAX_VERSIONS = 100  # the most that the server lists in one response


def list_automations(connection: Connection, name: str | None = None) -> Automations:
    """Return the newest page of automations, or those with one name."""
    body = connection.get("/automations", name=name)
    return Automations(msgspec.convert(body["automations"], tuple[AutomationRecord, ...]))


def all_automations(connection: Connection) -> list[AutomationRecord]:
    """Return all automations that are not archived, newest first."""
    records: list[AutomationRecord] = []
    while True:
        # By id and not by offset, so that an automation created meanwhile neither repeats nor hides one.
        before = records[-1].id if records else None
        body = connection.get("/automations", limit=_PAGE, before=before)
        page = msgspec.convert(body["automations"], list[AutomationRecord])
        records += page
        if len(page) < _PAGE:
            return records


def find(connection: Connection, name: str) -> AutomationRecord | None:
    """Return the automation with that name that is not archived, or None."""
    for record in list_automations(connection, name):
        if record.name == name and record.archived_at is None:
            return record
    return None


def was_archived(connection: Connection, name: str) -> bool:
    """Return whether an archived automation has that name."""
    return bool(connection.get("/automations", name=name, archived="true", limit=1)["automations"])


def live_version(connection: Connection, record: AutomationRecord) -> Version | None:
    """Return the published version, or None."""
    if record.published_version is None:
        return None
    # Newest first, and the newest version is always the live one: a rollback publishes a new version.
    body = connection.get(f"/automations/{record.id}/versions", limit=1)
    return msgspec.convert(body["versions"][0], Version)


def versions(connection: Connection, record: AutomationRecord) -> Versions:
    """Return the newest hundred published versions."""
    body = connection.get(f"/automations/{record.id}/versions", limit=_MAX_VERSIONS)
    return Versions(msgspec.convert(body["versions"], list[Version]))


def impact(connection: Connection, record: AutomationRecord) -> Impact:
    """Return the entries that publishing would leave on earlier versions now."""
    return msgspec.convert(connection.get(f"/automations/{record.id}/impact")["impact"], Impact)


def last_change(connection: Connection, record: AutomationRecord) -> AuditEntry | None:
    """Return the newest change in the automation's audit log, or None."""
    # Not `/audit`, which shows a key without keys:admin only some of the changes.
    body = connection.get(f"/automations/{record.id}/changes", limit=1)
    return next(iter(msgspec.convert(body["changes"], list[AuditEntry])), None)


def save(
    connection: Connection, draft: Draft, opened: AutomationRecord | None, *, overwrite: bool = False
) -> AutomationRecord:
    """Create or update the automation with the draft's name and return it. Nothing is written if the draft is
    unchanged.

    Raises ConflictError if the server's revision is not that of `opened`, unless `overwrite` is True.
    """
    name = draft.name
    if not name.strip():
        raise InvalidAutomationError("an automation needs a name")
    current = find(connection, name)
    if current is None:
        return _record(connection.post("/automations", draft.payload()))
    if not overwrite and opened is None:
        raise ConflictError(
            f"an automation named {name!r} already exists. Open it with wb.automation({name!r}), "
            "or pass overwrite=True to replace it"
        )
    if not overwrite and opened is not None and opened.revision != current.revision:
        revisions = f"yours is revision {opened.revision}, the server's is {current.revision}"
        raise ConflictError(f"{_conflict_text(name)} ({revisions})")
    if unchanged(draft, current):  # every write raises the revision, which makes drafts opened elsewhere stale
        return current
    try:
        return _record(connection.put(f"/automations/{current.id}", draft.payload() | {"revision": current.revision}))
    except ConflictError as error:  # changed between reading it above and writing it
        raise error.rephrased(_conflict_text(name)) from None


def publish(connection: Connection, record: AutomationRecord, move: MoveArgument = "none") -> AutomationRecord:
    """Publish the saved draft, switch it on, and return the automation. Raises PublishError naming nodes."""
    published = release(connection, record, move)
    if published.active:
        return published
    # Only the response to the publication has the impact and the move.
    activated = change(connection, published, "activate")
    return msgspec.structs.replace(activated, impact=published.impact, moves=published.moves)


def release(connection: Connection, record: AutomationRecord, move: MoveArgument = "none") -> AutomationRecord:
    """Publish the saved draft without switching it on or off, and return the automation.

    Raises PublishError naming nodes, and ConflictError if the draft was saved again since `record`.
    """
    body = {"revision": record.revision} | ({} if move == "none" else {"move": move_argument(move)})
    try:
        published = _record(connection.post(f"/automations/{record.id}/publish", body))
        if published.moves is None:
            return published
        return msgspec.structs.replace(published, moves=await_move(connection, record.id, published.moves))
    except ConflictError as error:
        raise error.rephrased(_conflict_text(record.name)) from None
    except InvalidRequestError as error:
        problems = error.problems or (Problem("", str(error)),)
        raise error.rephrased(_unpublishable(record.name, problems), PublishError) from None


def change(connection: Connection, record: AutomationRecord, action: Action, **arguments: object) -> AutomationRecord:
    """Perform an action and return the automation. `rollback` takes a `version`, `resume` may take `overdue`."""
    return _record(connection.post(f"/automations/{record.id}/{action}", arguments))


def read_stop(connection: Connection) -> Stopped:
    """Return what is stopped, or what a stop would stop now (`stopped_at` None)."""
    return msgspec.convert(connection.get("/stop"), Stopped)


def stop_all(connection: Connection) -> Stopped:
    """Stop every automation of the organization and return what was stopped."""
    return msgspec.convert(connection.post("/stop"), Stopped)


def resume_all(connection: Connection, overdue: Overdue = "run") -> Stopped:
    """Resume what was stopped and return it."""
    return msgspec.convert(connection.post("/resume", {"overdue": overdue}), Stopped)


def unchanged(draft: Draft, record: AutomationRecord) -> bool:
    """Return whether the draft is equal to the saved one."""
    payload = normalize(draft.payload())  # as the server returns it: floats as decimals, tuples as lists
    return bool(payload["triggerSpec"] == record.trigger_spec and payload["graph"] == record.graph)


def raise_on_errors(name: str, remarks: tuple[Diagnostic, ...], agreed: Collection[Consent]) -> None:
    """Raise PublishError if there are errors among the remarks, or warnings that need consent."""
    problems = tuple(Problem(error.node_id or error.field or "", error.message) for error in errors(remarks))
    problems += tuple(
        Problem(warning.node_id or warning.field or "", f"{warning.message}. If you mean it: .publish({consent}=True)")
        for warning, consent in without_consent(remarks, agreed)
    )
    if problems:
        raise PublishError(_unpublishable(name, problems), problems)


def _record(body: dict[str, Any]) -> AutomationRecord:
    return msgspec.convert(body, AutomationRecord)


def _unpublishable(name: str, problems: tuple[Problem, ...]) -> str:
    return "\n".join([f"{name!r} cannot be published yet:", *(f"  • {problem}" for problem in problems)])


def _conflict_text(name: str) -> str:
    return (
        f"someone else changed {name!r} since you opened it. Run wb.automation({name!r}) again and make your change "
        "there, or pass overwrite=True to replace their version with yours"
    )
