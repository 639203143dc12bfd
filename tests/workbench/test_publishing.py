"""Versions at the notebook: whom publishing concerns, and the way back."""

import pytest

from tests.acceptance.conftest import until
from tests.running import Running
from workbench import Automation, InvalidRequestError, NotFoundError, Workbench, WorkbenchError
from workbench.publish import EarlierEntries, Impact

WALLET = "0xAbCd000000000000000000000000000000001234"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def patient(wb: Workbench, name: str) -> Automation:
    """An automation in which everybody waits for a day."""
    return wb.automation(name).on(f"{name}:event").delay(days=1).add_tag(name)


def let_wait(wb: Workbench, automation: Automation, how_many: int = 1) -> None:
    """Send events, and wait until their entries do."""
    for _ in range(how_many):
        wb.events.send(f"{automation.name}:event", wallet_address=WALLET)
    until(lambda: len(automation.entries(state="waiting")) == how_many, "they wait")


def test_publishing_shows_who_is_on_the_way_and_that_they_finish_there(wb: Workbench) -> None:
    first = patient(wb, "impact").publish()
    assert first.impact == Impact()
    assert "on the way" not in repr(first)
    let_wait(wb, first, 2)
    second = first.add_tag("more").publish()
    assert second.impact == Impact(2, (EarlierEntries(1, "delay_1_day", "waiting", 2, "finishes"),))
    for shown in (repr(second), second._repr_html_()):
        assert "2 entries of earlier versions have not ended" in shown
        assert "finish on version 1" in shown
    assert repr(second.impact) in repr(second)
    assert "<table>" in second.impact._repr_html_()
    assert wb.automation("impact").impact is None


def test_publishing_what_is_off_says_who_is_on_the_way_too(wb: Workbench) -> None:
    automation = patient(wb, "impact-off").publish().deactivate()
    published = automation.add_tag("more").publish()
    assert published.impact == Impact()
    assert "active" in repr(published)


def test_the_impact_of_nobody_is_one_sentence() -> None:
    sentence = "All entries of earlier versions have ended."
    assert repr(Impact()) == sentence
    assert sentence in Impact()._repr_html_()


def test_the_consequences_for_entries_are_shown_in_words() -> None:
    fates = {"finishes": 1, "no_published_version": None, "automation_inactive": 1}
    impact = Impact(3, tuple(EarlierEntries(version, None, "pending", 1, then) for then, version in fates.items()))
    for words in (
        "finish on version 1",
        "end at once: nothing was published when they entered",
        "are cancelled: the automation is off",
        "not started",
    ):
        assert words in repr(impact)


def test_rolling_back_publishes_the_old_version_anew(wb: Workbench) -> None:
    first = patient(wb, "back").publish()
    let_wait(wb, first)
    second = first.add_tag("more").publish()
    back = second.rollback(1)
    assert back.to_json() == first.to_json() == wb.automation("back").to_json()
    assert [each.version for each in back.versions()] == [3, 2, 1]
    assert back.impact == Impact(1, (EarlierEntries(1, "delay_1_day", "waiting", 1, "finishes"),))
    assert "published, version 3, active" in repr(back)
    assert "unsaved changes" not in repr(back)


def test_rolling_back_leaves_what_is_not_published_yet(wb: Workbench) -> None:
    patient(wb, "back-draft").publish()
    published = patient(wb, "back-draft").add_tag("more").publish()
    draft = published.add_tag("still writing")
    back = draft.rollback(1)
    assert back.to_json() == draft.to_json()
    assert "published, version 3" in repr(back)
    assert "unsaved changes" in repr(back)


def test_rolling_back_switches_nothing_on(wb: Workbench) -> None:
    patient(wb, "back-off").publish()
    back = patient(wb, "back-off").add_tag("more").publish().deactivate().rollback(1)
    assert "published, version 3, off" in repr(back)


def test_a_version_that_is_not_there_is_refused_in_plain_words(wb: Workbench) -> None:
    automation = patient(wb, "back-where").publish()
    with pytest.raises(InvalidRequestError, match="there is no version 7; versions are 1 to 1"):
        automation.rollback(7)
    with pytest.raises(NotFoundError, match="not on the server yet"):
        patient(wb, "back-nowhere").rollback(1)
    with pytest.raises(WorkbenchError, match=r"'version'.*\.rollback\(1\)"):
        automation.rollback()


def test_switching_off_cancels_who_waits(wb: Workbench) -> None:
    automation = patient(wb, "cancelled").publish()
    let_wait(wb, automation)
    automation.deactivate()
    assert [(each.state, each.outcome) for each in automation.entries()] == [("cancelled", "automation_inactive")]
