"""Starts: contacts that entered or left a segment, or got a broadcast."""

from collections.abc import Sequence
from datetime import datetime

from api.store.query import Json, Uuid, call


@call
def add_starts(
    org_id: int, ids: Sequence[Uuid], contact_ids: Sequence[Uuid], event: str, payload: Json, at: datetime
) -> None:
    """Store the starts of contacts."""
