"""Keys administered over the API; an ended key is refused."""

import asyncio
import time
from typing import Any

import httpx
import pytest

from api.auth.key_format import WORKBENCH, parse
from tests.routes.conftest import Org


class Admin:
    """The key that administers an organization's keys."""

    def __init__(self, org: Org, key: str) -> None:
        self.org, self.key = org, key

    async def call(self, method: str, path: str, body: Any = None, key: str | None = None) -> httpx.Response:
        headers = {"authorization": f"Bearer {key or self.key}"}
        return await self.org.service.client.request(method, path, json=body, headers=headers)

    async def create_key(self, **wish: Any) -> tuple[str, dict[str, Any]]:
        answer = await self.call("POST", "/keys", wish)
        assert answer.status_code == 201, answer.text
        return answer.json()["secret"], answer.json()["key"]

    async def audit(self) -> list[tuple[Any, ...]]:
        return await self.org.rows("action, subject_id, key_id IS NOT NULL", "audit_log")


@pytest.fixture
async def admin(acme: Org) -> Admin:
    return Admin(acme, await acme.key("workbench", *WORKBENCH))


async def is_accepted(org: Org, key: str) -> bool:
    event = {"event": "deposit", "contact": {"externalId": "u1"}}
    sent = await org.service.client.post("/events", json=event, headers={"authorization": f"Bearer {key}"})
    return sent.status_code == 202


async def until_refused(org: Org, key: str) -> float:
    """Return for how many seconds an ended key is still accepted."""
    since = time.monotonic()
    taken = True
    while taken:
        await asyncio.sleep(0.1)
        taken = await is_accepted(org, key)
    return time.monotonic() - since


async def test_a_key_is_created_shown_once_listed_and_audited(admin: Admin) -> None:
    secret, key = await admin.create_key(kind="live", name="backend", scopes=["ingest"])
    assert parse(secret) == "live"
    assert await is_accepted(admin.org, secret)
    listed = (await admin.call("GET", "/keys")).json()["keys"]
    assert [key["name"] for key in listed] == ["", "backend"]
    assert secret not in str(listed)
    assert (listed[1]["key"], listed[1]["scopes"]) == (f"sk_live_…{secret[-4:]}", ["ingest"])
    assert {field: listed[1][field] for field in ("id", "status", "expiresAt")} == {
        "id": key["id"],
        "status": "active",
        "expiresAt": None,
    }
    assert await admin.audit() == [("key.create", key["id"], True)]


async def test_a_key_is_made_strict_and_lenient_again(admin: Admin) -> None:
    _, key = await admin.create_key(kind="live", strict=True)
    rolled = (await admin.call("POST", f"/keys/{key['id']}/roll")).json()["key"]
    assert (key["strict"], rolled["strict"]) == (True, True)
    edited = await admin.call("POST", f"/keys/{rolled['id']}/edit", {"strict": False})
    assert (edited.status_code, edited.json()) == (200, rolled | {"strict": False})
    listed = (await admin.call("GET", "/keys")).json()["keys"]
    assert [key["strict"] for key in listed] == [False, True, False]
    assert [row[0] for row in await admin.audit()] == ["key.create", "key.roll", "key.edit"]
    refused = await admin.call("POST", f"/keys/{listed[0]['id']}/edit", {"strict": True})
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        "strict concerns events, so only live and test keys can have it",
    )


async def test_the_last_use_of_a_key_is_shown(admin: Admin) -> None:
    secret, _ = await admin.create_key(kind="live")
    await is_accepted(admin.org, secret)
    await admin.org.service.services.verifier.close()
    assert (await admin.call("GET", "/keys")).json()["keys"][1]["lastUsedAt"] is not None


async def test_a_rolled_key_works_for_the_requested_overlap(admin: Admin) -> None:
    old, key = await admin.create_key(kind="live", name="backend", scopes=["ingest"])
    rolled = (await admin.call("POST", f"/keys/{key['id']}/roll", {"overlapSeconds": 3600})).json()
    assert (rolled["key"]["name"], rolled["key"]["scopes"]) == ("backend", ["ingest"])
    assert await is_accepted(admin.org, old)
    assert await is_accepted(admin.org, rolled["secret"])
    assert (await admin.call("GET", "/keys")).json()["keys"][1]["status"] == "ending"
    assert (await admin.call("POST", f"/keys/{rolled['key']['id']}/roll", {"overlapSeconds": 0})).status_code == 201
    await until_refused(admin.org, rolled["secret"])
    again = await admin.call("POST", f"/keys/{rolled['key']['id']}/roll")
    assert (again.status_code, "the key ended on" in again.json()["error"]) == (400, True)


