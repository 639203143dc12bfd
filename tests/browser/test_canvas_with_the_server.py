"""With the real service, a canvas creates an automation, shows the impact of publishing, and handles conflicts."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.bare_page import open_canvas
from tests.browser.mouse import Mouse
from tests.browser.test_canvas_accessibility import AXE, serious_findings
from tests.browser.test_canvas_view import EVIL, data_of, wait_until_sent
from tests.running import Running

pytestmark = pytest.mark.browser


def test_an_automation_is_built_tested_and_published_in_twelve_actions(page: Page, running: Running) -> None:
    automation = running.workbench().automation("Canvas: twelve actions")
    with open_canvas(page, automation) as view:
        mouse = Mouse(page, actions=1)  # running the cell that opens it
        mouse.choose("Event", "deposit")
        mouse.add("send_inapp")
        mouse.fill("Title", "Thank you")
        mouse.fill("Text", "{{ amountUsd }} {{ asset }} have arrived.")
        mouse.press("Test")
        expect(page.get_by_test_id("simulation")).to_contain_text("Would send 1 message")
        mouse.press("Publish")
        mouse.click(page.get_by_role("dialog").get_by_role("button", name="Publish"))
        expect(page.get_by_test_id("notice")).to_contain_text("Published")
        assert mouse.actions <= 12, mouse.actions
        assert "live, version 1" in repr(view.automation)


def test_publishing_shows_the_entries_in_progress(page: Page, running: Running) -> None:
    wb = running.workbench()
    automation = wb.automation("Canvas: on the way").on("canvas:waits").delay(days=1).add_tag("late").publish()
    wb.events.send("canvas:waits", wallet_address="0xca11ab1e00000000000000000000000000000002")
    with open_canvas(page, automation):
        waiting = page.locator('.react-flow__node[data-id="delay_1_day"]')
        expect(waiting.get_by_test_id("live")).to_have_text("● 1 here", timeout=20_000)
        page.locator('.react-flow__node[data-id="add_tag_late"]').click()
        page.get_by_label("Tag", exact=True).fill("later")
        page.get_by_role("button", name="Publish").click()
        impact = page.get_by_test_id("impact")
        expect(impact).to_contain_text("Version 2 replaces version 1")
        expect(impact).to_contain_text("1 entry of earlier versions has not ended")
        expect(impact).to_contain_text("finish on version 1")
        moves = page.get_by_test_id("moves")
        expect(moves).to_contain_text("1 of 1 entry of earlier versions would be moved to version 2")
        expect(moves).to_contain_text("add_tag_late")
        moves.get_by_role("checkbox", name="Move waiting entries to the new version").check()
        page.get_by_role("dialog").get_by_role("button", name="Publish").click()
        expect(page.get_by_test_id("notice")).to_contain_text("1 of 1 entry of earlier versions moved to version 2")
        assert automation.moves is not None
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Resume").click()
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("dialog").get_by_role("button", name="Switch off").click()
        expect(page.get_by_role("button", name="Activate")).to_be_visible()


def test_a_conflict_is_shown_and_the_server_version_can_be_loaded(page: Page, running: Running) -> None:
    mine = running.workbench().automation("Canvas: two people").on("deposit").add_tag("mine").save()
    with open_canvas(page, mine):
        running.workbench().automation(mine.name).on("deposit").add_tag("theirs").save()
        page.locator('.react-flow__node[data-id="add_tag_mine"]').click()
        page.get_by_label("Tag", exact=True).fill("still mine")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.get_by_test_id("stale")).to_contain_text("Someone changed")
        page.get_by_role("button", name="Load theirs").click()
        page.get_by_role("dialog").get_by_role("button", name="Load").click()
        expect(page.locator('.react-flow__node[data-id="add_tag_theirs"]')).to_be_visible()
        expect(page.get_by_test_id("stale")).to_have_count(0)
        assert "theirs" in mine.describe()


def test_enter_takes_the_suggestion_that_is_most_like_the_typed_text(page: Page, running: Running) -> None:
    automation = running.workbench().automation("Canvas: likeness")
    with open_canvas(page, automation) as view:
        event = page.get_by_role("combobox", name="Event", exact=True)
        chosen = page.get_by_label("Chosen events")
        for typed, keys, name in (
            ("depo", "Enter", "deposit"),
            ("dpeosit", "Enter", "deposit"),  # misspelt
            ("DEPOSIT", "Enter", "deposit"),
            ("depo", "ArrowUp Enter", "depo"),  # as typed
            ("depo", "Escape Enter", "depo"),
            ("never:seen", "Enter", "never:seen"),
        ):
            event.click()
            expect(page.locator(".ewc-combo").get_by_role("option", name="deposit")).to_be_visible()
            event.fill(typed)
            for key in keys.split():
                event.press(key)
            expect(chosen.get_by_role("listitem")).to_contain_text([name])
            page.get_by_role("button", name=f"Remove {name}").click()
            expect(chosen).to_have_count(0)
        event.fill("deposit")
        event.press("Enter")
        page.locator("[data-kind=condition]").click()
        page.get_by_role("combobox", name="Yes, if: add").fill("amuont")
        expect(page.locator(".ewc-combo").get_by_role("option", name="amountUsd")).to_be_visible()
        page.keyboard.press("Enter")
        page.get_by_label("Yes, if: how, line 1").select_option("eq")
        page.get_by_role("combobox", name="value", exact=True).fill("1")
        page.keyboard.press("Enter")  # 1 is a beginning of the amounts that are suggested, and none of them
        wait_until_sent(view)
        condition = data_of(automation, "condition")["filters"]
        assert condition == [{"path": "amountUsd", "operator": "eq", "value": 1}]


def test_every_event_starts_an_automation_only_if_the_user_says_so(
    page: Page, running: Running, pictures: Path
) -> None:
    automation = running.workbench().automation("Canvas: every event")
    with open_canvas(page, automation):
        page.locator("[data-kind=add_tag]").click()
        page.get_by_role("combobox", name="Tag", exact=True).fill("canvas-seen")
        page.get_by_role("button", name="Publish").click()
        dialog = page.get_by_role("dialog")
        expect(page.get_by_test_id("impact")).to_contain_text("version 1")
        expect(dialog).to_contain_text("every custom event of the organization starts this automation")
        expect(dialog.get_by_role("button", name="Publish")).to_be_disabled()
        page.screenshot(path=pictures / "canvas-every-event.png")
        dialog.get_by_label("Start on every event").check()
        dialog.get_by_role("button", name="Publish").click()
        expect(page.get_by_test_id("notice")).to_contain_text("Published")
        page.get_by_role("button", name="Pause").click()  # other tests share the events
        page.get_by_role("dialog").get_by_role("button", name="Switch off").click()
        expect(page.get_by_role("button", name="Activate")).to_be_visible()
    assert automation.to_json()["triggerSpec"] == {"type": "app_event", "event": ""}


def test_the_menu_shows_what_a_notebook_displays(page: Page, running: Running, pictures: Path) -> None:
    wb = running.workbench()
    wallet = "0xca11ab1e00000000000000000000000000000019"
    wb.events.send("canvas:menu", wallet_address=wallet)  # tests are sent to known contacts only
    wb.automation(f"Canvas: {EVIL}").on("canvas:menu").add_tag("x").save()
    automation = wb.automation("Canvas: menu").on("deposit").send_inapp(title="Thanks", body="first").publish()
    automation = automation.add_tag("thanked").publish()
    with open_canvas(page, automation):
        page.add_script_tag(path=AXE)

        def open_display(name: str) -> Locator:
            page.get_by_text("More", exact=True).click()
            page.get_by_role("button", name=name, exact=True).click()
            return page.get_by_role("dialog", name=name)

        def close_display(dialog: Locator, content: Locator) -> None:
            expect(content.first).to_be_visible()
            assert serious_findings(page) == []
            dialog.screenshot(path=pictures / f"canvas-{dialog.get_attribute('aria-label')}.png")
            dialog.get_by_role("button", name="Close").click()
            expect(dialog).to_have_count(0)
            expect(page.locator("summary", has_text="More")).to_be_focused()

        dialog = open_display("Versions")
        close_display(dialog, dialog.get_by_role("row", name="2").filter(has_text="thanked"))
        dialog = open_display("All automations")
        close_display(dialog, dialog.get_by_role("row").filter(has_text=EVIL))
        dialog = open_display("Backtest")
        dialog.get_by_label("Days").fill("7")
        dialog.get_by_label("Compare with the published version").check()
        dialog.get_by_role("button", name="Run the backtest").click()
        close_display(dialog, dialog.get_by_text("Would have started"))
        dialog = open_display("Send a test")
        dialog.get_by_label("Send in-app messages to").fill(wallet)
        dialog.get_by_role("button", name="Send the test").click()
        close_display(dialog, dialog.get_by_role("row").filter(has_text="sent"))
        assert page.evaluate("window.hurt") is None


def test_everything_is_stopped_and_resumed_after_a_question_with_the_numbers(page: Page, running: Running) -> None:
    automation = running.workbench().automation("Canvas: stop").on("canvas:stop").delay(days=1).publish()
    with open_canvas(page, automation):

        def answer(verb: str) -> None:
            page.get_by_text("More", exact=True).press("Enter")
            page.get_by_role("button", name="Stop everything", exact=True).press("Enter")
            dialog = page.get_by_role("dialog", name=f"{verb} everything?")
            expect(dialog).to_contain_text(re.compile(r"\d+ automations?, "))
            dialog.get_by_role("button", name=f"{verb} everything").press("Enter")

        answer("Stop")
        try:
            expect(page.get_by_test_id("notice")).to_contain_text("Stopped: ")
            expect(page.locator(".ewc-pill", has_text="paused")).to_be_visible()
        finally:
            answer("Resume")
        expect(page.get_by_test_id("notice")).to_contain_text("Running again: ")
        expect(page.locator(".ewc-pill", has_text="live")).to_be_visible()


def test_a_broadcast_is_sent_to_a_segment_with_the_keyboard(page: Page, running: Running, pictures: Path) -> None:
    wb = running.workbench()
    wb.events.send("canvas:sent", external_id="canvas-sent", attributes={"locale": "fr"})
    wb.segments.define("canvas-sent", sql="SELECT contact_id FROM app_events WHERE event = 'canvas:sent'")
    texts = {"de": {"title": "Hallo", "body": "!"}}
    automation = wb.automation("Canvas: send").on_broadcast().send_inapp("Hello", "!", locales=texts).publish()
    with open_canvas(page, automation):
        page.add_script_tag(path=AXE)
        page.get_by_text("More", exact=True).press("Enter")
        page.get_by_role("button", name="Send the broadcast", exact=True).press("Enter")
        dialog = page.get_by_role("dialog", name="Send the broadcast")
        expect(dialog.get_by_role("button", name="Send", exact=True)).to_be_disabled()
        page.get_by_role("combobox", name="Segment", exact=True).focus()
        page.keyboard.type("canvas-sent")
        page.keyboard.press("Enter")
        dialog.get_by_role("button", name="Count the contacts").press("Enter")
        expect(dialog).to_contain_text("1 contact, as of ")
        expect(dialog).to_contain_text(
            "has no texts in the locales of 1 of the 1 contacts of the segment 'canvas-sent'"
        )
        assert serious_findings(page) == []
        dialog.screenshot(path=pictures / "canvas-broadcast.png")
        dialog.get_by_role("button", name="Send", exact=True).press("Enter")
        expect(page.get_by_test_id("notice")).to_contain_text("Broadcast to canvas-sent, planned: 1 contact on ")
        sent = page.locator(".react-flow__node[data-id=send_inapp]")
        expect(sent.get_by_test_id("skipped")).to_have_text("1 skipped", timeout=20_000)


def test_the_sample_event_follows_the_trigger(page: Page, running: Running) -> None:
    wb = running.workbench()
    for name, number in (("canvas:one", 1), ("canvas:one", 2), ("canvas:two", 3)):
        contact = f"canvas-sample-{number}"
        assert wb.events.send(name, external_id=contact, payload={"number": number}).accepted
    automation = wb.automation("Canvas: sample").on("canvas:one").where("externalId", exists=True).add_tag("x")
    with open_canvas(page, automation):
        sample, payload = page.get_by_label("Sample event"), page.get_by_label("Payload")
        page.locator(".react-flow__node[data-id=trigger]").click()
        expect(sample.locator(":checked")).to_have_text(re.compile("canvas:one, .* canvas-sample-2"))
        page.get_by_role("combobox", name="Only if: add").fill("number")
        page.keyboard.press("Enter")
        page.get_by_label("Only if: how, line 2").select_option("eq")
        page.get_by_label("Type of value").select_option("number")
        page.get_by_role("combobox", name="value", exact=True).fill("1")
        expect(sample.locator(":checked")).to_have_text(re.compile("canvas:one, .* canvas-sample-1"))

        page.get_by_role("button", name="Test", exact=True).click()
        expect(payload).to_have_value(re.compile('"number": *1'))
        payload.fill('{"number": 1, "mine": true}')
        page.locator(".react-flow__node[data-id=trigger]").click()
        page.get_by_role("button", name="Remove line 2").click()
        page.get_by_role("button", name="Test again").click()
        expect(page.get_by_test_id("simulation")).to_contain_text("Steps")
        expect(payload).to_have_value('{"number": 1, "mine": true}')  # what the user wrote stays

        page.locator(".react-flow__node[data-id=trigger]").click()
        page.get_by_role("button", name="Remove canvas:one").click()
        page.get_by_role("combobox", name="Event", exact=True).fill("canvas:two")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Test again").click()
        expect(sample.locator(":checked")).to_have_text(re.compile("canvas:two, .* canvas-sample-3"))
        expect(payload).to_have_value(re.compile('"number": *3'))
