"""Snippets: the texts that messages include, in versions."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from api.store.database import Transaction
from api.store.query import Json, RowCount, Uuid, query
from workbench.language.responses import SnippetSummary, SnippetVersionView

_RETENTION = timedelta(days=90)


class IncludingAutomation(msgspec.Struct, frozen=True):
    """An automation that includes snippets. `draft`: its graph, if it includes any; `pinned`: those of `version`."""

    id: Uuid
    name: str
    draft: Json | None
    version: int | None
    pinned: Json | None


@query
async def insert_snippet(
    tx: Transaction, org_id: int, name: str, version: int, body: str, at: datetime, key_id: Uuid
) -> SnippetVersionView | None:
    """Store a version of a snippet; None if it exists."""


@query
async def list_snippets(tx: Transaction, org_id: int, names: Sequence[str] | None = None) -> list[SnippetVersionView]:
    """Return the newest version of each snippet."""


@query
async def summarize_snippets(tx: Transaction, org_id: int) -> list[SnippetSummary]:
    """Return the newest version of each snippet without its text: the texts of a library may have 100 MB."""


@query
async def list_snippet_versions(tx: Transaction, org_id: int, name: str, limit: int) -> list[SnippetVersionView]:
    """Return the newest versions of a snippet."""


@query
async def count_snippets(tx: Transaction, org_id: int) -> int: ...


@query
async def list_including_automations(tx: Transaction, org_id: int) -> list[IncludingAutomation]: ...


@query
async def delete_old_snippets(
    tx: Transaction, org_id: int, now: datetime, limit: int, retention: timedelta = _RETENTION
) -> RowCount:
    """Delete versions that were replaced more than `retention` ago, and that no version of an automation has pinned."""