async def test_a_revoked_key_is_refused_within_five_seconds(admin: Admin) -> None:
    secret, key = await admin.create_key(kind="live")
    assert await is_accepted(admin.org, secret)
    revoked = await admin.call("POST", f"/keys/{key['id']}/revoke")
    assert (revoked.status_code, revoked.json()["status"]) == (200, "revoked")
    assert await until_refused(admin.org, secret) < 5
    await admin.call("POST", f"/keys/{key['id']}/revoke")
    assert [row[0] for row in await admin.audit()] == ["key.create", "key.revoke"]


SLOW = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b WHERE a + b > 0"


async def test_a_query_is_cancelled_when_its_key_is_revoked(admin: Admin) -> None:
    secret, key = await admin.create_key(kind="workbench", scopes=["sql:read"])
    since = time.monotonic()
    asking = asyncio.create_task(admin.call("POST", "/sql", {"sql": SLOW}, secret))
    await asyncio.sleep(0.3)
    await admin.call("POST", f"/keys/{key['id']}/revoke")
    answer = await asking
    assert (answer.status_code, answer.json()["error"]) == (401, "the key was revoked or has expired")
    assert time.monotonic() - since < 5.5
    still = "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND strpos(query, %s) = 1"
    running: list[Any] = [SLOW]
    async with asyncio.timeout(5):
        while running:
            await asyncio.sleep(0.05)
            running = await admin.org.service.rows(still, SLOW)


LONG = "SELECT i, repeat('x', 1000) AS x FROM generate_series(1, 3000000) i"


async def test_a_streamed_answer_ends_when_its_key_is_revoked(admin: Admin) -> None:
    secret, key = await admin.create_key(kind="workbench", scopes=["sql:read"])
    headers = {"authorization": f"Bearer {secret}", "accept": "text/csv"}

    async def read_slowly() -> None:
        async with admin.org.service.client.stream("POST", "/sql", json={"sql": LONG}, headers=headers) as answer:
            assert answer.status_code == 200
            await admin.call("POST", f"/keys/{key['id']}/revoke")
            async for _ in answer.aiter_bytes(1_000_000):
                await asyncio.sleep(0.02)

    with pytest.raises(httpx.TransportError):
        await asyncio.wait_for(read_slowly(), 10)


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/keys", {}, 400, "kind: is required"),
        ("/keys", {"kind": "secret"}, 400, "kind: must be one of live, test, publishable, workbench"),
        ("/keys", {"kind": "live", "scopes": ["sql:read"]}, 400, "a live key cannot have the scope sql:read"),
        ("/keys", {"kind": "live", "scopes": "ingest"}, 400, "scopes: must be an array of strings"),
        ("/keys", {"kind": "live", "name": "a\nb"}, 400, "a key's name has at most 100 printable characters"),
        ("/keys/00000000-0000-7000-8000-000000000000/roll", {}, 404, "key not found"),
        ("/keys/x/revoke", {}, 404, "key not found"),
        ("/keys", {"kind": "workbench", "strict": True}, 400, "strict concerns events"),
        ("/keys/00000000-0000-7000-8000-000000000000/edit", {"strict": True}, 404, "key not found"),
        ("/keys/00000000-0000-7000-8000-000000000000/edit", {}, 400, "strict: is required"),
        ("/keys/00000000-0000-7000-8000-000000000000/roll", {"overlapSeconds": -1}, 400, "overlapSeconds: must be"),
    ],
)
async def test_invalid_requests_for_keys_are_refused(
    admin: Admin, path: str, body: Any, status: int, error: str
) -> None:
    answer = await admin.call("POST", path, body)
    assert (answer.status_code, answer.json()["error"][: len(error)]) == (status, error)


async def test_a_key_cannot_grant_a_scope_that_it_lacks(acme: Org) -> None:
    strong = Admin(acme, await acme.key("workbench", *WORKBENCH))
    weak = Admin(acme, await acme.key("workbench", "keys:admin", "events:read"))
    _, people = await strong.create_key(kind="workbench", scopes=["pii:read"])
    for path, body in (("/keys", {"kind": "workbench", "scopes": ["pii:read"]}), (f"/keys/{people['id']}/roll", {})):
        refused = await weak.call("POST", path, body)
        assert (refused.status_code, refused.json()["error"]) == (
            403,
            "this key cannot grant scopes that it lacks: pii:read",
        )
    # The key lacks some of the default scopes.
    assert (await weak.call("POST", "/keys", {"kind": "workbench"})).status_code == 403
    assert (await weak.call("POST", f"/keys/{people['id']}/revoke")).status_code == 200


async def test_keys_of_other_organizations_are_not_found(admin: Admin, globex: Org) -> None:
    _, key = await admin.create_key(kind="live")
    other_admin = Admin(globex, await globex.key("workbench", *WORKBENCH))
    for action in ("edit", "roll", "revoke"):
        body = {"strict": True} if action == "edit" else None
        assert (await other_admin.call("POST", f"/keys/{key['id']}/{action}", body)).status_code == 404
    assert len((await other_admin.call("GET", "/keys")).json()["keys"]) == 1
