"""Takes the pictures of the docs from the running product; `make picture` puts them there.

They are of few colours, so that they are light.
"""

import io
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from tests.browser.bare_page import open_canvas
from tests.browser.conftest import Lab, write_notebook
from tests.browser.mouse import Mouse
from tests.browser.test_canvas_journey import build_by_mouse, introduce_contact
from tests.browser.test_first_automation import RUN_ALL, open_notebook, use_theme
from tests.running import Running

pytestmark = pytest.mark.browser

SIZE = {"width": 1220, "height": 740}
MAX_PICTURE_BYTES = 150_000
MAX_FILM_BYTES = 2_000_000
COLOURS = 128
FRAME_MS = 1100
POINTER = """() => {
    const pointer = document.createElement("div");
    pointer.innerHTML = '<svg width="22" height="22"><path d="M3 2l15 8-6.5 2L8 18z" fill="#111" stroke="#fff"/></svg>';
    pointer.style.cssText = "position:fixed;z-index:9999;pointer-events:none";
    document.body.append(pointer);
    const follow = at => Object.assign(pointer.style, { left: at.clientX + "px", top: at.clientY + "px" });
    addEventListener("mousemove", follow, true);
}"""


def save_picture(target: Locator, path: Path) -> None:
    with Image.open(io.BytesIO(target.screenshot(animations="disabled"))) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < MAX_PICTURE_BYTES


class FilmedMouse(Mouse):
    """A mouse whose page is photographed after each action."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        page.evaluate(POINTER)
        self._frames: list[Image.Image] = []
        self.photograph()

    def photograph(self) -> None:
        shot = Image.open(io.BytesIO(self.canvas.page.screenshot(animations="disabled")))
        self._frames.append(shot.convert("RGB"))

    def click(self, target: Locator) -> None:
        super().click(target)
        self.photograph()

    def fill(self, field: str, text: str) -> None:
        super().fill(field, text)
        self.photograph()

    def type(self, text: str) -> None:
        super().type(text)
        self.photograph()

    def select(self, field: str, option: str) -> None:
        super().select(field, option)
        self.photograph()

    def save(self, path: Path) -> None:
        first, *others = self._frames
        durations = [FRAME_MS] * len(others) + [4 * FRAME_MS]
        first.save(path, save_all=True, append_images=others, duration=durations, loop=0, quality=60, method=4)


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
        save_picture(page.locator(".ewc"), pictures / "canvas.png")


def test_an_automation_is_drawn(page: Page, running: Running, pictures: Path) -> None:
    introduce_contact(running)
    page.set_viewport_size({"width": 1100, "height": 680})
    with open_canvas(page, running.workbench().automation("A journey"), height=678):
        mouse = FilmedMouse(page)
        build_by_mouse(mouse)
        mouse.press("Zoom to fit")
        mouse.press("Test")
        expect(page.get_by_test_id("simulation")).to_contain_text("Would")
        mouse.photograph()
        mouse.save(pictures / "canvas.webp")
    assert (pictures / "canvas.webp").stat().st_size < MAX_FILM_BYTES


def test_reports_are_shown(page: Page, running: Running, pictures: Path) -> None:
    wb = running.workbench()
    automation = (
        wb.automation("Thank big depositors")
        .on("deposit")
        .where("amountUsd", gt=500)
        .when("contact.plan", is_in=["plus", "pro"])
        .then(lambda b: b.send_inapp("Your {{ asset }} are here", "You trade without fees this week."))
        .otherwise(lambda b: b.send_inapp("Thank you", "Your {{ amountUsd }} USD have arrived."))
        .goal("trade")
        .publish()
    )
    for number in range(48):
        contact = {"wallet_address": f"0x{number + 0xB00:040x}"}
        attributes, payload = {"plan": ("free", "plus", "pro")[number % 3]}, {"asset": "ETH", "amountUsd": 600 + number}
        receipt = wb.events.send("deposit", **contact, attributes=attributes, payload=payload)
        if number % 4:
            automation.wait_for_entry(receipt)
            wb.events.send("trade", **contact, payload={"amountUsd": 80})
    shown = {
        "funnel": wb.funnel(["signup", "deposit", "trade"], within="14d")._repr_html_(),
        "backtest": automation.backtest(days=30)._repr_html_(),
        "dashboard": automation.stats()._repr_html_(),
    }
    page.set_viewport_size({"width": 1000, "height": 700})
    for name, html in shown.items():
        page.set_content(
            f'<body style="margin:0"><div id="shown" style="padding:20px;background:#fff">{html}</div></body>'
        )
        save_picture(page.locator("#shown"), pictures / f"{name}.png")


def test_the_first_automation_is_simulated(page: Page, lab: Lab, pictures: Path) -> None:
    open_notebook(page, lab, "01_first_automation.ipynb", "first")
    page.evaluate("window.jupyterapp.shell.collapseLeft()")
    use_theme(page, "JupyterLab Light")
    page.set_viewport_size({"width": 1240, "height": 9000})  # Lab draws only the cells in view
    assert page.evaluate(RUN_ALL) is True
    cell = page.locator(".jp-CodeCell:has-text('someone = wb.sql')").first
    expect(cell.locator(".ewb", has_text="Would send 1 message")).to_be_visible()
    save_picture(cell, pictures / "first-automation.png")


def test_the_catalog_is_browsed(page: Page, lab: Lab, running: Running, pictures: Path) -> None:
    payload = {"platform": "ios", "appVersion": "4.0.0", "theme": "dark"}
    contacts = ({"externalId": f"picture-{number}"} for number in range(30))
    running.workbench().events.send_many(
        {"event": "app_open", "contact": contact, "payload": payload} for contact in contacts
    )
    write_notebook(lab, "picture.ipynb", ("from workbench import Workbench\nwb = Workbench()", "wb.catalog"))
    page.set_viewport_size({"width": 1240, "height": 900})
    open_notebook(page, lab, "picture.ipynb", "picture")
    page.evaluate("window.jupyterapp.shell.collapseLeft()")
    use_theme(page, "JupyterLab Light")
    assert page.evaluate(RUN_ALL) is True
    page.locator("tr[data-event=app_open]").click()
    expect(page.locator(".ewb-widget .detail")).to_contain_text("theme is new")
    save_picture(page.locator(".jp-CodeCell").nth(1), pictures / "catalog.png")
