"""Topics: what messages are about. Saving and deleting them, and the automations that name them."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from api.automations.automations import Author, Refusal, conflict, invalid, record, unknown
from api.store import consents as store
from api.store.automations import list_using_automations
from api.store.database import Database, Transaction
from workbench.language.actions import fields_of_type
from workbench.language.body import Body
from workbench.language.codec import Json, decode
from workbench.language.locales import MAX_LOCALES, NOT_A_LOCALE, locale_tag
from workbench.language.problem import Problem, Problems
from workbench.language.responses import AutomationUse, TopicView, TopicWithUses
from workbench.language.topics import OptIn

MAX_TOPICS = 100  # of an organization: people choose among them on one page
MAX_LABEL = 200  # characters


def _read_labels(value: Any, path: str) -> dict[str, str] | Problems:
    """Return labels by locale, in the usual spelling of its tag, or what is wrong with them."""
    if not isinstance(value, dict) or len(value) > MAX_LOCALES:
        return (Problem(path, f"must be an object of at most {MAX_LOCALES} locales"),)
    labels, problems = dict[str, str](), list[Problem]()
    for name, label in value.items():
        tag = locale_tag(name)
        if tag is None:
            problems.append(Problem(f"{path}.{name}", NOT_A_LOCALE))
        elif tag in labels:
            problems.append(Problem(f"{path}.{name}", f"is the locale {tag} once more"))
        elif not isinstance(label, str) or not 0 < len(label) <= MAX_LABEL or "\0" in label:
            problems.append(Problem(f"{path}.{name}", f"must be a text of 1 to {MAX_LABEL} characters"))
        else:
            labels[tag] = label
    return tuple(problems) or labels


_LABELS_SCHEMA = {"type": "object", "additionalProperties": {"type": "string", "minLength": 1, "maxLength": MAX_LABEL}}


class TopicBody(Body, frozen=True, rename="camel"):
    """A topic: its name on the page of preferences, the same in other languages, and how contacts opt in."""

    label: Annotated[str, Meta(min_length=1, max_length=MAX_LABEL)]
    labels: Annotated[dict[str, str], Meta(extra={"read": _read_labels, "schema": _LABELS_SCHEMA})] = msgspec.field(
        default_factory=dict
    )
    opt_in: OptIn = "none"


async def save(database: Database, author: Author, name: str, topic: TopicBody) -> TopicView | Refusal:
    """Create a topic, or change it."""
    async with database.transaction() as tx:
        existing = await store.list_topics(tx, author.org_id, [name])
        if not existing and await store.count_topics(tx, author.org_id) >= MAX_TOPICS:
            return invalid((Problem("", f"an organization has at most {MAX_TOPICS} topics"),))
        saved = await store.write_topic(tx, author.org_id, name, topic.label, topic.labels, topic.opt_in, author.now)
        await record(tx, author, "topic.save", None, {"name": name, "optIn": topic.opt_in})
    return saved


async def delete(database: Database, author: Author, name: str) -> TopicWithUses | Refusal:
    """Delete a topic that no automation names. The choices of contacts stay, in case it is saved again."""
    async with database.transaction() as tx:
        # Locked, as by a publication (`_check_topics`): it either has committed, and is a use, or finds no topic.
        topic = await _with_uses(tx, author.org_id, await store.lock_topics(tx, author.org_id, [name]))
        if topic is None:
            return unknown("topic")
        if topic.used_by:
            names = ", ".join(repr(use.name) for use in topic.used_by)
            return conflict(f"the topic is used by {names}: remove it there first, or archive them")
        await store.delete_topic(tx, author.org_id, name, author.now)
        await record(tx, author, "topic.delete", None, {"name": name})
    return topic


async def read(database: Database, org_id: int, name: str) -> TopicWithUses | Refusal:
    async with database.transaction() as tx:
        topics = await store.list_topics(tx, org_id, [name])
        return await _with_uses(tx, org_id, topics) or unknown("topic")


async def _with_uses(tx: Transaction, org_id: int, topics: Sequence[TopicView]) -> TopicWithUses | None:
    """Return the topic of a list with at most one, and the automations that use it."""
    if not topics:
        return None
    (topic,) = topics
    uses = []
    for row in await list_using_automations(tx, org_id, f'"{topic.name}"'):
        in_draft, in_live = (
            graph is not None and topic.name in _topics_in(decode(graph)) for graph in (row.draft, row.live)
        )
        if in_draft or in_live:
            uses.append(AutomationUse(row.id, row.name, in_draft, row.version if in_live else None))
    return TopicWithUses(**msgspec.structs.asdict(topic), used_by=tuple(uses))


def _topics_in(graph: Json) -> set[str]:
    """Return the topics that the nodes of a stored graph name; a draft may have any shape."""
    names = set[str]()
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    for node in nodes if isinstance(nodes, list) else ():
        kind, data = (node.get("type"), node.get("data")) if isinstance(node, dict) else (None, None)
        if isinstance(kind, str) and isinstance(data, dict):
            values = (data.get(field.key) for field in fields_of_type(kind, "topic"))
            names.update(value for value in values if isinstance(value, str))
    return names
