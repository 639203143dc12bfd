"""The contacts that were merged since the beginning of a backtest: rows and changes by the contact that they were of.

Before a merge, and after its undo, a contact has events, changes and entries of its own. What merge and undo did to the
kept contact is simulated, so their recorded changes are left out. Of a merge whose contact was not read the recorded
ones take effect; it had no event since the beginning. Contacts that are one, or were until an undo, are in one bucket,
and are played together.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import NamedTuple

import msgspec
import polars as pl

from workbench.language.contact import ContactState, ValueChange
from workbench.language.simulate import ContactMerge


class PastMerge(NamedTuple):
    """The merge of `member_id` into `into_id`, in the order of the columns.

    `contact_id`: the contact that `member_id` is part of today, or itself. `undone_at`: None: it stands.
    """

    member_id: str
    into_id: str
    at: datetime
    merge_id: str
    contact_id: str
    undone_at: datetime | None

    @property
    def contact_ids(self) -> tuple[str, str]:
        return self.member_id, self.into_id

    @property
    def merge(self) -> ContactMerge:
        return ContactMerge(self.member_id, self.into_id, self.at, self.undone_at)


class PastMerges:
    """The merges of contacts that were read; `contacts`: those contacts."""

    def __init__(self, frame: pl.DataFrame | None, contacts: Collection[str]) -> None:
        rows = map(PastMerge._make, () if frame is None else frame.iter_rows())
        merges = sorted(rows, key=attrgetter("at"))
        played = [merge for merge in merges if merge.member_id in contacts and merge.into_id in contacts]
        self.ids = {merge.merge_id for merge in played}
        self.members = {merge.member_id for merge in played}
        self._kept_ids = {merge.member_id: merge.contact_id for merge in played}
        self.groups = contact_groups(played)
        self._of_groups: dict[str, list[PastMerge]] = {}
        for merge in played:
            self._of_groups.setdefault(self.groups.get(merge.contact_id, merge.contact_id), []).append(merge)

    def of_group(self, contact_id: str) -> Sequence[PastMerge]:
        """Return the merges of the contacts that are played together under this id, in order."""
        return self._of_groups.get(contact_id, ())

    def owner(self, contact_id: str) -> str:
        """Return the contact that a contact is part of today, or itself."""
        return self._kept_ids.get(contact_id, contact_id)

    def with_members(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return rows with the contact to play them for as `member_id`: a merged one, or else `contact_id`.

        Before, `member_id` is the contact that a row first belonged to, or null.
        """
        is_member = pl.col("member_id").is_in([*self.members]) if self.members else pl.lit(value=False)
        return frame.with_columns(member_id=pl.when(is_member).then("member_id").otherwise("contact_id"))


def contact_groups(merges: Iterable[PastMerge]) -> dict[str, str]:
    """Map each merged contact to the contact whose id stands for its group: the group is played together.

    Rows of a contact that was merged a moment ago may not have moved to the other one yet.
    """
    merges = list(merges)
    kept_ids = {merge.member_id: merge.contact_id for merge in merges}
    groups: dict[str, str] = {}

    def group_of(contact_id: str) -> str:
        while contact_id in groups:
            contact_id = groups[contact_id]
        return contact_id

    for merge in merges:
        own, other = merge.member_id, merge.contact_id
        if merge.undone_at is not None:
            own, other = merge.contact_id, kept_ids.get(merge.into_id, merge.into_id)
        if group_of(own) != group_of(other):
            groups[group_of(own)] = group_of(other)
    return {contact_id: group_of(contact_id) for contact_id in groups}


def merged_topics(
    merges: Sequence[PastMerge], changes: Mapping[str, Sequence[ValueChange]]
) -> dict[str, list[ValueChange]]:
    """Return the changes of topics by merges and undos, by contact.

    The latest choice counts, whichever of the contacts made it that are one.
    """
    contact_ids = {contact_id for merge in merges for contact_id in (merge.member_id, merge.into_id, merge.contact_id)}
    choices = {
        contact_id: [change for change in changes.get(contact_id, ()) if change.field.startswith("topics.")]
        for contact_id in contact_ids
    }
    members = {contact_id: {contact_id} for contact_id in contact_ids}
    topics: dict[str, list[ValueChange]] = {}
    moments = [(merge.at, False, merge) for merge in merges]
    moments += [(merge.undone_at, True, merge) for merge in merges if merge.undone_at is not None]
    for at, is_undo, merge in sorted(moments, key=itemgetter(0)):
        member_ids = members[merge.member_id]
        members[merge.into_id] = members[merge.into_id] - member_ids if is_undo else members[merge.into_id] | member_ids
        # Without a choice of its own, a contact has the value from before the first one.
        latest = {change.field: change.old for own_id in member_ids for change in reversed(choices[own_id])}
        own = [change for own_id in members[merge.into_id] for change in choices[own_id] if change.at <= at]
        latest |= {change.field: change.new for change in sorted(own, key=attrgetter("at"))}
        topics.setdefault(merge.into_id, []).extend(
            ValueChange(at, field, msgspec.UNSET, new) for field, new in latest.items()
        )
    return topics


def with_default_topics(
    contact: ContactState, merges: Sequence[PastMerge], contacts: Mapping[str, ContactState]
) -> ContactState:
    """Return the contact without its own topic choices if others are merged into it: the choices may be theirs."""
    absorbed = [merge.member_id for merge in merges if merge.contact_id == contact.id != merge.member_id]
    return msgspec.structs.replace(contact, declined=contacts[absorbed[0]].declined) if absorbed else contact
