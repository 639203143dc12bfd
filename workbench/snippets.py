"""Snippets: texts that messages include, such as a footer or the beginning and end of a layout, in versions."""

from typing import Any

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableSequence, TableView, moment, printable_text, table_columns
from workbench.draft import Draft
from workbench.errors import InvalidArgumentError, NotFoundError, usage_example
from workbench.language.body import SLUG, SLUG_CHARACTERS
from workbench.language.codec import normalize
from workbench.language.graph import follows_clocks
from workbench.language.problem import suggestion
from workbench.language.responses import SnippetSummary, SnippetUse, SnippetVersionView, SnippetView
from workbench.language.snippets import names_in


class SnippetVersions(TableSequence[SnippetVersionView]):
    """The versions of a snippet, newest first."""

    def _view(self) -> TableView:
        columns = table_columns("version", "saved at (UTC)", "text", numbers=("version",))
        rows = [(version.version, moment(version.created_at), version.body) for version in self]
        return TableView(columns, rows, "", "No such snippet.", "")


class SnippetUses(TableSequence[SnippetUse]):
    """The automations that include a snippet: in their draft, and in their live version with the version they keep."""

    def _view(self) -> TableView:
        columns = table_columns("automation", "draft", "live version", "its version of the snippet")
        rows = [(use.name, "yes" if use.draft else "no", use.version or "", use.pinned or "") for use in self]
        return TableView(columns, rows, "", "No automation includes it.", "")


class Snippet:
    """The newest version of a snippet. Texts of messages include it with `{% include "footer" %}`."""

    def __init__(self, connection: Connection, newest: SnippetVersionView) -> None:
        self._connection = connection
        self.name, self.version, self.body = newest.name, newest.version, newest.body

    def versions(self) -> SnippetVersions:
        """Return the newest hundred versions."""
        answer = self._connection.get(f"/snippets/{self.name}/versions", limit=100)
        return SnippetVersions(msgspec.convert(answer["versions"], tuple[SnippetVersionView, ...]))

    def used_by(self) -> SnippetUses:
        """Return the automations that include it, themselves or by another snippet."""
        view = msgspec.convert(self._connection.get(f"/snippets/{self.name}"), SnippetView)
        return SnippetUses(view.used_by)

    @printable_text
    def __repr__(self) -> str:
        return f"{self.name}, version {self.version}:\n{self.body}"


class Snippets(TableSequence[SnippetSummary]):
    """The snippets of the organization, by name, without their texts. `wb.snippets["footer"]` is one of them."""

    def __init__(self, connection: Connection) -> None:
        answer = connection.get("/snippets")
        super().__init__(msgspec.convert(answer["snippets"], tuple[SnippetSummary, ...]))
        self._connection = connection

    @usage_example('wb.snippets.save("footer", "Your team at {{ shop | default(\'Acme\') }}")')
    def save(self, name: str, body: str, *, version: int | None = None) -> Snippet:
        """Save a snippet as a new version and return it; an equal text changes nothing.

        Drafts, simulations and previews use the newest version. A published automation keeps the version that it was
        published with. Raises ConflictError if `version`, the one that the edit started from, is not the newest, and
        InvalidRequestError for a text that no message could include.
        """
        if not SLUG.fullmatch(str(name)):
            raise InvalidArgumentError(f"{name!r}: the name of a snippet has {SLUG_CHARACTERS}")
        options = {} if version is None else {"version": version}
        answer = self._connection.put(f"/snippets/{name}", {"body": body} | options)
        return Snippet(self._connection, msgspec.convert(answer, SnippetVersionView))

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, str):
            return super().__getitem__(index)
        for snippet in self:
            if snippet.name == index:
                (newest, *_) = self._connection.get(f"/snippets/{index}/versions", limit=1)["versions"]
                return Snippet(self._connection, msgspec.convert(newest, SnippetVersionView))
        names = [snippet.name for snippet in self]
        raise NotFoundError(f"Snippet not found: {index!r}{suggestion(index, names, '. wb.snippets lists them')}")

    def _view(self) -> TableView:
        columns = table_columns("name", "version", "saved at (UTC)", numbers=("version",))
        rows = [(snippet.name, snippet.version, moment(snippet.created_at)) for snippet in self]
        note = 'In a text: {% include "name" %}. Open one with wb.snippets["name"]' if rows else ""
        empty = 'No snippets yet. wb.snippets.save("footer", "…") creates one.'
        return TableView(columns, rows, "Snippets", empty, note)


def with_pins(draft: Draft, connection: Connection | None) -> Draft:
    """Return a draft with the newest snippets that it includes, and the time zone of the organization, if it needs one.

    Publication adds them. Without a server the draft is returned as it is.
    """
    if connection is None or not connection.has_key:
        return draft
    pins: dict[str, Any] = {}
    graph = normalize(draft.payload()["graph"])
    if names := sorted(names_in(graph["nodes"])):
        answer = connection.get("/snippets", names=",".join(names))
        pins["snippets"] = {
            item["name"]: {"version": item["version"], "body": item["body"]} for item in answer["snippets"]
        }
    if follows_clocks(graph) and (zone := connection.get("/organization")["timezone"]) is not None:
        pins["timezone"] = zone
    return msgspec.structs.replace(draft, extra_keys=draft.extra_keys | pins) if pins else draft
