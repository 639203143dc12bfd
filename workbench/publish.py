"""Automations on the server: find, save, publish, switch on and off. Whoever saves says which revision they started from."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from api.language.check import Remark, errors
from api.language.codec import normalise
from api.language.problem import Problem
from workbench.author import Draft, from_json
from workbench.changes import Changes, changes
from workbench.connection import Connection
from workbench.display.page import html, moment
from workbench.display.table import Column, plain, table
from workbench.display.words import counted
from workbench.errors import DraftError, NotThereError, PublishError, RefusedError, StaleError, spoken
from workbench.impact import Impact

Verb = Literal["activate", "deactivate", "archive", "pause"]
Overdue = Literal["run", "cancel"]
"""What becomes of what came due while an automation was paused."""


class Record(msgspec.Struct, frozen=True, rename="camel"):
    """An automation as the server holds it. `trigger_spec` and `graph` are the draft, not the published version.

    `impact`: whom the publication concerned that this is the answer to.
    """

    id: str
    name: str
    active: bool
    published_version: int | None
    revision: int
    trigger_spec: dict[str, Any]
    graph: dict[str, Any]
    updated_at: str = ""
    archived_at: str | None = None
    paused_at: str | None = None
    impact: Impact | None = None

    def draft(self) -> Draft:
        """Return what is written in it."""
        return from_json({"name": self.name, "triggerSpec": self.trigger_spec, "graph": self.graph})

    def pills(self) -> list[tuple[str, str]]:
        """Say in a word or two where it stands, each with a colour."""
        if self.archived_at is not None:
            return [("archived", "warn")]
        if self.published_version is None:
            return [("draft", "warn")]
        return [(f"published, version {self.published_version}", "busy"), self._running()]

    def _running(self) -> tuple[str, str]:
        if self.paused_at is not None:
            return "paused", "warn"
        return ("active", "good") if self.active else ("off", "warn")

    def off(self) -> str:
        """Say that events do not start it although it was published; empty when they do."""
        if self.archived_at is not None:
            return "It is archived: no event starts it."
        if self.paused_at is not None:
            return "It is paused: no event starts it until .resume()."
        if self.published_version is None or self.active:
            return ""
        return "It is off now: no event starts it until .activate() or .publish()."


class Version(msgspec.Struct, frozen=True, rename="camel"):
    """A published version; it never changes."""

    version: int
    published_at: str = ""
    trigger_spec: dict[str, Any] = {}
    graph: dict[str, Any] = {}

    def payload(self) -> dict[str, Any]:
        """Return what it says, without the name: that is not pinned."""
        return {"triggerSpec": self.trigger_spec, "graph": self.graph}


class Difference(msgspec.Struct, frozen=True):
    """What one version does otherwise than another, in sentences. Shows itself. True when there is a difference."""

    before: int
    after: int
    changes: Changes

    def __bool__(self) -> bool:
        return bool(self.changes)

    def headline(self) -> str:
        """Say how much is different."""
        number = len(self.changes.items)
        said = counted(number, "difference") if number else "nothing that matters differs"
        return f"Version {self.after} against version {self.before}: {said if self.changes else 'no difference'}"

    def __repr__(self) -> str:
        return "\n".join([self.headline(), *self.changes.lines()])

    def _repr_html_(self) -> str:
        headline, changes = self.headline(), self.changes
        return html("plan.html.j2", headline=headline, note="", picture="", changes=changes, impact=None)


class Deed(msgspec.Struct, frozen=True, rename="camel"):
    """What was done to an automation; `by` is the name of the key that did it, or its id."""

    at: str
    action: str
    by: str

    def __str__(self) -> str:
        return f"{self.action.removeprefix('automation.')} by {self.by or 'an unknown key'}, {moment(self.at)} UTC"


class Versions(Sequence[Version]):
    """The published versions, newest first."""

    def __init__(self, versions: Sequence[Version]) -> None:
        self._versions = tuple(sorted(versions, key=lambda each: -each.version))

    def __getitem__(self, index: Any) -> Any:
        return self._versions[index]

    def __len__(self) -> int:
        return len(self._versions)

    @spoken(".diff(1, 2) or .diff(1), against the newest")
    def diff(self, before: int, after: int | None = None) -> Difference:
        """Return what version `after` (the newest unless told) does otherwise than `before`; raise NotThereError for an unknown one."""
        newest = self._versions[0].version if self._versions else 0
        old, new = self._numbered(before), self._numbered(newest if after is None else after)
        return Difference(old.version, new.version, changes(old.payload(), new.payload()))

    def _numbered(self, number: int) -> Version:
        found = next((each for each in self._versions if each.version == number), None)
        if found is None:
            known = counted(len(self), "version") if self else "no version"
            raise NotThereError(f"there is no version {number} here, but {known}")
        return found

    def __repr__(self) -> str:
        return plain(_VERSIONS, self._rows(), "Never published.")

    def _repr_html_(self) -> str:
        note = "Two of them against each other: .diff(1, 2)" if len(self) > 1 else ""
        return table(_VERSIONS, self._rows(), note=note, empty="Never published.")

    def _rows(self) -> list[tuple[int, str, str]]:
        befores = {later.version: earlier for later, earlier in pairwise(self._versions)}
        return [(each.version, moment(each.published_at), _changed(befores.get(each.version), each)) for each in self]


_VERSIONS = (Column("version", number=True), Column("published at (UTC)"), Column("against the one before"))
_SHOWN = 3  # differences in a row of the table


def _changed(before: Version | None, version: Version) -> str:
    """Say what a version changed, in a line."""
    if before is None:
        return "the first" if version.version == 1 else ""
    found = changes(before.payload(), version.payload())
    more = [f"and {len(found.items) - _SHOWN} more"] if len(found.items) > _SHOWN else []
    return "; ".join([*map(str, found.items[:_SHOWN]), *more]) or "nothing that matters"


class Automations(Sequence[Record]):
    """The automations of the organization, newest first. `wb.automations` asks anew each time."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = tuple(records)

    def __call__(self) -> "Automations":
        """Return itself: `wb.automations()` is `wb.automations`."""
        return self

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            raise DraftError(f"by its name an automation is opened with wb.automation({index!r})")
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return plain(_AUTOMATIONS, self._rows(), _NONE)

    def _repr_html_(self) -> str:
        note = 'Open one: wb.automation("name")'
        return table(_AUTOMATIONS, self._rows(), title="Automations", note=note if self else "", empty=_NONE)

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(each.name, ", ".join(text for text, _ in each.pills()), moment(each.updated_at)) for each in self]


