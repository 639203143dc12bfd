"""Versions: a notebook sends its version with every request; an unsupported one is refused at once."""

import asyncio

import pytest

import workbench.connection
from tests.routes.conftest import Org, Service
from workbench import VersionError, Workbench
from workbench.language.version import VERSION, VERSION_HEADER


async def test_the_supported_notebook_versions_are_public(service: Service) -> None:
    answer = await service.client.get("/version")
    assert (answer.status_code, answer.json()) == (
        200,
        {"version": VERSION, "notebooks": {"oldest": "0.1", "newest": "0.1"}},
    )


@pytest.mark.parametrize("path", ["/automations", "/an/address/of/the/future"])
@pytest.mark.parametrize(("version", "word"), [("0.0.9", "too old"), ("0.2.0", "newer"), ("x", "not a version")])
async def test_an_unsupported_notebook_version_changes_nothing(acme: Org, path: str, version: str, word: str) -> None:
    headers = {"authorization": f"Bearer {await acme.key('workbench')}", VERSION_HEADER: version}
    answer = await acme.service.client.post(path, json={}, headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (400, VERSION_HEADER)
    assert word in answer.json()["error"]


async def test_events_are_accepted_from_every_version(acme: Org) -> None:
    headers = {"authorization": f"Bearer {await acme.key()}", VERSION_HEADER: "0.0.1"}
    event = {"event": "deposit", "contact": {"externalId": "u1"}}
    single = await acme.service.client.post("/events", json=event, headers=headers)
    batch = await acme.service.client.post("/events/batch", json={"events": [event]}, headers=headers)
    assert (single.status_code, batch.status_code) == (202, 202)


async def test_a_request_without_a_version_is_served(acme: Org) -> None:
    headers = {"authorization": f"Bearer {await acme.key('workbench')}"}
    assert (await acme.service.client.get("/automations", headers=headers)).status_code == 200


async def test_the_notebook_sends_its_version_with_every_call(acme: Org, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench.connection, "VERSION", "0.2.0")
    wb = Workbench(f"http://127.0.0.1:{acme.service.port}", await acme.key("workbench"))

    def refusals() -> list[str]:
        calls = (lambda: wb.sql("SELECT 1"), lambda: wb.automations, lambda: list(wb.sql("SELECT 1", stream=True)))
        for call in calls:
            with pytest.raises(VersionError, match="upgrade the server first"):
                call()
        return [repr(wb)]

    (shown,) = await asyncio.to_thread(refusals)
    assert "newer than the server" in shown
