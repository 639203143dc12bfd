"""The contacts that were merged since the beginning of a backtest: rows and changes by the contact that they were of.

Until the merge, a contact has events, changes and entries of its own. What the merge did to the kept contact is
simulated, so the recorded changes of a merge that is played are left out. Of a merge whose contact was not read the
recorded ones take effect; it had no event since the beginning.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

import msgspec
import polars as pl

from workbench.language.contact import ContactState, ValueChange


class PastMerge(NamedTuple):
    """The merge of `member_id` into `into_id`, in the order of the columns; both are part of `contact_id` today."""

    member_id: str
    into_id: str
    at: datetime
    merge_id: str
    contact_id: str


def read_merges(frame: pl.DataFrame | None, contacts: Collection[str]) -> dict[str, list[PastMerge]]:
    """Return the merges of contacts that were read, by the contact that is kept, in order."""
    merges: dict[str, list[PastMerge]] = {}
    for merge in sorted(map(PastMerge._make, () if frame is None else frame.iter_rows()), key=attrgetter("at")):
        if merge.member_id in contacts:
            merges.setdefault(merge.contact_id, []).append(merge)
    return merges


def with_members(frame: pl.DataFrame, members: Collection[str]) -> pl.DataFrame:
    """Return rows with the contact to play them for as `member_id`: one of `members`, or else `contact_id`.

    Before, `member_id` is the contact that a row first belonged to, or null.
    """
    is_member = pl.col("member_id").is_in([*members]) if members else pl.lit(value=False)
    return frame.with_columns(member_id=pl.when(is_member).then("member_id").otherwise("contact_id"))


def merged_topics(
    contact_id: str, merges: Sequence[PastMerge], changes: Mapping[str, Sequence[ValueChange]]
) -> dict[str, list[ValueChange]]:
    """Return the changes of topics by merges, by contact: the latest choice counts, whichever contact made it."""
    choices: dict[str, list[ValueChange]] = {}
    for member_id in (contact_id, *(merge.member_id for merge in merges)):
        choices[member_id] = [change for change in changes.get(member_id, ()) if change.field.startswith("topics.")]
    topics: dict[str, list[ValueChange]] = {}
    for merge in merges:
        into_id = merge.into_id if merge.into_id in choices else contact_id
        choices[into_id] = sorted([*choices[into_id], *choices.pop(merge.member_id)], key=attrgetter("at"))
        latest = {change.field: change for change in choices[into_id] if change.at <= merge.at}
        topics.setdefault(into_id, []).extend(
            ValueChange(merge.at, field, msgspec.UNSET, change.new) for field, change in latest.items()
        )
    return topics


def with_default_topics(
    contact: ContactState, merges: Sequence[PastMerge], contacts: Mapping[str, ContactState]
) -> ContactState:
    """Return the kept contact as if it had chosen no topic: its present choices may be those of another contact."""
    return msgspec.structs.replace(contact, declined=contacts[merges[0].member_id].declined)
