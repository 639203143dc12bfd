"""Previews of a publication: the differences between draft and version, and the entries that it concerns."""

import msgspec

from workbench import publish
from workbench.changes import Changes, changes, marks
from workbench.connection import Connection
from workbench.display.graph import RunPath, picture
from workbench.display.html import html, moment, printable_text
from workbench.draft import Draft
from workbench.errors import NotFoundError
from workbench.publish import AutomationRecord, Impact, Version
from workbench.snippets import with_pins


class Plan(msgspec.Struct, frozen=True):
    """The differences between a version and a draft, displayed as sentences. True if there are any.

    `against`: the version, or None before the first publication. `note` says why publishing would be refused.
    """

    draft: Draft
    against: Version | None
    changes: Changes
    impact: Impact | None = None
    note: str = ""

    def __bool__(self) -> bool:
        return bool(self.changes)

    def headline(self) -> str:
        """Return how many differences there are."""
        name = self.draft.name
        if self.against is None:
            return f"{name}: new, nothing is published yet"
        version = f"version {self.against.version} ({moment(self.against.published_at)} UTC)"
        return f"{name}: {self.changes.summary()} from {version}"

    @printable_text
    def __repr__(self) -> str:
        note = [f"! {self.note}"] if self.note else []
        impact = [repr(self.impact)] if self.impact is not None and self.impact.entries else []
        return "\n".join([self.headline(), *self.changes.lines(), *note, *impact])

    def _repr_html_(self) -> str:
        trigger, graph = self.draft.language()
        marked = marks(self.changes)
        rerouted = {change.subject for change in self.changes.items if change.kind in ("rerouted", "added")}
        path = RunPath(
            {node.id: marked[node.id] for node in graph.nodes if node.id in marked},
            frozenset((edge.source, edge.handle) for edge in graph.edges if {edge.source, edge.target} & rerouted),
        )
        return html(
            "plan.html.j2",
            headline=self.headline(),
            note=self.note,
            picture=picture(trigger, graph, path) if graph.nodes and marked else "",
            changes=self.changes,
            impact=self.impact,
        )


def plan_publication(
    draft: Draft, opened: AutomationRecord | None, connection: Connection, against: int | None
) -> Plan:
    """Return the differences between a draft and the live version, or the version `against`.

    `opened` is the record that the draft was made from. Raises NotFoundError for an unknown version.
    """
    draft = with_pins(draft, connection)
    record = publish.find(connection, draft.name)
    if record is None and against is not None:
        raise NotFoundError(f"{draft.name!r} is not on the server, so it has no version {against} to compare with")
    if record is None:
        return Plan(draft, None, changes(None, draft.payload()))
    number = record.published_version if against is None else against
    version = publish.versions(connection, record).numbered(number) if number is not None else None
    before = None
    if version is not None:  # a version has no name of its own, so the name is compared with the saved one
        before = {"name": record.name, "triggerSpec": version.trigger_spec, "graph": version.graph}
    note = ""
    # The server refuses a stale draft when it is saved; the plan only warns about that beforehand.
    if opened is None or opened.revision != record.revision:
        change = publish.last_change(connection, record)
        note = f"publishing is refused until you open it again: it was changed in the meantime ({change})"
    return Plan(draft, version, changes(before, draft.payload()), publish.impact(connection, record), note)
