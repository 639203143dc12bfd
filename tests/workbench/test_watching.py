"""Watching at the notebook: what runs, what rests, what it brings about."""

import pytest

from tests.acceptance.conftest import until
from tests.running import Running
from workbench import Automation, RefusedError, Workbench

WALLET = "0xAbCd000000000000000000000000000000004321"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def send(wb: Workbench, event: str, *people: str) -> None:
    for person in people:
        assert wb.events.send(event, external_id=person).accepted


def ended(automation: Automation, how_many: int) -> None:
    """Wait until so many entries have ended."""
    until(lambda: sum(each.ended for each in automation.entries()) == how_many, "they ended")


def test_an_automation_is_paused_and_goes_on(wb: Workbench) -> None:
    automation = wb.automation("pausing").on("pausing:event").delay(minutes=10).publish().pause()
    assert "paused" in repr(automation)
    assert wb.automation("pausing").simulate({"contact": {"walletAddress": WALLET}}).note.startswith("It is paused")
    send(wb, "pausing:event", "p1")
    assert "(published, version 1, active)" in repr(automation.resume())
    send(wb, "pausing:event", "p2")
    until(lambda: len(automation.entries(state="waiting")) == 1, "the second waits")
    assert len(automation.entries()) == 1


def test_what_is_off_cannot_be_paused_and_a_wrong_word_is_refused(wb: Workbench) -> None:
    automation = wb.automation("pausing-off").on("pausing-off:event").add_tag("x").publish().deactivate()
    with pytest.raises(RefusedError, match="nothing to pause"):
        automation.pause()
    with pytest.raises(RefusedError, match="must be run or cancel"):
        automation.resume(overdue="later")  # type: ignore[arg-type]


def test_who_changed_what_is_a_frame(wb: Workbench) -> None:
    automation = wb.automation("audited").on("audited:event").add_tag("x").publish()
    automation.add_tag("y").publish()
    mine = automation.audit()
    assert mine["action"].to_list() == [
        "automation.publish",
        "automation.update",
        "automation.publish",
        "automation.create",
    ]
    assert mine["to_version"].to_list() == [2, None, 1, None]
    assert mine["from_version"].to_list() == [1, None, None, None]
    assert "1 → 2" in repr(mine)
    assert "automation: publish" in mine._repr_html_()
    assert "audited" in wb.audit(3, action="automation.publish")["subject"].to_list()
    assert wb.audit(3, action="nothing").is_empty()
