"""Publishing from a notebook shows the entries of earlier versions; versions can be rolled back."""

import pytest

from tests.installation import until
from tests.running import Running
from workbench import Automation, InvalidRequestError, NotFoundError, PublishError, Workbench, WorkbenchError
from workbench.publish import EarlierEntries, Impact

WALLET = "0xAbCd000000000000000000000000000000001234"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def create_delayed(wb: Workbench, name: str) -> Automation:
    """Return an automation in which every entry waits for a day."""
    return wb.automation(name).on(f"{name}:event").delay(days=1).add_tag(name)


def start_waiting(wb: Workbench, automation: Automation, how_many: int = 1) -> None:
    """Send events, and return when their entries wait."""
    for _ in range(how_many):
        wb.events.send(f"{automation.name}:event", wallet_address=WALLET)
    until(lambda: len(automation.entries(state="waiting")) == how_many, "they wait")


def test_publishing_shows_unfinished_entries_and_that_they_finish_on_their_version(wb: Workbench) -> None:
    first = create_delayed(wb, "impact").publish()
    assert first.impact == Impact()
    assert "on the way" not in repr(first)
    start_waiting(wb, first, 2)
    second = first.add_tag("more").publish()
    assert second.impact == Impact(2, (EarlierEntries(1, "delay_1_day", "waiting", 2, "finishes"),))
    for shown in (repr(second), second._repr_html_()):
        assert "2 entries of earlier versions have not ended" in shown
        assert "finish on version 1" in shown
    assert repr(second.impact) in repr(second)
    assert "<table>" in second.impact._repr_html_()
    assert wb.automation("impact").impact is None


def test_publishing_an_inactive_automation_activates_it_and_shows_the_impact(wb: Workbench) -> None:
    automation = create_delayed(wb, "impact-off").publish().deactivate()
    published = automation.add_tag("more").publish()
    assert published.impact == Impact()
    assert "live" in repr(published)


def test_an_impact_without_entries_is_one_sentence() -> None:
    sentence = "All entries of earlier versions have ended."
    assert repr(Impact()) == sentence
    assert sentence in Impact()._repr_html_()


def test_the_consequences_for_entries_are_shown_in_words() -> None:
    versions = {"finishes": 1, "no_published_version": None, "automation_inactive": 1}
    impact = Impact(
        3, tuple(EarlierEntries(version, None, "pending", 1, consequence) for consequence, version in versions.items())
    )
    for words in (
        "finish on version 1",
        "end at once: nothing was published when they entered",
        "are cancelled: the automation is off",
        "not started",
    ):
        assert words in repr(impact)


def test_rolling_back_publishes_the_old_version_again(wb: Workbench) -> None:
    first = create_delayed(wb, "back").publish()
    start_waiting(wb, first)
    second = first.add_tag("more").publish()
    back = second.rollback(1)
    assert back.to_json() == first.to_json() == wb.automation("back").to_json()
    assert [version.version for version in back.versions()] == [3, 2, 1]
    assert back.impact == Impact(1, (EarlierEntries(1, "delay_1_day", "waiting", 1, "finishes"),))
    assert "live, version 3" in repr(back)
    assert "unsaved changes" not in repr(back)


def test_rolling_back_keeps_unpublished_changes(wb: Workbench) -> None:
    create_delayed(wb, "back-draft").publish()
    published = create_delayed(wb, "back-draft").add_tag("more").publish()
    draft = published.add_tag("still writing")
    back = draft.rollback(1)
    assert back.to_json() == draft.to_json()
    assert "live, version 3" in repr(back)
    assert "unsaved changes" in repr(back)


def test_rolling_back_does_not_activate(wb: Workbench) -> None:
    create_delayed(wb, "back-off").publish()
    back = create_delayed(wb, "back-off").add_tag("more").publish().deactivate().rollback(1)
    assert "off, version 3" in repr(back)


def test_an_unknown_version_is_refused(wb: Workbench) -> None:
    automation = create_delayed(wb, "back-where").publish()
    with pytest.raises(InvalidRequestError, match="version 7 not found; versions are 1 to 1"):
        automation.rollback(7)
    with pytest.raises(NotFoundError, match="not on the server yet"):
        create_delayed(wb, "back-nowhere").rollback(1)
    with pytest.raises(WorkbenchError, match=r"'version'.*\.rollback\(1\)"):
        automation.rollback()


def test_deactivating_cancels_waiting_entries(wb: Workbench) -> None:
    automation = create_delayed(wb, "cancelled").publish()
    start_waiting(wb, automation)
    automation.deactivate()
    assert [(entry.state, entry.outcome) for entry in automation.entries()] == [("cancelled", "automation_inactive")]


GREATER = {"path": "amountUsd", "operator": "gt", "value": 500}


def tagging(wb: Workbench, name: str, **trigger: object) -> Automation:
    """Return an automation of the server with this trigger, as another program may save it."""
    automation = wb.automation(name).on("deposit").add_tag("big")
    payload = automation.to_json()
    payload["triggerSpec"] = {"type": "app_event"} | trigger
    wb._connection.post("/automations", payload)
    return wb.automation(name)


def test_a_filter_that_would_be_dropped_is_published_only_with_consent(wb: Workbench) -> None:
    automation = tagging(wb, "big-deposits", event="deposit", filters=[GREATER])
    with pytest.raises(PublishError, match=r"'gt' on 'amountUsd' is unknown and will be dropped.*accept_dropped=True"):
        automation.publish()
    with pytest.raises(PublishError, match="accept_dropped=True"):
        automation.publish(every_event=True)
    assert "live, version 1" in repr(automation.publish(accept_dropped=True))


def test_a_first_node_of_an_unknown_kind_is_published_only_with_consent(wb: Workbench) -> None:
    payload = wb.automation("odd-start").on("odd:start").add_tag("odd").to_json()
    payload["graph"]["nodes"][0] |= {"type": "teleport"}
    wb._connection.post("/automations", payload)
    automation = wb.automation("odd-start")
    with pytest.raises(PublishError, match=r"kind 'teleport' is unknown and will be dropped.*accept_dropped=True"):
        automation.publish()
    record = next(record for record in wb.automations if record.name == "odd-start")
    published = wb._connection.post(f"/automations/{record.id}/publish")
    assert [warning["consent"] for warning in published["warnings"]] == ["accept_dropped"]
    entry = automation.wait_for_entry(wb.events.send("odd:start", external_id="odd"))
    assert [(step.kind, step.outcome) for step in entry.steps] == [("app_event", "entered"), ("add_tag", "tagged")]
    assert automation.simulate({"contact": {"externalId": "odd"}}).outcome == entry.outcome


def test_an_empty_event_name_is_published_only_with_consent(wb: Workbench) -> None:
    automation = tagging(wb, "empty-name", event="")
    with pytest.raises(PublishError, match=r"every custom event of the organization starts.*every_event=True"):
        automation.publish()
    published = automation.publish(every_event=True)
    deliberate = wb.automation("any-event").on_any_event().add_tag("x").publish()
    assert [published.state, deliberate.state] == ["live", "live"]
    for automation in (published, deliberate):
        automation.deactivate()  # other tests send events, too


def test_over_http_a_dropped_filter_is_a_warning_as_in_the_contract(wb: Workbench) -> None:
    tagging(wb, "over-http", event="deposit", filters=[GREATER])
    record = next(record for record in wb.automations if record.name == "over-http")
    published = wb._connection.post(f"/automations/{record.id}/publish", {"revision": record.revision})
    assert published["publishedVersion"] == 1
    assert [warning["consent"] for warning in published["warnings"]] == ["accept_dropped"]