_AUTOMATIONS = (Column("name"), Column("state"), Column("changed at (UTC)"))
_MOST_VERSIONS = _PAGE = 100
_NONE = 'No automations yet. wb.automation("a name") starts one.'


def listed(connection: Connection, name: str | None = None) -> Automations:
    """Return the automations, or those of one name."""
    answer = connection.get("/automations", name=name)
    return Automations(msgspec.convert(answer["automations"], list[Record]))


def everything(connection: Connection) -> list[Record]:
    """Return all automations that are not put away, page by page, the newest first."""
    found: list[Record] = []
    while True:
        before = found[-1].id if found else None
        answer = connection.get("/automations", limit=_PAGE, before=before)
        page = msgspec.convert(answer["automations"], list[Record])
        found += page
        if len(page) < _PAGE:
            return found


def live(connection: Connection, record: Record) -> Version | None:
    """Return the version that is published, with what it says."""
    if record.published_version is None:
        return None
    answer = connection.get(f"/automations/{record.id}/versions", limit=1)
    return msgspec.convert(answer["versions"][0], Version)


def was_archived(connection: Connection, name: str) -> bool:
    """Return whether an automation of that name was put away."""
    return bool(connection.get("/automations", name=name, archived="true", limit=1)["automations"])


def find(connection: Connection, name: str) -> Record | None:
    """Return the automation of that name, or None."""
    return next(
        (record for record in listed(connection, name) if record.name == name and record.archived_at is None), None
    )


