"""API keys can be managed from a notebook."""

import subprocess
import sys

import pytest

from tests.running import Running
from workbench import InvalidArgumentError, InvalidRequestError, NotFoundError, PermissionDeniedError, Workbench


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    """A workbench with a key that may manage keys."""
    command = [sys.executable, "-m", "api", "key", "create", "--org", "demo", "--kind", "workbench"]
    scopes = ["--scopes", "events:read,keys:admin", "--name", "admin"]
    created = subprocess.run([*command, *scopes], env=running.environment(), capture_output=True, text=True, check=True)
    return Workbench(running.url, created.stdout.strip())


def test_a_key_is_created_rolled_and_revoked(wb: Workbench, running: Running) -> None:
    created = wb.keys.create("live", name="shop")
    for shown in (repr(created), created._repr_html_(), repr(wb.keys), wb.keys._repr_html_()):
        assert created.secret not in shown
        assert created.key.key in shown
    sender = Workbench(running.url, events_key=created.secret)
    assert sender.events.send("keys:made", external_id="u1").accepted
    rolled = wb.keys.roll("shop", overlap="2h")
    old, new = [key for key in wb.keys if key.name == "shop"]
    assert (old.status, new.id) == ("ending", rolled.key.id)
    assert old.status_text().startswith("works until 2")
    assert wb.keys.revoke("shop").status == "revoked"
    assert wb.keys.revoke(old).status_text().startswith("revoked 2")


def test_the_time_zone_of_the_organization_is_set_and_checked(running: Running) -> None:
    wb = running.workbench()
    assert wb.timezone is None
    wb.set_timezone("Asia/Tokyo")
    assert wb.timezone == "Asia/Tokyo"
    with pytest.raises(InvalidRequestError, match="timezone: must be the name of a time zone, like Europe/Zurich"):
        wb.set_timezone("Mars/Base")
    automation = wb.automation("Morning digest").on("zone:made").collect(until="09:00").add_tag("digest")
    automation.publish()
    assert not automation.plan()
    wb.set_timezone(None)
    assert "time zone of the organization: UTC, before: Asia/Tokyo" in str(automation.plan())
    automation.archive()


def test_a_strict_key_refuses_a_misspelt_event(wb: Workbench, running: Running) -> None:
    created = wb.keys.create("test", name="strict", strict=True)
    event = {"event": "keys:strict", "contact": {"externalId": "u1"}, "properties": {}}
    sender = Workbench(running.url, events_key=created.secret).events
    with pytest.raises(InvalidRequestError, match=r"properties: unknown field, did you mean payload\?"):
        sender.post(event)
    assert "test, strict" in repr(wb.keys)
    assert wb.keys.edit("strict", strict=False).strict is False


def test_an_ambiguous_or_unknown_key_name_is_refused(wb: Workbench) -> None:
    for _ in range(2):
        wb.keys.create("test", name="twins")
    with pytest.raises(InvalidArgumentError, match="2 keys have the name 'twins': pass the id of one"):
        wb.keys.revoke("twins")
    with pytest.raises(NotFoundError, match="active key not found: 'unknown'"):
        wb.keys.roll("unknown")


def test_listing_keys_requires_a_scope(running: Running) -> None:
    with pytest.raises(PermissionDeniedError, match="keys:admin"):
        _ = running.workbench().keys
