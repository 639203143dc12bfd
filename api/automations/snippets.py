"""The library of snippets: saving a version, and the automations that include a snippet."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from api.automations.automations import Author, Refusal, conflict, invalid, record
from api.automations.pins import find_included
from api.store import snippets as store
from api.store.database import Database
from api.store.snippets import IncludingAutomation
from workbench.language.body import Body, Number
from workbench.language.codec import decode
from workbench.language.problem import Problem
from workbench.language.responses import SnippetUse, SnippetVersionView
from workbench.language.snippets import Library, SnippetText, expand, names_in
from workbench.language.template import MAX_SOURCE, TemplateError

MAX_SNIPPETS = 1_000  # of an organization


class SnippetBody(Body, frozen=True):
    """The text of a snippet. `version`: the one that the edit started from; by default the newest."""

    body: Annotated[str, Meta(min_length=1, max_length=MAX_SOURCE)]
    version: Number | None = None


async def save(database: Database, author: Author, name: str, edit: SnippetBody) -> SnippetVersionView | Refusal:
    """Add a version to a snippet; an equal text changes nothing. Refuses a text that no message could include."""
    async with database.transaction() as tx:
        others = await find_included(tx, author.org_id, names_in(edit.body))
    problem = await asyncio.to_thread(_problem, name, edit.body, others)
    if problem is not None:
        return invalid((problem,))
    async with database.transaction() as tx:
        newest = next(iter(await store.list_snippets(tx, author.org_id, [name])), None)
        number = 0 if newest is None else newest.version
        if edit.version is not None and edit.version != number:
            return conflict(f"the snippet is at version {number} now, not {edit.version}", "version")
        if newest is not None and newest.body == edit.body:
            return newest
        if newest is None and await store.count_snippets(tx, author.org_id) >= MAX_SNIPPETS:
            return invalid((Problem("", f"an organization has at most {MAX_SNIPPETS:,} snippets"),))
        saved = await store.insert_snippet(tx, author.org_id, name, number + 1, edit.body, author.now, author.key_id)
        if saved is None:
            return conflict("another request changed the snippet at the same time", "version")
        await record(tx, author, "snippet.save", None, {"name": name, "version": saved.version})
        return saved


def _problem(name: str, body: str, others: dict[str, SnippetText]) -> Problem | None:
    """Return why messages could not include a text as the snippet `name`, or None."""
    try:
        expand(f'{{% include "{name}" %}}', Library(others | {name: SnippetText(0, body)}))
    except TemplateError as error:
        return Problem("body", str(error).removeprefix(f"snippet {name!r}: "))
    return None


async def find_uses(database: Database, org_id: int, name: str) -> list[SnippetUse]:
    """Return the automations that include a snippet, themselves or by other snippets."""
    async with database.transaction() as tx:
        newest = await store.list_snippets(tx, org_id)
        automations = await store.list_including_automations(tx, org_id)
    return await asyncio.to_thread(_find_uses, name, newest, automations)


def _find_uses(
    name: str, newest: Sequence[SnippetVersionView], automations: Sequence[IncludingAutomation]
) -> list[SnippetUse]:
    names_by_snippet = {row.name: names_in(row.body) for row in newest}
    including, added = {name}, {name}
    while added:
        added = {outer for outer, names in names_by_snippet.items() if not names.isdisjoint(added)} - including
        including |= added
    using = []
    for row in automations:
        names = set() if row.draft is None else names_in(decode(row.draft).get("nodes"))
        in_draft = not names.isdisjoint(including)
        pins = {} if row.pinned is None else msgspec.convert(decode(row.pinned), dict[str, SnippetText])
        pin = pins.get(name)
        if in_draft or pin is not None:
            version, pinned = (None, None) if pin is None else (row.version, pin.version)
            using.append(SnippetUse(row.id, row.name, in_draft, version, pinned))
    return using
