"""Reach: what the contacts of a segment lack that the messages of an automation need, and their locales.

The newest contacts of a large segment stand for all of it.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from api.automations.body import read_specs
from api.crypto import OrgKeys
from api.segments.definition import SegmentName
from api.store.automations import AutomationRow, VersionRow
from api.store.broadcasts import NumberedNeed, count_missing, list_newest_recipients
from api.store.contacts import contact_state
from api.store.database import Database
from api.store.entries import find_declined_topics, find_unsubscribed, load_contacts
from api.store.query import run
from workbench.language.actions import MessageAction
from workbench.language.body import SLUG, Body, ShortName
from workbench.language.check import MAX_SAMPLED_CONTACTS, CatalogFacts, Diagnostic, Need, check_contacts, needs_of
from workbench.language.event import Identifiers
from workbench.language.locales import LOCALE_ATTRIBUTE, locale_tag
from workbench.language.nodes import unreachable_cause
from workbench.language.problem import Problem
from workbench.language.responses import MissingView, ReachView, UnreachableView
from workbench.language.starts import StartSource

MAX_NEEDS = 100
_PAGE = 1_000  # contacts that are read at a time
_Member = Annotated[str, Meta(pattern=f"^{SLUG.pattern}$")]
_NO_NEED = NumberedNeed(-1, (), ())  # counts all contacts


class NeedBody(Body, frozen=True):
    """A value that a step needs, such as `email` or `contact.plan`, from contacts that are in all `segments`.

    An empty `path` needs nothing.
    """

    path: Annotated[str, Meta(max_length=512)] = ""
    segments: Annotated[tuple[_Member, ...], Meta(max_length=20)] = ()


class ReachBody(Body, frozen=True):
    """The contacts of a `segment`, or `all` of the organization, with the attribute that has their locale."""

    needs: Annotated[tuple[NeedBody, ...], Meta(max_length=MAX_NEEDS)]
    segment: SegmentName | None = None
    all: bool = False
    locale_attribute: ShortName = LOCALE_ATTRIBUTE

    def conflicts(self) -> Iterator[Problem]:
        if (self.segment is None) != self.all:
            yield Problem("", 'name a segment, or write "all": true')


async def read_reach(
    database: Database, org_id: int, segment: str | None, locale_attribute: str, needs: Sequence[Need]
) -> ReachView:
    """Return how many contacts of a segment (None: of the organization) lack each value, by their locale."""
    paths = [tuple(need.path.split(".")) if need.path else () for need in needs]
    numbered = [NumberedNeed(n, path, need.segments) for n, (path, need) in enumerate(zip(paths, needs, strict=True))]
    encoded = msgspec.json.encode([_NO_NEED, *numbered])
    async with database.transaction() as tx:
        rows = await count_missing(tx, org_id, segment or "", locale_attribute, encoded, MAX_SAMPLED_CONTACTS)
    missing, sampled = Counter[tuple[int, str | None]](), Counter[tuple[int, str | None]]()
    for row in rows:
        key = row.number, locale_tag(row.locale)  # another value is not a locale, and might be an address
        missing[key] += row.missing
        sampled[key] += row.sampled
    contacts = sum(number for (need, _), number in sampled.items() if need == _NO_NEED.number)
    counts = [MissingView(*key, missing[key], number) for key, number in sampled.items() if key[0] >= 0]
    return ReachView(contacts, contacts == MAX_SAMPLED_CONTACTS, tuple(counts))


async def count_unreachable(
    database: Database, org_id: int, keys: OrgKeys, specs: AutomationRow | VersionRow, segment: str | None
) -> tuple[tuple[UnreachableView, ...], int]:
    """Return the contacts of a segment (None: of the organization) that messages cannot go to, of how many newest."""
    automation = await asyncio.to_thread(read_specs, specs.trigger_spec, specs.graph)
    if isinstance(automation, tuple) or automation.graph is None:
        return (), 0
    actions = {node.id: node.action for node in automation.graph.nodes if isinstance(node.action, MessageAction)}
    if not actions:
        return (), 0
    async with database.transaction() as tx:
        ids = await list_newest_recipients(tx, org_id, segment or "", MAX_SAMPLED_CONTACTS)
    topics = sorted({action.topic for action in actions.values() if action.topic is not None})
    counts = Counter[tuple[str, str, str]]()
    for first in range(0, len(ids), _PAGE):
        page = ids[first : first + _PAGE]
        async with database.transaction() as tx:
            contacts, unsubscribed, declined = await run(
                tx,
                load_contacts(org_id, page),
                find_unsubscribed(org_id, page),
                find_declined_topics(org_id, page, topics),
            )
        for row in contacts:
            contact = msgspec.structs.replace(
                contact_state(row, keys.open_email),
                opted_out=(*row.opted_out, *(["email"] if row.id in unsubscribed else ())),
                declined=tuple(declined.get(row.id, ())),
            )
            for node_id, action in actions.items():
                channel = action.channel
                assert channel is not None, "a message has a channel"
                if (cause := unreachable_cause(action, channel, Identifiers(), contact)) is not None:
                    counts[node_id, channel.name, cause] += 1
    return tuple(UnreachableView(*key, number) for key, number in sorted(counts.items())), len(ids)


async def check_reach(
    database: Database, org_id: int, row: AutomationRow | VersionRow, segment: str | None = None
) -> list[Diagnostic]:
    """Return warnings about contacts of the segment that starts an automation, if texts or addresses are missing.

    `segment`: that of a broadcast, which its trigger does not name.
    """
    automation = await asyncio.to_thread(read_specs, row.trigger_spec, row.graph)
    if isinstance(automation, tuple) or automation.graph is None:
        return []
    trigger, graph = automation.trigger, automation.graph
    source = trigger.source
    if not isinstance(source, StartSource):
        return []
    if segment is not None:
        source = msgspec.structs.replace(source, segment=segment)
        trigger = msgspec.structs.replace(trigger, source=source)
    needs = needs_of(trigger, graph)[:MAX_NEEDS]
    if not needs:
        return []
    reach = await read_reach(database, org_id, source.segment, graph.settings.locale_attribute, needs)
    missing: dict[Need, dict[str | None, tuple[int, int]]] = {}
    for count in reach.counts:
        missing.setdefault(needs[count.need], {})[count.locale] = count.missing, count.sampled
    return list(check_contacts(CatalogFacts(missing=missing, is_sample=reach.is_sample), trigger, graph))
