"""Signing in with a wallet: allowed origins, the text to sign, and one session for each signature."""

import asyncio
from typing import Any

import pytest

from api.clock import token
from tests.inapp.conftest import PAGE, Person
from tests.inapp.wallet import Wallet
from tests.routes.conftest import Org


async def test_the_text_names_page_wallet_and_chain(ann: Person) -> None:
    lines = (await ann.challenge(chainId=137)).split("\n")
    assert lines[0] == "app.example.com wants you to sign in with your Ethereum account:"
    assert lines[1].lower() == ann.wallet.address
    assert lines[5:8] == [f"URI: {PAGE}", "Version: 1", "Chain ID: 137"]


async def test_a_signed_text_gives_a_token(ann: Person) -> None:
    response = await ann.answer(await ann.challenge())
    assert response.status_code == 200
    assert response.json().keys() == {"token", "walletAddress", "expiresAt"}
    assert response.json()["walletAddress"] == ann.wallet.address
    assert response.headers["cache-control"] == "no-store"


async def test_a_signed_text_gives_one_token(ann: Person) -> None:
    message = await ann.challenge()
    assert [(await ann.answer(message)).status_code for _ in range(3)] == [200, 401, 401]


async def test_a_signed_text_gives_one_token_to_concurrent_requests(ann: Person) -> None:
    message = await ann.challenge()
    answers = await asyncio.gather(*(ann.answer(message) for _ in range(8)))
    assert sorted(response.status_code for response in answers) == [200] + [401] * 7


async def test_the_session_needs_no_key(ann: Person) -> None:
    assert (await ann.answer(await ann.challenge(), authorization="")).status_code == 200


async def test_mixed_and_lower_case_are_one_wallet(ann: Person) -> None:
    message = await ann.challenge()
    address = message.split("\n")[1]
    assert address != ann.wallet.address
    assert (await ann.answer(message.replace(address, ann.wallet.address))).status_code == 200


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("app.example.com wants", "evil.example wants"),
        (f"URI: {PAGE}", "URI: https://evil.example"),
        ("Version: 1", "Version: 2"),
        ("Chain ID: 1", "Chain ID: 5"),
        ("Nonce: ", "Nonce: 1"),
        ("Issued At: 20", "Issued At: 19"),
        ("Expiration Time: 20", "Expiration Time: 19"),
        ("\n\nURI", "\n\n\nURI"),
        ("app.example.com wants", "http://app.example.com wants"),
    ],
)
async def test_a_changed_text_is_refused(ann: Person, old: str, new: str) -> None:
    message = await ann.challenge()
    assert old in message
    assert (await ann.answer(message.replace(old, new))).status_code == 401


async def test_a_nonce_of_the_client_is_refused(ann: Person) -> None:
    message = await ann.challenge()
    nonce = message.partition("Nonce: ")[2].split("\n")[0]
    own = nonce.partition("g")[0] + "g" + token(12).hex()
    assert (await ann.answer(message.replace(nonce, own))).status_code == 401


async def test_a_challenge_ends_after_five_minutes(ann: Person) -> None:
    message = await ann.challenge()
    await ann.org.service.rows(
        "UPDATE inapp_challenges SET expires_at = (expires_at AT TIME ZONE 'UTC' - interval '5 minutes')"
        " AT TIME ZONE 'UTC' WHERE org_id = %s",
        ann.org.id,
    )
    assert (await ann.answer(message)).status_code == 401


async def test_forgotten_challenges_are_deleted(ann: Person) -> None:
    await ann.challenge()
    await ann.org.service.rows(
        "UPDATE inapp_challenges SET expires_at = (expires_at AT TIME ZONE 'UTC' - interval '1 hour')"
        " AT TIME ZONE 'UTC' WHERE org_id = %s",
        ann.org.id,
    )
    await ann.challenge()
    assert len(await ann.org.rows("nonce", "inapp_challenges", "nonce")) == 1


