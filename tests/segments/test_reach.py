"""What the contacts of a segment lack that messages need: counts by locale, and the warnings of checks."""

from itertools import pairwise
from typing import Any

import pytest

from api.segments import reach
from tests.segments.conftest import Team
from tests.segments.test_starts import VIP, tag

TEXTS = {"subject": "Hi {{ contact.plan }}", "body": "b", "onMissing": "skip"}
EMAIL = {"id": "m", "type": "send_email", "data": TEXTS | {"locales": {"de": {"subject": "s", "body": "b"}}}}
NEEDS = [{"path": ""}, {"path": "contact.plan"}, {"path": "email"}, {"path": "externalId", "segments": ["vip"]}]
BROADCAST: dict[str, Any] = {"type": "broadcast"}
NOTE = "They get the default texts; set defaultLocale if that is their locale"


def graph(*nodes: dict[str, Any]) -> dict[str, Any]:
    ids = ["t", *(node["id"] for node in nodes)]
    edges = [{"source": a, "target": b} for a, b in pairwise(ids)]
    return {"nodes": [{"id": "t", "type": "app_event"}, *nodes], "edges": edges}


@pytest.fixture
async def vip(acme: Team) -> None:
    """Three members of the segment `vip`, and a contact outside of it."""
    people = {"a": {"locale": "de-AT", "plan": "pro"}, "b": {"locale": "FR_fr"}, "c": {"locale": "a@b.example"}}
    for name, attributes in people.items():
        await tag(acme, await acme.contact(name, **attributes), "vip")
    await acme.contact("outside", locale="it")
    await acme.expect_success("POST", "", VIP)


async def call(team: Team, path: str, body: Any) -> Any:
    key = await team.org.key("workbench", "automations:write", "automations:publish", "contacts:read")
    answer = await team.org.call("POST", path, body, authorization=f"Bearer {key}")
    assert answer.status_code < 300, answer.text
    return answer.json()


async def automation(team: Team, spec: dict[str, Any], *nodes: dict[str, Any]) -> str:
    body = {"name": "n", "triggerSpec": spec, "graph": graph(*nodes)}
    automation_id: str = (await call(team, "/automations", body))["id"]
    return automation_id


def about_contacts(warnings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(item["nodeId"], item["message"]) for item in warnings if "contacts of" in item["message"]]


@pytest.mark.usefixtures("vip")
async def test_missing_values_of_a_segment_are_counted_by_locale(acme: Team) -> None:
    counted = await acme.expect_success("POST", "/reach", {"segment": "vip", "needs": NEEDS})
    assert (counted["contacts"], counted["isSample"]) == (3, False)
    rows = {(row["need"], row["locale"]): (row["missing"], row["sampled"]) for row in counted["counts"]}
    assert rows == {
        (need, locale): (1 if need == 2 or (need == 1 and locale != "de-AT") else 0, 1)
        for need in range(4)
        for locale in ("de-AT", "fr-FR", None)  # what is no locale might be an address
    }
    everybody = await acme.expect_success("POST", "/reach", {"all": True, "needs": NEEDS})
    assert everybody["contacts"] == 4
    assert [row["sampled"] for row in everybody["counts"] if row["need"] == 3] == [1, 1, 1]  # members of vip


@pytest.mark.usefixtures("vip")
async def test_only_keys_that_may_read_contacts_count_them(acme: Team) -> None:
    answer = await acme.call("POST", "/reach", {"all": True, "needs": []}, "automations:write")
    assert answer.status_code == 403
    assert await acme.expect_refusal("POST", "/reach", {"needs": []}) == (400, 'name a segment, or write "all": true')


@pytest.mark.usefixtures("vip")
@pytest.mark.parametrize("trigger", ["segment_entered", "segment_left", "schedule"])
async def test_a_publication_names_the_locales_of_the_segment_without_texts(acme: Team, trigger: str) -> None:
    spec = {"type": trigger, "segment": "vip"} | ({"cron": "0 9 * * mon"} if trigger == "schedule" else {})
    automation_id = await automation(acme, spec, EMAIL)
    published = await call(acme, f"/automations/{automation_id}/publish", {})
    assert about_contacts(published["warnings"]) == [
        ("m", f"has no texts in the locales of 1 of the 3 contacts of the segment 'vip': fr-FR (1). {NOTE}"),
        ("m", "is skipped for 2 of the 3 contacts of the segment 'vip': contact.plan is missing"),
        ("m", "is skipped for 3 of the 3 contacts of the segment 'vip': email is missing"),
    ]


@pytest.mark.usefixtures("vip")
async def test_a_broadcast_is_checked_against_all_contacts_and_its_preview_against_its_segment(acme: Team) -> None:
    automation_id = await automation(acme, BROADCAST, EMAIL)
    published = await call(acme, f"/automations/{automation_id}/publish", {})
    assert about_contacts(published["warnings"])[0][1] == (
        f"has no texts in the locales of 2 of the 4 contacts of the organization: fr-FR (1), it (1). {NOTE}"
    )
    preview = await call(acme, f"/automations/{automation_id}/broadcasts/preview", {"segment": "vip"})
    assert about_contacts(preview["warnings"])[0][1] == (
        f"has no texts in the locales of 1 of the 3 contacts of the segment 'vip': fr-FR (1). {NOTE}"
    )


@pytest.mark.usefixtures("vip")
async def test_the_newest_contacts_stand_for_a_large_segment(acme: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "MAX_SAMPLED_CONTACTS", 2)
    automation_id = await automation(acme, {"type": "segment_entered", "segment": "vip"}, EMAIL)
    published = await call(acme, f"/automations/{automation_id}/publish", {})
    assert about_contacts(published["warnings"])[0][1] == (
        "has no texts in the locales of 1 of the 2 newest contacts of the segment 'vip', a sample: fr-FR (1). " + NOTE
    )


async def test_contacts_of_another_organization_are_not_counted(acme: Team, globex: Team) -> None:
    await acme.contact("a", locale="it")
    assert (await globex.expect_success("POST", "/reach", {"all": True, "needs": NEEDS}))["contacts"] == 0
