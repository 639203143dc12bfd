"""Finds data of erased contacts that should have been removed."""

from typing import Any

import psycopg

_GONE = "SELECT org_id, id FROM workbench.contacts WHERE erased_at IS NOT NULL"
_REMNANTS = f"""
    WITH gone AS ({_GONE})
    SELECT 'contact ' || id FROM workbench.contacts
    WHERE erased_at IS NOT NULL AND (num_nonnulls(email, email_domain, wallet_address, wallet_raw, external_id) > 0
                                     OR attributes <> '{{}}' OR tags <> '{{}}')
    UNION ALL
    SELECT 'identifier of contact ' || contact_id FROM workbench.identities t
    JOIN gone g ON (g.org_id, g.id) = (t.org_id, t.contact_id)
    UNION ALL
    SELECT 'conflict of contact ' || g.id FROM workbench.identity_conflicts t
    JOIN gone g ON g.org_id = t.org_id AND g.id IN (t.contact_id, t.other_contact_id)
    UNION ALL
    SELECT 'event ' || t.id FROM workbench.events t JOIN gone g ON (g.org_id, g.id) = (t.org_id, t.contact_id)
    WHERE payload <> '{{}}' OR idempotency_key <> '' OR num_nonnulls(wallet_address, email, external_id) > 0
    UNION ALL
    SELECT 'dry run ' || t.id FROM workbench.dry_runs t JOIN gone g ON (g.org_id, g.id) = (t.org_id, t.contact_id)
    WHERE payload <> '{{}}' OR idempotency_key <> ''
    UNION ALL
    SELECT 'message ' || t.id FROM workbench.messages t JOIN gone g ON (g.org_id, g.id) = (t.org_id, t.contact_id)
    WHERE num_nonnulls(wallet_address, recipient, subject, body, extra) > 0
    UNION ALL
    SELECT 'step ' || s.step || ' of entry ' || s.entry_id FROM workbench.entries t
    JOIN gone g ON (g.org_id, g.id) = (t.org_id, t.contact_id)
    JOIN workbench.entry_steps s ON (s.org_id, s.entry_id) = (t.org_id, t.id)
    WHERE s.detail <> '{{}}'
    UNION ALL
    SELECT 'error of entry ' || t.id FROM workbench.entries t JOIN gone g ON (g.org_id, g.id) = (t.org_id, t.contact_id)
    WHERE strpos(t.last_error, ':') > 0
    UNION ALL
    SELECT 'membership of contact ' || t.contact_id FROM workbench.segment_members t
    JOIN gone g ON (g.org_id, g.id) = (t.org_id, t.contact_id)
    UNION ALL
    SELECT 'erasure of contact ' || contact_id || ' is to be looked at once more' FROM workbench.erasures"""


async def remnants(connection: psycopg.AsyncConnection[Any]) -> list[str]:
    """Return the remaining data of erased contacts."""
    return [str(text) for (text,) in await (await connection.execute(_REMNANTS)).fetchall()]
