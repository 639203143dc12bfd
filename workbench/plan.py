"""What publishing would change: a draft beside a version, in words and on the graph, and whom it finds on their way."""

import msgspec

from workbench import publish
from workbench.changes import Changes, changes, marks
from workbench.connection import Connection
from workbench.display.graph import RunPath, picture
from workbench.display.html import html, moment
from workbench.draft import Draft
from workbench.errors import NotFoundError
from workbench.publish import AutomationRecord, Impact, Version


class Plan(msgspec.Struct, frozen=True):
    """The differences from a version to a draft. `against` None: nothing is published. `note`: what stands in the way.

    Shows itself. True when there are differences.
    """

    draft: Draft
    against: Version | None
    changes: Changes
    impact: Impact | None = None
    note: str = ""

    def __bool__(self) -> bool:
        return bool(self.changes)

    def headline(self) -> str:
        """Say in one sentence how much is different."""
        name = self.draft.name
        if self.against is None:
            return f"{name}: new, nothing is published yet"
        version = f"version {self.against.version} ({moment(self.against.published_at)} UTC)"
        number = len(self.changes.items)
        if not self.changes:
            return f"{name}: no difference from {version}"
        differs = f"{number} difference{'' if number == 1 else 's'}" if number else "nothing that matters differs"
        return f"{name}: {differs} from {version}"

    def __repr__(self) -> str:
        note = [f"! {self.note}"] if self.note else []
        impact = [repr(self.impact)] if self.impact is not None and self.impact.entries else []
        return "\n".join([self.headline(), *self.changes.lines(), *note, *impact])

    def _repr_html_(self) -> str:
        trigger, graph = self.draft.language()
        found = marks(self.changes)
        led = {each.subject for each in self.changes.items if each.kind in ("led", "added")}
        path = RunPath(
            {node.id: found[node.id] for node in graph.nodes if node.id in found},
            frozenset((edge.source, edge.handle) for edge in graph.edges if {edge.source, edge.target} & led),
        )
        return html(
            "plan.html.j2",
            headline=self.headline(),
            note=self.note,
            picture=picture(trigger, graph, path) if graph.nodes and found else "",
            changes=self.changes,
            impact=self.impact,
        )


def planned(draft: Draft, record: AutomationRecord | None, connection: Connection, against: int | None) -> Plan:
    """Return what publishing the draft would change: from the live version, or from another one.

    Raises NotFoundError when there is no such version.
    """
    now = publish.find(connection, draft.name)
    if now is None and against is not None:
        raise NotFoundError(f"{draft.name!r} is not on the server, so it has no version {against} to compare with")
    if now is None:
        return Plan(draft, None, changes(None, draft.payload()))
    version = _version(connection, now, against)
    before = (
        None if version is None else {"name": now.name, "triggerSpec": version.trigger_spec, "graph": version.graph}
    )
    found = changes(before, draft.payload())
    return Plan(draft, version, found, publish.impact(connection, now), _note(connection, record, now))


def _version(connection: Connection, record: AutomationRecord, wanted: int | None) -> Version | None:
    if wanted is None and record.published_version is None:
        return None
    number = record.published_version if wanted is None else wanted
    known = publish.versions(connection, record)
    found = next((each for each in known if each.version == number), None)
    if found is None:
        raise NotFoundError(
            f"there is no version {number} of {record.name!r} to compare with; .versions() shows which there are"
        )
    return found


def _note(connection: Connection, record: AutomationRecord | None, now: AutomationRecord) -> str:
    """Say that somebody else changed it since it was opened, so that publishing would be refused."""
    if record is not None and record.revision == now.revision:
        return ""
    deed = publish.last_change(connection, now)
    return f"publishing is refused until you open it anew: it was changed since ({deed})"
