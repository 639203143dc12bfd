"""What somebody who reads a backtest has to know, in words: what it could not know, and what looks wrong."""

from collections.abc import Iterator

import msgspec

from api.language.action import AddTag, RemoveTag, Split, UpdateContact
from api.language.graph import Graph
from api.language.simulate import Automation
from workbench.backtest.order import Lived
from workbench.backtest.selection import decides_by, decides_by_addresses
from workbench.backtest.tables import Tables
from workbench.display.words import HANDLE_WORDS, both, counted, ended, starting

ALWAYS = (
    "Contacts are taken as they are today: their attributes, tags, segments and opt-outs of the past are not kept. Nobody is in the "
    "automation when the period begins, and emails and webhooks are taken as delivered."
)
_MANY = 10  # messages to one contact in a period


class Knowing(msgspec.Struct, frozen=True):
    """What there is to know beside the tables. `saved`: whether the automation has the id by which its splits decide."""

    automation: Automation
    graph: Graph
    lived: Lived
    saved: bool
    problems: int = 0


def remarks(known: Knowing, tables: Tables) -> tuple[str, ...]:
    """Return what is worth knowing about one backtest, what looks wrong first."""
    return (*_wrong(known, tables), *_untold(known))


def _wrong(known: Knowing, tables: Tables) -> Iterator[str]:
    totals = tables.totals
    if known.problems:
        yield f"It cannot be published as it is: {counted(known.problems, 'problem')}, listed by .check()."
    if not totals.entries and not totals.turned_away:
        yield _nothing(known)
        return
    if totals.failed:
        yield f"{_entries(totals.failed)} failed for good: {_causes(tables)}."
    if untaken := tables.untaken(known.graph):
        yield f"Never taken: {both([f'{each.source} → {each.target}{_way(each.handle)}' for each in untaken])}."
    if totals.most > _MANY and known.graph.settings.frequency_cap is None:
        yield f"Somebody gets {totals.most:,} messages. .once(), .once_per(days=…) or .frequency_cap(…) limits that."
    if totals.waiting:
        yield f"{_entries(totals.waiting)} had not ended when the period was over; what comes after it is not counted."


def _untold(known: Knowing) -> Iterator[str]:
    looks = {node.id: {path for path in decides_by(node) if path.startswith("contact.")} for node in known.graph.nodes}
    deciding = [node_id for node_id, paths in looks.items() if paths]
    asked = set().union(*looks.values())
    if deciding:
        yield f"{both(deciding)} {'decides' if len(deciding) == 1 else 'decide'} by {both(sorted(asked))} of today."
    if own := sorted(_written(known.graph) & asked):
        yield f"It changes {both(own)} itself, and decides by it: contacts that went through it for real have that already."
    if known.lived.masked and decides_by_addresses(known.automation):
        yield "It decides by email addresses, and your key sees them masked (no pii:read): these decisions may be wrong."
    source = known.automation.trigger.source
    if source is not None and source.creates_contacts:
        yield "Wallets that nobody knows are left out; live, those whose log is let in become contacts."
    if source is not None and source.confirmations:
        yield "A log counts from when it was seen; live, its entry begins when it has its confirmations."
    if not known.saved and any(isinstance(node.action, Split) for node in known.graph.nodes):
        yield "It is not saved yet: who takes which way of a split is drawn anew when it is."
    if known.lived.erased:
        yield f"Left out are contacts that were erased since: {known.lived.erased:,}."


def _nothing(known: Knowing) -> str:
    """Say why it would not have started."""
    if not known.lived.events:
        return f"No event came in this period that could have started it: {starting(known.automation.trigger)}."
    return f"{counted(known.lived.events, 'event')} could have started it, and none passed its filters."


def _causes(tables: Tables) -> str:
    causes = tables.failures()
    return both([f"{ended(outcome)} ({count:,})" if len(causes) > 1 else ended(outcome) for outcome, count in causes])


def _written(graph: Graph) -> set[str]:
    """Return the paths of what the automation writes to the contact."""
    written: set[str] = set()
    for node in graph.nodes:
        match node.action:
            case AddTag() | RemoveTag():
                written.add("contact.tags")
            case UpdateContact(attributes=attributes):
                written |= {f"contact.{name}" for name in attributes}
            case _:
                continue
    return written


def _entries(number: int) -> str:
    return counted(number, "entry", "entries")


def _way(handle: str | None) -> str:
    return f" ({HANDLE_WORDS.get(handle, handle)})" if handle is not None else ""
