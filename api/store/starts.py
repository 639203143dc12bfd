"""Starts: contacts that entered or left a segment, or got a broadcast."""

from collections.abc import Sequence
from datetime import datetime

from api.store.database import Transaction
from api.store.events import ActiveAutomation
from api.store.query import Json, Uuid, call, query


@query
async def find_started_automations(
    tx: Transaction, org_id: int, event: str, segment: str | None
) -> list[ActiveAutomation]:
    """Return the automations that take entries from one kind of change of a segment, oldest first."""


@call
def add_starts(
    org_id: int, ids: Sequence[Uuid], contact_ids: Sequence[Uuid], event: str, payload: Json, at: datetime
) -> None:
    """Store the starts of contacts."""
