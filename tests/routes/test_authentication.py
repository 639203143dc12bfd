"""Authentication and scopes: docs/contract.md 5 and docs/trust.md group F, over HTTP."""

from datetime import timedelta

import pytest

from api.auth import keys
from tests.routes.conftest import Org

EVENT = {"event": "deposit", "contact": {"externalId": "u1"}}
UNAUTHORIZED = {"error": "the secret key is missing (send `Authorization: Bearer <key>`), invalid or revoked"}


async def answer(org: Org, *authorization: str, path: str = "/events") -> tuple[int, dict[str, str]]:
    """Post an event with these `Authorization` headers; return status and body without the request id."""
    headers = [("authorization", value) for value in authorization] + [("content-type", "application/json")]
    response = await org.service.client.post(path, json=EVENT, headers=headers)
    body = response.json()
    body.pop("requestId", None)
    body.pop("doc", None)
    return response.status_code, body


@pytest.mark.parametrize(
    "form", ["", "Bearer", "Token {}", "{}", "Basic {}", "Bearer  {}", "Bearer {} {}", "Bearer {}x", "Bearer\t{}"]
)
async def test_f1_a_malformed_authorization_header_gets_the_same_401(acme: Org, form: str) -> None:
    assert await answer(acme, form.replace("{}", await acme.key())) == (401, UNAUTHORIZED)
    assert await acme.traces() == {}


async def test_f1_without_a_header_the_answer_is_the_same_401(acme: Org) -> None:
    response = await acme.service.client.post("/events", json=EVENT)
    assert (response.status_code, response.json()["error"]) == (401, UNAUTHORIZED["error"])
    assert response.headers["www-authenticate"] == "Bearer"


async def test_f2_the_scheme_may_be_written_in_any_case(acme: Org) -> None:
    key = await acme.key()
    assert [(await answer(acme, f"{scheme} {key}"))[0] for scheme in ("bearer", "BEARER", "Bearer")] == [202] * 3


async def test_f3_two_headers_are_refused_whichever_is_right(acme: Org) -> None:
    right = f"Bearer {await acme.key()}"
    for headers in ((right, right), (right, "Bearer x"), ("Bearer x", right)):
        assert await answer(acme, *headers) == (401, UNAUTHORIZED)


async def test_f5_a_key_with_one_character_changed_is_refused(acme: Org) -> None:
    key = await acme.key()
    wrong = [key[:at] + ("b" if key[at] == "a" else "a") + key[at + 1 :] for at in (0, 5, 12, 30, len(key) - 1)]
    assert {
        (await answer(acme, f"Bearer {wrong_key}"))[0] for wrong_key in (*wrong, key[:-1], key + "a", key.upper())
    } == {401}


async def test_f6_a_revoked_or_expired_key_is_refused(acme: Org) -> None:
    revoked, rolled = await acme.key("live"), await acme.key("test")
    await keys.revoke(acme.service.dsn, acme.service.keyring, revoked)
    new = await keys.roll(acme.service.dsn, acme.service.keyring, rolled, timedelta())
    assert await answer(acme, f"Bearer {revoked}") == await answer(acme, f"Bearer {rolled}") == (401, UNAUTHORIZED)
    assert (await answer(acme, f"Bearer {new}"))[0] == 202


@pytest.mark.parametrize("path", ["/events", "/events/batch"])
async def test_f7_a_publishable_key_does_not_ingest(acme: Org, path: str) -> None:
    assert await answer(acme, f"Bearer {await acme.key('publishable')}", path=path) == (401, UNAUTHORIZED)


async def test_f8_a_key_in_the_url_or_body_is_ignored(acme: Org) -> None:
    key = await acme.key()
    for path in (f"/events?key={key}", f"/events?authorization=Bearer%20{key}", f"/events?access_token={key}"):
        assert (
            await acme.service.client.post(path, json=EVENT | {"key": key, "authorization": key})
        ).status_code == 401


async def test_f12_f13_events_with_a_test_key_are_always_dry_runs(acme: Org) -> None:
    for fields in ({}, {"test": False}, {"test": True}, {"test": None}):
        assert (await acme.post(EVENT | fields, "test"))[1]["dryRun"] is True
    assert await acme.traces() == {"dry_runs": 4}


async def test_a_key_without_the_scope_is_forbidden_with_its_name(acme: Org) -> None:
    scoped = f"Bearer {await acme.key('workbench', 'sql:read')}"
    assert await answer(acme, scoped) == (403, {"error": "this key lacks the scope ingest"})
    response = await acme.service.client.get("/events/catalog", headers={"authorization": scoped})
    assert (response.status_code, response.json()["error"]) == (403, "this key lacks the scope events:read")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/events"), ("POST", "/events/batch"), ("GET", "/events/catalog"), ("GET", "/events/catalog/a")],
)
async def test_the_key_is_checked_before_the_request(acme: Org, method: str, path: str) -> None:
    response = await acme.service.client.request(method, path, content=b"{", headers={"content-type": "text/plain"})
    assert response.status_code == 401
