"""The page of preferences, the confirmation of a topic, the one-click link, and the same by the API."""

import asyncio
import re
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from api.channels.signing import (
    ContactLink,
    Purpose,
    Unsubscription,
    contact_token,
    read_contact_token,
    unsubscribe_token,
)
from api.store.locks import hold_contacts
from api.store.query import run
from tests.routes.conftest import Org

FORM = {"content-type": "application/x-www-form-urlencoded"}
ZOE = {"email": "zoe@acme.example", "externalId": "zoe"}


@pytest.fixture
async def zoe(acme: Org) -> str:
    """A contact of an organization with two topics; return its id."""
    labels = {"de": "Neuigkeiten", "fr": "Actualités"}
    for name, topic in {
        "news": {"label": "News", "labels": labels},
        "deals": {"label": "Deals & <b>offers</b>", "optIn": "double"},
    }.items():
        assert (await acme.call("PUT", f"/topics/{name}", topic, kind="workbench")).status_code == 200
    return await contact(acme, ZOE, locale="de-AT")


async def contact(org: Org, identifiers: dict[str, str], **attributes: str) -> str:
    answer = await org.post({"event": "signup", "contact": identifiers, "attributes": attributes})
    assert answer[0] == 202, answer
    found = await org.call("POST", "/contacts/find", {"contact": identifiers})
    return str(found.json()["id"])


def page_url(org: Org, contact_id: str, purpose: Purpose = "preferences", topic: str = "") -> str:
    token = contact_token(org.service.keyring, ContactLink(purpose, org.id, contact_id, topic))
    base = f"http://127.0.0.1:{org.service.port}/preferences"
    return f"{base}/{token}" if purpose == "preferences" else f"{base}/confirm/{token}"


async def submit(org: Org, contact_id: str, *checked: str, **more: str) -> httpx.Response:
    """Send the form as a browser does; `checked`: topics and channels."""
    page = await org.service.client.get(page_url(org, contact_id))
    return await send(org, contact_id, page, *checked, **more)


async def send(org: Org, contact_id: str, page: httpx.Response, *checked: str, **more: str) -> httpx.Response:
    shown = re.findall(r'name="(shown_\w+|texts)" value="(\w+)"', page.text)
    chosen = [(name.removeprefix("shown_"), value) for name, value in shown if value in checked]
    content = urlencode([*shown, *chosen, *more.items()])
    return await org.service.client.post(page_url(org, contact_id), content=content, headers=FORM)


async def consents(org: Org) -> list[tuple[Any, ...]]:
    return await org.rows("coalesce(topic, channel), granted, source", "consents", "at, id")


async def preferences(org: Org, contact_id: str) -> Any:
    return (await org.call("GET", f"/contacts/{contact_id}/preferences")).json()


async def events(org: Org, name: str) -> list[Any]:
    rows = await org.rows("event, payload", "events", "created_at, id")
    return [payload for event, payload in rows if event == name]