def save(connection: Connection, draft: Draft, known: Record | None, *, overwrite: bool = False) -> Record:
    """Create or update the automation of this name and return it; unchanged, it is left alone.

    Raises StaleError when the server's is not the one that was `known`, unless `overwrite`.
    """
    if not draft.name.strip():
        raise DraftError("an automation needs a name")
    there = find(connection, draft.name)
    if there is None:
        return _record(connection.post("/automations", draft.payload()))
    if not overwrite and (known is None or known.revision != there.revision):
        raise _stale(draft.name, known, there)
    if _same(draft, there):
        return there
    try:
        return _record(connection.put(f"/automations/{there.id}", draft.payload() | {"revision": there.revision}))
    except StaleError as error:
        raise StaleError(_stale_words(draft.name), error.problems, error.request_id) from None


def publish(connection: Connection, record: Record) -> Record:
    """Publish what the server holds and switch it on; return it. Raises PublishError naming nodes."""
    published = release(connection, record)
    if published.active:
        return published
    return msgspec.structs.replace(switch(connection, published, "activate"), impact=published.impact)


def release(connection: Connection, record: Record) -> Record:
    """Publish what the server holds, and leave it on or off; return it. Raises PublishError naming nodes."""
    try:
        return _record(connection.post(f"/automations/{record.id}/publish", {"revision": record.revision}))
    except StaleError as error:
        raise StaleError(_stale_words(record.name), error.problems, error.request_id) from None
    except RefusedError as error:
        raise PublishError(
            _refusal(record.name, error.problems or (Problem("", str(error)),)), error.problems
        ) from None


def rollback(connection: Connection, record: Record, version: int) -> Record:
    """Publish what an old version said as a new version and return the automation."""
    return _record(connection.post(f"/automations/{record.id}/rollback", {"version": version}))


def switch(connection: Connection, record: Record, verb: Verb) -> Record:
    """Activate, deactivate, pause or archive the automation and return it."""
    return _record(connection.post(f"/automations/{record.id}/{verb}"))


def resume(connection: Connection, record: Record, overdue: Overdue) -> Record:
    """Let a paused automation go on, and return it."""
    return _record(connection.post(f"/automations/{record.id}/resume", {"overdue": overdue}))


def versions(connection: Connection, record: Record) -> Versions:
    """Return its published versions."""
    answer = connection.get(f"/automations/{record.id}/versions", limit=_MOST_VERSIONS)
    return Versions(msgspec.convert(answer["versions"], list[Version]))


def impact(connection: Connection, record: Record) -> Impact:
    """Return whom publishing it would find on their way now."""
    return msgspec.convert(connection.get(f"/automations/{record.id}/impact")["impact"], Impact)


def last_deed(connection: Connection, record: Record) -> Deed | None:
    """Return what was done to it last, and by whom."""
    answer = connection.get(f"/automations/{record.id}/changes", limit=1)
    return next(iter(msgspec.convert(answer["changes"], list[Deed])), None)


def unchanged(draft: Draft, record: Record) -> bool:
    """Return whether the draft is what the server holds, apart from where nodes stand."""
    return _same(draft, record)


def refuse_errors(name: str, remarks: tuple[Remark, ...]) -> None:
    """Raise PublishError listing the remarks that stand against publishing, if any do."""
    problems = tuple(Problem(each.node_id or each.field or "", each.message) for each in errors(remarks))
    if problems:
        raise PublishError(_refusal(name, problems), problems)


def _record(answer: dict[str, Any]) -> Record:
    return msgspec.convert(answer, Record)


def _same(draft: Draft, record: Record) -> bool:
    ours = normalise(draft.payload())
    return bool(ours["triggerSpec"] == record.trigger_spec and ours["graph"] == record.graph)


def _refusal(name: str, problems: tuple[Problem, ...]) -> str:
    return "\n".join([f"{name!r} cannot be published yet:", *(f"  • {each}" for each in problems)])


def _stale(name: str, known: Record | None, there: Record) -> StaleError:
    if known is None:
        return StaleError(
            f"there is an automation {name!r} by now that this one was not made from. wb.automation({name!r}) opens it; "
            "overwrite=True replaces it"
        )
    seen = f"yours is revision {known.revision}, the server's is {there.revision}"
    return StaleError(f"{_stale_words(name)} ({seen})")


def _stale_words(name: str) -> str:
    return (
        f"somebody changed {name!r} since you opened it. Run wb.automation({name!r}) again to see theirs and make your change "
        "there, or say overwrite=True to replace it with yours"
    )
