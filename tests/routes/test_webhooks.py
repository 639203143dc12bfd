"""The webhook secret: read, rolled with an overlap, sealed at rest (docs/trust.md J3, O1); closed endpoints (J5)."""

import asyncio
from datetime import timedelta

import httpx
import pytest

from api.auth.key_format import Kind
from api.store import messages as store
from api.store.query import run
from tests.routes.conftest import Org


async def call(
    org: Org, method: str, path: str, *scopes: str, kind: Kind = "workbench", body: object = None
) -> httpx.Response:
    key = await org.key(kind, *scopes)
    headers = {"authorization": f"Bearer {key}"}
    return await org.service.client.request(method, f"/webhooks{path}", json=body, headers=headers)


async def read_secret(org: Org) -> str:
    response = await call(org, "GET", "/secret", kind="live")
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    return str(response.json()["secret"])


async def signing(org: Org, later: timedelta = timedelta()) -> tuple[str, ...]:
    """Return the secrets that deliveries are signed with."""
    parts = org.service.services
    async with parts.system_database.transaction() as tx:
        return await store.find_webhook_secrets(tx, parts.keyring, org.id, parts.clock.now() + later)


async def test_concurrent_first_requests_create_one_secret(acme: Org, globex: Org) -> None:
    (secret,) = set(await asyncio.gather(*(read_secret(acme) for _ in range(10))))
    assert secret.startswith("whsec_")
    assert await signing(acme) == (secret,)
    assert await read_secret(globex) != secret


async def test_a_roll_signs_with_both_for_a_day(acme: Org) -> None:
    old = await read_secret(acme)
    response = await call(acme, "POST", "/secret/roll", "keys:admin")
    new = response.json()["secret"]
    assert response.status_code == 200
    assert await read_secret(acme) == new != old
    assert await signing(acme, timedelta(hours=23, minutes=59)) == (new, old)
    assert await signing(acme, timedelta(hours=24, minutes=1)) == (new,)
    assert [row[0] for row in await acme.rows("action", "audit_log")] == ["webhook_secret.roll"]


async def test_a_roll_without_a_secret_creates_the_first_one(acme: Org) -> None:
    new = (await call(acme, "POST", "/secret/roll", kind="live")).json()["secret"]
    assert await signing(acme) == (new,)


async def test_the_database_never_holds_a_secret_in_clear(acme: Org) -> None:
    secret = await read_secret(acme)
    await call(acme, "POST", "/secret/roll", kind="live")
    ((row,),) = await acme.service.rows(f"SELECT webhook_secrets::text FROM webhook_secrets WHERE org_id = {acme.id}")
    assert secret not in row
    assert secret.removeprefix("whsec_").encode().hex() not in row


@pytest.mark.parametrize(
    ("kind", "scopes", "sees", "rolls"),
    [
        ("live", (), 200, 200),
        ("test", (), 403, 403),
        ("workbench", ("keys:admin",), 200, 200),
        ("workbench", ("automations:publish",), 200, 403),
        ("workbench", ("events:read", "automations:write"), 403, 403),
        ("publishable", (), 401, 401),
    ],
)
async def test_required_keys_to_read_and_to_roll(
    acme: Org, kind: Kind, scopes: tuple[str, ...], sees: int, rolls: int
) -> None:
    assert (await call(acme, "GET", "/secret", *scopes, kind=kind)).status_code == sees
    assert (await call(acme, "POST", "/secret/roll", *scopes, kind=kind)).status_code == rolls


async def test_an_endpoint_that_is_gone_stays_closed_until_it_is_opened(acme: Org, globex: Org) -> None:
    parts, url = acme.service.services, "https://acme.example/hook"
    digest, other = (parts.keyring.of(org.id).digest("url", url) for org in (acme, globex))
    for _ in range(2):
        async with parts.system_database.transaction() as tx:
            await run(tx, store.close_endpoint(acme.id, digest, "acme.example", parts.clock.now()))
    async with parts.system_database.transaction() as tx:
        assert await store.find_closed_endpoints(tx, acme.id, [digest, other]) == {digest}
        assert await store.find_closed_endpoints(tx, globex.id, [digest, other]) == set()
    for opened in (True, False):
        response = await call(acme, "POST", "/endpoints/open", kind="live", body={"url": url})
        assert response.json() == {"opened": opened}
    async with parts.system_database.transaction() as tx:
        assert await store.find_closed_endpoints(tx, acme.id, [digest]) == set()


async def test_opening_needs_an_address(acme: Org) -> None:
    response = await call(acme, "POST", "/endpoints/open", kind="live", body={"url": 7})
    assert (response.status_code, response.json()["field"]) == (400, "url")