async def test_the_page_is_in_the_locale_of_the_contact_and_opening_it_changes_nothing(acme: Org, zoe: str) -> None:
    response = await acme.service.client.get(page_url(acme, zoe))
    assert response.status_code == 200
    assert '<html lang="de">' in response.text
    assert "Neuigkeiten" in response.text  # de-AT has no label of its own
    assert "Deals &amp; &lt;b&gt;offers&lt;/b&gt;" in response.text
    assert "z•••@acme.example" in response.text
    assert ZOE["email"] not in response.text
    assert re.findall(r'value="(\w+)" checked', response.text) == ["news", "email", "inapp", "connection"]
    headers = response.headers
    assert (headers["cache-control"], headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert await consents(acme) == []


async def test_a_saved_page_declines_a_topic_and_a_channel_with_the_text_that_was_shown(acme: Org, zoe: str) -> None:
    response = await submit(acme, zoe, "inapp", "connection")
    assert "Ihre Einstellungen sind gespeichert." in response.text
    expected = {
        "topics": {"deals": False, "news": False},
        "channels": {"inapp": True, "email": False, "webhook": True, "connection": True},
    }
    assert await preferences(acme, zoe) == expected
    assert await consents(acme) == [("news", False, "preference_page"), ("email", False, "preference_page")]
    text = "Ihre Einstellungen\nWählen Sie, was Sie erhalten möchten.\nNeuigkeiten"
    statement = "SELECT text_sha256 FROM consents WHERE org_id = %s AND topic = 'news'"
    ((digest,),) = await acme.service.rows(statement, acme.id)
    assert digest == sha256(text.encode()).hexdigest()
    await submit(acme, zoe, "inapp", "connection")  # nothing has changed
    assert len(await consents(acme)) == 2
    await submit(acme, zoe, "news", "email", "inapp", "connection")
    assert (await preferences(acme, zoe))["channels"]["email"] is True
    assert (await consents(acme))[2:] == [("news", True, "preference_page"), ("email", True, "preference_page")]


async def test_a_page_whose_texts_have_changed_is_shown_again_before_anything_is_stored(acme: Org, zoe: str) -> None:
    page = await acme.service.client.get(page_url(acme, zoe))
    confirm = page_url(acme, zoe, "confirm", "deals")
    asked = await acme.service.client.get(confirm)
    for name in ("news", "deals"):
        topic = {"label": "Partners", "optIn": "double" if name == "deals" else "none"}
        assert (await acme.call("PUT", f"/topics/{name}", topic, kind="workbench")).status_code == 200
    again = await send(acme, zoe, page, "inapp")
    assert "Diese Seite hat sich geändert." in again.text
    assert "Partners" in again.text
    assert await consents(acme) == []
    (digest,) = re.findall(r'name="texts" value="(\w+)"', asked.text)
    again = await acme.service.client.post(confirm, content=f"texts={digest}", headers=FORM)
    assert "Möchten Sie Nachrichten zu „Partners“ erhalten?" in again.text
    assert await consents(acme) == []
    (digest,) = re.findall(r'name="texts" value="(\w+)"', again.text)
    assert "Vielen Dank" in (await acme.service.client.post(confirm, content=f"texts={digest}", headers=FORM)).text
    await send(acme, zoe, page, stop="all")  # who wants nothing need not read what has changed
    assert [granted for _, granted, _ in await consents(acme)] == [True, *[False] * 5]


async def test_everything_is_stopped_by_one_button_and_an_empty_form_stops_nothing(acme: Org, zoe: str) -> None:
    response = await acme.service.client.post(page_url(acme, zoe), content=b"List-Unsubscribe=One-Click", headers=FORM)
    assert response.status_code == 200
    assert await consents(acme) == []
    await submit(acme, zoe, "news", "email", "inapp", "connection", stop="all")
    expected = {
        "topics": {"deals": False, "news": False},
        "channels": {"inapp": False, "email": False, "webhook": True, "connection": False},
    }
    assert await preferences(acme, zoe) == expected


async def test_a_topic_with_double_opt_in_is_granted_after_its_link_is_confirmed(acme: Org, zoe: str) -> None:
    response = await submit(acme, zoe, "news", "deals", "email", "inapp", "connection")
    assert "Bitte bestätigen Sie" in response.text
    assert (await preferences(acme, zoe))["topics"]["deals"] is False
    assert await events(acme, "consent.requested") == [{"topic": "deals"}]
    url = page_url(acme, zoe, "confirm", "deals")
    assert '<form method="post">' in (await acme.service.client.get(url)).text
    assert (await preferences(acme, zoe))["topics"]["deals"] is False
    for _ in range(2):  # the second click changes nothing
        assert "Vielen Dank" in (await acme.service.client.post(url)).text
    assert (await preferences(acme, zoe))["topics"]["deals"] is True
    assert await consents(acme) == [("deals", True, "double_opt_in")]
    assert await events(acme, "consent.confirmed") == [{"topic": "deals"}]
    # A second request, after it was declined again
    await submit(acme, zoe, "news", "email", "inapp", "connection")
    await acme.service.client.post(url)
    assert [granted for _, granted, _ in await consents(acme)] == [True, False, True]
    assert len(await events(acme, "consent.confirmed")) == 2


async def test_one_click_withdraws_the_topic_of_the_message_and_leaves_the_channel(acme: Org, zoe: str) -> None:
    keyring = acme.service.keyring
    address = unsubscribe_token(keyring, Unsubscription(acme.id, keyring.of(acme.id).digest("email", ZOE["email"])))
    topic = contact_token(keyring, ContactLink("withdraw", acme.id, zoe, "news"))
    path = f"/unsubscribe?token={address}&topic={topic}"
    asked = await acme.service.client.get(path)
    assert "Nachrichten zu „Neuigkeiten“ abbestellen?" in asked.text
    assert await consents(acme) == []
    for _ in range(2):
        done = await acme.service.client.post(path, content=b"List-Unsubscribe=One-Click", headers=FORM)
        assert "Sie haben „Neuigkeiten“ abbestellt." in done.text
    assert await consents(acme) == [("news", False, "one_click")]
    assert (await preferences(acme, zoe))["channels"]["email"] is True
    for wrong in (topic[:-2], address, contact_token(keyring, ContactLink("confirm", acme.id, zoe, "news"))):
        refused = await acme.service.client.post(f"/unsubscribe?token={address}&topic={wrong}")
        assert (refused.status_code, refused.json()["field"]) == (400, "topic")
    await acme.service.client.post(f"/unsubscribe?token={address}")  # a message without a topic, as ever
    assert (await consents(acme))[1:] == [("email", False, "one_click")]


async def test_links_lead_to_the_kept_contact_of_a_merge_and_back_after_it_is_undone(acme: Org, zoe: str) -> None:
    other = await contact(acme, {"externalId": "zoe2"})
    await submit(acme, zoe, "email", "inapp", "connection")  # without news
    merged = await acme.call("POST", "/contacts/merge", {"keep": other, "absorb": zoe}, kind="workbench")
    assert (await preferences(acme, other))["topics"]["news"] is False
    await submit(acme, zoe, "news", "email", "inapp", "connection")
    assert (await preferences(acme, other))["topics"]["news"] is True
    undone = await acme.call("POST", f"/contacts/merges/{merged.json()['id']}/undo", kind="workbench")
    assert undone.status_code == 200, undone.text
    assert (await preferences(acme, other))["topics"]["news"] is True
    assert (await preferences(acme, zoe))["topics"]["news"] is False  # its own latest choice


async def post_during_merge(org: Org, keep: str, absorbed: str, url: str) -> None:
    """Merge two contacts, and send a request that waits for the lock of the absorbed one."""
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with asyncio.TaskGroup() as tasks, org.service.services.system_database.transaction() as tx:
        await run(tx, hold_contacts([keep]))
        body = {"keep": keep, "absorb": absorbed}
        merging = tasks.create_task(org.call("POST", "/contacts/merge", body, kind="workbench"))
        while await tx.fetch_value(waiting) < 1:
            pass
        posting = tasks.create_task(org.service.client.post(url))
        while await tx.fetch_value(waiting) < 2:
            pass
    assert (merging.result().status_code, posting.result().status_code) == (200, 200)


def in_order_of_locks(*contact_ids: str) -> list[str]:
    """A merge locks both contacts in this order reversed: while it waits for the first, it holds the second."""
    return sorted(contact_ids, key=lambda contact_id: contact_id[19:])


async def test_a_topic_is_confirmed_while_its_contact_is_merged(acme: Org, zoe: str) -> None:
    keep, absorbed = in_order_of_locks(zoe, await contact(acme, {"externalId": "zoe2"}))
    await post_during_merge(acme, keep, absorbed, page_url(acme, absorbed, "confirm", "deals"))
    assert (await preferences(acme, keep))["topics"]["deals"] is True


async def test_emails_are_stopped_while_the_owner_of_the_address_is_merged(acme: Org, zoe: str) -> None:
    addresses = {zoe: ZOE["email"], await contact(acme, {"email": "zoe2@acme.example"}): "zoe2@acme.example"}
    keep, absorbed = in_order_of_locks(*addresses)
    digest = acme.service.keyring.of(acme.id).digest("email", addresses[absorbed])
    token = unsubscribe_token(acme.service.keyring, Unsubscription(acme.id, digest))
    await post_during_merge(acme, keep, absorbed, f"/unsubscribe?token={token}")
    assert (await preferences(acme, keep))["channels"]["email"] is False
    assert await acme.rows("contact_id", "consents", "id") == [(keep,)]


async def test_an_erased_contact_has_no_consents_and_its_links_say_so(acme: Org, zoe: str) -> None:
    await submit(acme, zoe)
    exported = (await acme.call("GET", f"/contacts/{zoe}/export", kind="workbench")).json()["consents"]
    assert [(row["topic"], row["channel"], row["granted"]) for row in exported] == [
        ("news", None, False),
        (None, "email", False),
        (None, "inapp", False),
        (None, "connection", False),
    ]
    key = await acme.key("workbench", "contacts:erase")
    erased = await acme.service.client.delete(f"/contacts/{zoe}", headers={"authorization": f"Bearer {key}"})
    assert erased.status_code == 200
    assert await consents(acme) == []
    urls = [page_url(acme, zoe), page_url(acme, zoe, "confirm", "deals"), page_url(acme, zoe)[:-3]]
    for url in urls:
        for method in ("GET", "POST"):
            response = await acme.service.client.request(method, url)
            assert (response.status_code, "no longer valid" in response.text) == (404, True)


async def test_a_link_serves_one_purpose_of_one_contact_of_one_organization(acme: Org, globex: Org, zoe: str) -> None:
    keyring = acme.service.keyring
    link = ContactLink("confirm", acme.id, zoe, "news")
    assert read_contact_token(keyring, "confirm", contact_token(keyring, link)) == link
    for purpose in ("preferences", "withdraw"):
        assert read_contact_token(keyring, purpose, contact_token(keyring, link)) is None
    stranger = page_url(globex, zoe)
    assert (await acme.service.client.get(stranger)).status_code == 404


async def test_the_api_reads_and_sets_preferences(acme: Org, zoe: str) -> None:
    path = f"/contacts/{zoe}/preferences"
    answer = await acme.call("PUT", path, {"topics": {"deals": True, "news": False}, "channels": {"email": False}})
    assert answer.json()["topics"] == {"deals": True, "news": False}
    assert await consents(acme) == [("deals", True, "api"), ("news", False, "api"), ("email", False, "api")]
    found = (await acme.call("GET", f"/contacts/{zoe}")).json()
    assert (found["declined"], found["optedOut"]) == (["news"], ["email"])
    wrong = await acme.call("PUT", path, {"topics": {"newz": True}})
    assert (wrong.status_code, wrong.json()["field"]) == (400, "topics.newz")
    assert "did you mean 'news'?" in wrong.text
    for body in ({}, {"topics": {}}, {"topics": {"news": "no"}}, {"channels": {"fax": True}}):
        assert (await acme.call("PUT", path, body)).status_code == 400
    await acme.call("PUT", f"/contacts/{zoe}/opt-outs", {"email": False})
    assert (await consents(acme))[3:] == [("email", True, "api")]