async def test_a_signature_of_another_wallet_is_refused(ann: Person, bob: Person) -> None:
    message = await ann.challenge()
    assert (await bob.answer(message)).status_code == 401
    assert (await ann.answer(message)).status_code == 200


async def test_a_key_of_another_organization_is_refused(ann: Person, eve: Person) -> None:
    message = await ann.challenge()
    other = f"Bearer {await eve.org.key('publishable')}"
    assert (await ann.answer(message, authorization=other)).status_code == 401


async def test_a_text_signed_for_one_page_is_refused_on_another(ann: Person) -> None:
    message = await ann.challenge()
    assert (await ann.answer(message, origin="http://localhost:3000")).status_code == 401


@pytest.mark.parametrize(
    "page", ["https://evil.example", "http://app.example.com", f"{PAGE}:8443", "null", "https://a.b/c"]
)
async def test_pages_of_other_origins_are_refused(ann: Person, page: str) -> None:
    response = await ann.post_json("challenge", {"walletAddress": ann.wallet.address}, origin=page)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("page", ["http://localhost:5173", "http://127.0.0.1:8000", "http://[::1]:3000"])
async def test_local_pages_are_always_allowed(ann: Person, page: str) -> None:
    response = await ann.post_json("challenge", {"walletAddress": ann.wallet.address}, origin=page)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == page


async def test_a_program_signs_in_without_a_page(acme: Org) -> None:
    person = Person(acme, Wallet(token(32)), page=None)
    message = await person.challenge()
    assert message.startswith("127.0.0.1:")
    assert (await person.answer(message)).status_code == 200


async def test_a_browser_may_read_answers_and_refusals(ann: Person) -> None:
    for response in (
        await ann.answer(await ann.challenge()),
        await ann.post_json("challenge", {"walletAddress": "0x1"}),
    ):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert response.headers["vary"] == "origin"


@pytest.mark.parametrize("path", ["challenge", "session"])
async def test_preflight_requests_are_answered(ann: Person, path: str) -> None:
    headers = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    response = await ann.org.service.client.options(f"/inapp/{path}", headers=headers)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == PAGE
    assert response.headers["access-control-allow-headers"] == "authorization, content-type"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "walletAddress"),
        ({"walletAddress": 1}, "walletAddress"),
        ({"walletAddress": "0xA"}, "walletAddress"),
        ({"walletAddress": "0x" + "é" * 40}, "walletAddress"),
        ({"walletAddress": "0x" + "a" * 40, "chainId": "1"}, "chainId"),
        ({"walletAddress": "0x" + "a" * 40, "chainId": True}, "chainId"),
        ({"walletAddress": "0x" + "a" * 40, "chainId": 0}, "chainId"),
    ],
)
async def test_an_invalid_wallet_address_is_a_400(ann: Person, body: dict[str, Any], field: str) -> None:
    response = await ann.post_json("challenge", body)
    assert (response.status_code, response.json()["field"]) == (400, field)


@pytest.mark.parametrize("body", [{}, {"message": "x"}, {"message": 1, "signature": "0x"}])
async def test_a_session_needs_text_and_signature(ann: Person, body: dict[str, Any]) -> None:
    assert (await ann.post_json("session", body)).status_code == 400


@pytest.mark.parametrize(("message", "signature"), [("", ""), ("x", "0x" + "0" * 130)])
async def test_malformed_text_is_a_401(ann: Person, message: str, signature: str) -> None:
    response = await ann.post_json("session", {"message": message, "signature": signature})
    assert response.status_code == 401


@pytest.mark.parametrize("kind", ["live", "test", "workbench"])
async def test_only_publishable_keys_sign_in(ann: Person, kind: Any) -> None:
    key = await ann.org.key(kind)
    response = await ann.post_json("challenge", {"walletAddress": ann.wallet.address}, authorization=f"Bearer {key}")
    assert response.status_code == 401
