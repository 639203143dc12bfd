from datetime import timedelta

import psycopg
import pytest

from api.auth import AccessError, keys
from api.auth.key_format import KINDS, parse
from api.auth.keys import operator_transaction
from api.crypto import Keyring
from workbench.language.codec import decode


async def test_an_organization_is_created_once(database_url: str) -> None:
    org_id = await keys.create_org(database_url, "acme")
    assert await keys.find_org(database_url, "acme") == org_id
    with pytest.raises(AccessError, match="the organization acme already exists"):
        await keys.create_org(database_url, "acme")


@pytest.mark.parametrize("name", ["", "Acme", "a b", "ä", "x" * 41, "a\n"])
async def test_a_bad_organization_name_is_refused_before_the_database(name: str) -> None:
    with pytest.raises(AccessError, match="is not an organization name"):
        await keys.create_org("postgresql://nobody@/nowhere?host=/nonexistent", name)


async def test_every_kind_of_key_has_its_default_scopes(database_url: str, keyring: Keyring, org: str) -> None:
    for kind in KINDS:
        assert parse(await keys.create(database_url, keyring, org, kind)) == kind
    assert {row.kind: row.scopes for row in await keys.list_keys(database_url, org)} == {
        "live": ("ingest", "events:read"),
        "test": ("ingest", "events:read"),
        "publishable": (),
        "workbench": ("events:read", "sql:read", "automations:write", "automations:publish", "contacts:read"),
    }


async def test_wanted_scopes_are_checked_against_the_kind(database_url: str, keyring: Keyring, org: str) -> None:
    await keys.create(database_url, keyring, org, "workbench", ["pii:read", "sql:read"], "notebooks")
    [row] = await keys.list_keys(database_url, org)
    assert (row.scopes, row.name) == (("sql:read", "pii:read"), "notebooks")
    with pytest.raises(AccessError, match="a publishable key cannot have the scope sql:read; it can have none"):
        await keys.create(database_url, keyring, org, "publishable", ["sql:read"])


async def test_a_dump_of_the_table_holds_no_usable_key(database_url: str, keyring: Keyring, org: str) -> None:
    key = await keys.create(database_url, keyring, org, "live")
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT api_keys::text, prefix, last4 FROM workbench.api_keys").fetchone()
    assert row is not None
    assert (row[1], row[2]) == ("sk_live_", key[-4:])
    assert not any(key[at : at + 8] in row[0].removeprefix("sk_live_") for at in range(8, len(key) - 8))


async def test_a_key_for_an_unknown_organization_is_refused_with_the_command_that_creates_it(
    database_url: str, keyring: Keyring
) -> None:
    with pytest.raises(
        AccessError, match="organization not found: nobody; create it with: workbench org create nobody"
    ):
        await keys.create(database_url, keyring, "nobody", "live")


async def test_rolling_returns_an_equal_key_and_the_old_one_expires(
    database_url: str, keyring: Keyring, org: str
) -> None:
    old = await keys.create(database_url, keyring, org, "workbench", ["sql:read"], "n1")
    new = await keys.roll(database_url, keyring, old)
    first, second = await keys.list_keys(database_url, org)
    assert (second.kind, second.scopes, second.name, second.expires_at) == ("workbench", ("sql:read",), "n1", None)
    assert first.expires_at == second.created_at + timedelta(hours=24)
    assert await keys.find(database_url, keyring, new) == second


async def test_a_revoked_key_is_kept_on_record_and_cannot_be_rolled(
    database_url: str, keyring: Keyring, org: str
) -> None:
    key = await keys.create(database_url, keyring, org, "live")
    [row] = await keys.list_keys(database_url, org)
    await keys.revoke(database_url, keyring, row.id)
    with pytest.raises(AccessError, match="the key was revoked on"):
        await keys.roll(database_url, keyring, key)


@pytest.mark.parametrize("name", ["", "nonsense", "00000000-0000-0000-0000-000000000000"])
async def test_an_unknown_key_is_refused_with_the_command_that_lists_keys(
    database_url: str, keyring: Keyring, name: str
) -> None:
    with pytest.raises(AccessError, match="key not found"):
        await keys.revoke(database_url, keyring, name)


async def test_changes_of_the_operator_are_recorded_without_a_key(
    database_url: str, keyring: Keyring, org: str
) -> None:
    key = await keys.create(database_url, keyring, org, "live", name="backend")
    new = await keys.roll(database_url, keyring, key)
    await keys.revoke(database_url, keyring, new)
    first, second = await keys.list_keys(database_url, org)
    async with operator_transaction(database_url) as (tx, _):
        cursor = await tx.execute("SELECT action, subject_id, key_id, detail FROM audit_log ORDER BY id")
        rows = [(action, subject, by, decode(detail)) for action, subject, by, detail in await cursor.fetchall()]
    what = {"kind": "live", "name": "backend", "scopes": ["ingest", "events:read"], "strict": False}
    rolled = {"newKey": second.id, "endsAt": rows[1][3]["endsAt"]}
    assert rows == [
        ("key.create", first.id, None, what),
        ("key.roll", first.id, None, what | rolled),
        ("key.revoke", second.id, None, what),
    ]
    assert key not in str(rows)
