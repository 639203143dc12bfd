"""The canvas and the real service: twelve actions from new to published, whom publishing meets, and somebody else's changes."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.bare import bare
from tests.browser.hand import Hand
from tests.running import Running

pytestmark = pytest.mark.browser


def test_from_new_to_published_and_tested_in_twelve_actions(page: Page, running: Running) -> None:
    automation = running.workbench().automation("Canvas: twelve actions")
    with bare(page, automation) as shown:
        hand = Hand(page, actions=1)  # running the cell that opens it
        hand.choose("Event", "deposit")
        hand.add("send_inapp")
        hand.fill("Title", "Thank you")
        hand.fill("Text", "{{ amountUsd }} {{ asset }} have arrived.")
        hand.press("Test")
        expect(page.get_by_test_id("trial")).to_contain_text("Would send 1 message")
        hand.press("Publish")
        hand.click(page.get_by_role("dialog").get_by_role("button", name="Publish"))
        expect(page.get_by_test_id("notice")).to_contain_text("Published")
        assert hand.actions <= 12, hand.actions
        assert "published, version 1, active" in repr(shown.automation)


def test_who_is_on_the_way_is_counted_and_shown_before_publishing(page: Page, running: Running) -> None:
    wb = running.workbench()
    automation = wb.automation("Canvas: on the way").on("canvas:waits").delay(days=1).add_tag("late").publish()
    wb.events.send("canvas:waits", wallet_address="0xca11ab1e00000000000000000000000000000002")
    with bare(page, automation):
        waiting = page.locator('.react-flow__node[data-id="delay_1_day"]')
        expect(waiting.get_by_test_id("live")).to_have_text("● 1 here", timeout=20_000)
        page.locator('.react-flow__node[data-id="add_tag_late"]').click()
        page.get_by_label("Tag", exact=True).fill("later")
        page.get_by_role("button", name="Publish").click()
        told = page.get_by_test_id("impact")
        expect(told).to_contain_text("Version 2 replaces version 1")
        expect(told).to_contain_text("1 entry of earlier versions is still on the way")
        expect(told).to_contain_text("finish on version 1")
        page.get_by_role("dialog").get_by_role("button", name="Publish").click()
        expect(page.get_by_test_id("notice")).to_contain_text("Published")
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("dialog").get_by_role("button", name="Switch off").click()
        expect(page.get_by_role("button", name="Activate")).to_be_visible()


def test_somebody_elses_change_is_said_plainly_and_can_be_loaded(page: Page, running: Running) -> None:
    mine = running.workbench().automation("Canvas: two people").on("deposit").add_tag("mine").save()
    with bare(page, mine):
        running.workbench().automation(mine.name).on("deposit").add_tag("theirs").save()
        page.locator('.react-flow__node[data-id="add_tag_mine"]').click()
        page.get_by_label("Tag", exact=True).fill("still mine")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_test_id("stale")).to_contain_text("omeone changed")
        page.get_by_role("button", name="Load theirs").click()
        page.get_by_role("dialog").get_by_role("button", name="Load").click()
        expect(page.locator('.react-flow__node[data-id="add_tag_theirs"]')).to_be_visible()
        expect(page.get_by_test_id("stale")).to_have_count(0)
        assert "theirs" in mine.describe()
