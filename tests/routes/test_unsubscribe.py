"""`/unsubscribe` and the suppressions it writes (docs/trust.md J12)."""

from api.channels.signing import Unsubscription, unsubscribe_token
from api.store.messages import find_suppressed
from tests.routes.conftest import Org

ONE_CLICK = {"content-type": "application/x-www-form-urlencoded"}


def digest(org: Org, address: str = "zoe@acme.example") -> str:
    return org.service.keyring.of(org.id).digest("email", address)


def path(org: Org) -> str:
    return f"/unsubscribe?token={unsubscribe_token(org.service.keyring, Unsubscription(org.id, digest(org)))}"


async def is_suppressed(org: Org, address: str = "zoe@acme.example") -> bool:
    async with org.service.services.system_database.transaction() as tx:
        return bool(await find_suppressed(tx, org.id, "email", [digest(org, address)]))


async def test_one_click_ends_the_emails_of_one_organization_to_one_address(acme: Org, globex: Org) -> None:
    response = await acme.service.client.post(path(acme), content=b"List-Unsubscribe=One-Click", headers=ONE_CLICK)
    assert response.status_code == 200
    assert await is_suppressed(acme)
    assert not await is_suppressed(acme, "another@acme.example")
    assert not await is_suppressed(globex)


async def test_a_second_click_changes_nothing(acme: Org) -> None:
    for _ in range(2):
        assert (await acme.service.client.post(path(acme))).status_code == 200
    assert len(await acme.rows("created_at", "suppressions", "created_at")) == 1


async def test_opening_the_link_only_asks_for_confirmation(acme: Org) -> None:
    response = await acme.service.client.get(path(acme))
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert '<form method="post">' in response.text
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert not await is_suppressed(acme)


async def test_a_link_without_a_valid_token_is_refused(acme: Org) -> None:
    for method in ("GET", "POST"):
        for wrong in ("/unsubscribe", "/unsubscribe?token=", "/unsubscribe?token=%00", path(acme)[:-3]):
            response = await acme.service.client.request(method, wrong)
            assert response.status_code == 400
            assert response.json()["field"] == "token"


async def test_many_addresses_of_an_organization_are_looked_up_at_once(acme: Org, globex: Org) -> None:
    await acme.service.client.post(path(acme))
    digests = [digest(acme), digest(acme, "another@acme.example")]
    async with acme.service.services.system_database.transaction() as tx:
        assert await find_suppressed(tx, acme.id, "email", digests) == {digest(acme)}
        assert await find_suppressed(tx, globex.id, "email", [*digests, digest(globex)]) == set()
        assert await find_suppressed(tx, acme.id, "email", []) == set()
