"""Topics, and the choices of contacts: what they want, by topic and by channel."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from api.store.database import Transaction
from api.store.query import Uuid, query
from workbench.language.responses import TopicView
from workbench.language.topics import OptIn

ConsentSource: TypeAlias = Literal["preference_page", "one_click", "api", "double_opt_in"]


class ConsentRow(msgspec.Struct, frozen=True):
    """One choice of a contact, of a topic or of a channel. `text_sha256`: of the text that it saw, in hex."""

    id: Uuid
    contact_id: Uuid
    granted: bool
    source: ConsentSource
    at: datetime
    topic: str | None = None
    channel: str | None = None
    text_sha256: str | None = None


@query
async def list_topics(tx: Transaction, org_id: int, names: Sequence[str] | None = None) -> list[TopicView]:
    """Return topics by name: all, or those of `names` that exist."""


@query
async def lock_topics(tx: Transaction, org_id: int, names: Sequence[str]) -> list[TopicView]:
    """Return those of `names` that exist; they stay as they are until the transaction ends."""


@query
async def write_topic(
    tx: Transaction, org_id: int, name: str, label: str, labels: dict[str, str], opt_in: OptIn, at: datetime
) -> TopicView: ...


@query
async def delete_topic(tx: Transaction, org_id: int, name: str, at: datetime) -> bool:
    """Delete a topic; return whether it existed. Choices of contacts stay."""


@query
async def count_topics(tx: Transaction, org_id: int) -> int: ...


@query
async def add_consents(tx: Transaction, org_id: int, rows: Sequence[ConsentRow]) -> None: ...


class TopicChange(msgspec.Struct, frozen=True):
    """A choice of a topic, and whether the contact wanted it before."""

    topic: str
    before: bool
    granted: bool
    at: datetime


@query
async def read_topic_changes(tx: Transaction, org_id: int, contact_id: Uuid, at: datetime) -> list[TopicChange]:
    """Return the choices of a contact after a moment, oldest first."""


@query
async def find_latest_consent(tx: Transaction, org_id: int, contact_id: Uuid, topic: str) -> ConsentRow | None:
    """Return the latest choice of a topic, also by a contact that was merged into this one."""
