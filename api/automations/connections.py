"""Connections: saving and deleting them, and the automations that send by them.

A published version always fits its connections: publication checks it, and a change that a published version would not
fit is refused. Secrets are bound to the request that they were written for.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from api.automations.automations import Author, Refusal, conflict, invalid, record, unknown
from api.crypto import Keyring
from api.store import connections as store
from api.store.automations import UsingAutomation, list_using_automations
from api.store.connections import ConnectionRow, read_definition
from api.store.database import Database
from workbench.language.actions import SendVia
from workbench.language.codec import decode, encode, same_json
from workbench.language.connections import AnswerRule, ConnectionBody, ConnectionDefinition, check_connections
from workbench.language.graph import Graph, read_graph
from workbench.language.problem import Problem
from workbench.language.responses import AutomationUse, ConnectionField, SavedConnectionView, SavedRuleView

MAX_CONNECTIONS = 100  # of an organization


async def save(
    database: Database, keyring: Keyring, author: Author, name: str, body: ConnectionBody
) -> SavedConnectionView | Refusal:
    """Create or replace a connection. Refuses a change that a published version does not fit."""
    keys = keyring.of(author.org_id)
    async with database.transaction() as tx:
        row = await store.lock_connection(tx, author.org_id, name)
        if row is None and await store.count_connections(tx, author.org_id) >= MAX_CONNECTIONS:
            return invalid((Problem("", f"an organization has at most {MAX_CONNECTIONS} connections"),))
        keeps = row is not None and same_json(read_definition(row).request, body.request)
        kept = decode(keys.open_connection(row.secrets, name).encode()) if row is not None and keeps else {}
        secrets = {secret: {**kept, **body.secrets}.get(secret) for secret in body.secret_names}
        again = "" if row is None or keeps else ": the request has changed, so its secrets must be sent again"
        problems = [Problem(f"secrets.{secret}", f"is missing{again}") for secret in secrets if secrets[secret] is None]
        problems += [
            Problem(f"secrets.{secret}", "is used nowhere in url, headers or body")
            for secret in body.secrets
            if secret not in secrets
        ]
        if problems:
            return invalid(tuple(problems))
        if row is not None:
            automations = await list_using_automations(tx, author.org_id, f'"{name}"')
            misfit = await asyncio.to_thread(_find_misfit, name, body, automations)
            if misfit is not None:
                return conflict(misfit)
        definition = encode({key: value for key, value in msgspec.to_builtins(body).items() if key != "secrets"})
        sealed = keys.seal_connection(encode(secrets).decode(), name)
        saved = await store.save_connection(
            tx, author.org_id, name, definition.decode(), sealed, author.now, author.key_id
        )
        await record(tx, author, "connection.save", None, {"name": name, "secrets": sorted(body.secrets)})
        return view(saved)


async def delete(database: Database, author: Author, name: str) -> SavedConnectionView | Refusal:
    """Delete a connection, unless a published version uses it."""
    async with database.transaction() as tx:
        row = await store.lock_connection(tx, author.org_id, name)
        if row is None:
            return unknown("connection")
        automations = await list_using_automations(tx, author.org_id, f'"{name}"')
        uses = await asyncio.to_thread(_find_uses, name, automations)
        if live := [use.name for use in uses if use.version is not None]:
            return conflict(f"the connection is used by {', '.join(map(repr, live))}: publish them without it first")
        await store.delete_connection(tx, author.org_id, name)
        await record(tx, author, "connection.delete", None, {"name": name})
        return view(row)


async def find_uses(database: Database, org_id: int, name: str) -> list[AutomationUse]:
    """Return the automations that send by a connection."""
    async with database.transaction() as tx:
        automations = await list_using_automations(tx, org_id, f'"{name}"')
    return await asyncio.to_thread(_find_uses, name, automations)


def view(row: ConnectionRow) -> SavedConnectionView:
    definition = read_definition(row)
    return SavedConnectionView(
        name=row.name,
        url=definition.url,
        method=definition.method,
        headers=definition.headers,
        body=definition.body,
        success=_rule_view(definition.success),
        permanent=_rule_view(definition.permanent),
        rate=definition.rate,
        secrets=definition.secret_names,
        fields=tuple(ConnectionField(name, is_required) for name, is_required in definition.fields.items()),
        created_at=row.created_at,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
    )


def _rule_view(rule: AnswerRule | None) -> SavedRuleView | None:
    return None if rule is None else SavedRuleView(rule.status, rule.where)


def _find_misfit(name: str, definition: ConnectionDefinition, automations: Sequence[UsingAutomation]) -> str | None:
    """Return why a live version could not send by a connection as it is defined now, or None."""
    for automation in automations:
        graph = _sending_by(name, automation.live)
        for node_id, field, reason in check_connections(graph, {name: definition}):
            return f"the live version of {automation.name!r} does not fit: node {node_id}: {field}: {reason}"
    return None


def _find_uses(name: str, automations: Sequence[UsingAutomation]) -> list[AutomationUse]:
    uses = []
    for automation in automations:
        in_draft, in_live = (bool(_sending_by(name, graph).nodes) for graph in (automation.draft, automation.live))
        if in_draft or in_live:
            version = automation.version if in_live else None
            uses.append(AutomationUse(automation.id, automation.name, in_draft, version))
    return uses


def _sending_by(name: str, graph: bytes | None) -> Graph:
    """Return a graph with only the nodes that send by a connection."""
    read = Graph() if graph is None else read_graph(decode(graph))
    nodes = read.nodes if isinstance(read, Graph) else ()
    return Graph(tuple(node for node in nodes if isinstance(node.action, SendVia) and node.action.connection == name))
