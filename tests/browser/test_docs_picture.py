"""Takes the picture of docs/canvas.md; `make picture` puts it there."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.bare_page import open_canvas
from tests.running import Running

pytestmark = pytest.mark.browser

SIZE = {"width": 1220, "height": 740}


def test_an_automation_is_tested_on_the_canvas(page: Page, running: Running, pictures: Path) -> None:
    wb = running.workbench()
    automation = (
        wb.automation("Welcome the first deposit")
        .on("first_deposit")
        .where("amountUsd", gt=100)
        .when("contact.plan", is_in=["plus", "pro"])
        .then(lambda b: b.send_inapp("Your {{ asset }} are here", "You trade without fees this week."))
        .otherwise(lambda b: b.send_inapp("Welcome, {{ contact.first_name }}!", "Your first trade is on us."))
        .wait_for("trade", within="2h")
        .then(lambda b: b.add_tag("trader"))
        .otherwise(lambda b: b.wait_until("09:00").send_email("A coupon", "Trade with FIRST10."))
        .publish()
    )
    for number, name in enumerate(("Ben", "Cleo", "Dan", "Eve", "Ada")):
        wallet, email = f"0x{number + 1:040x}", f"{name.lower()}@picture.example"
        payload = {"asset": "ETH", "amountUsd": 250 + number}
        attributes = {"first_name": name, "plan": "pro" if number % 2 else "free", "timezone": "Europe/Zurich"}
        receipt = wb.events.send(
            "first_deposit", wallet_address=wallet, email=email, attributes=attributes, payload=payload
        )
        automation.wait_for_entry(receipt, until="waiting")
    page.set_viewport_size(SIZE)
    with open_canvas(page, automation, height=SIZE["height"] - 2):
        page.keyboard.press("f")
        page.get_by_role("button", name="Test", exact=True).click()
        expect(page.get_by_test_id("simulation")).to_contain_text("Would send 2 messages")
        expect(page.get_by_test_id("live").first).to_be_visible(timeout=20_000)
        page.get_by_role("button", name="Zoom to fit").click()
        page.locator(".ewc").screenshot(path=pictures / "canvas.png", animations="disabled")
