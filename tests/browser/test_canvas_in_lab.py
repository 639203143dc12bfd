"""In JupyterLab an automation is built with the mouse, tested, published, and runs."""

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Lab, write_notebook
from tests.browser.mouse import Mouse
from tests.browser.test_first_automation import RUN_ALL, open_notebook, use_theme
from tests.running import Running

pytestmark = pytest.mark.browser

NAME = "Built by mouse"
CELLS = (
    f'from workbench import Workbench\n\na = Workbench().automation("{NAME}")\na.canvas(height=760)',
    "a.describe()",
)


def build_automation(mouse: Mouse) -> None:
    """After a deposit, contacts with a plan get one message, all others another."""
    mouse.choose("Event", "deposit")
    mouse.add("condition")
    mouse.choose("Yes, if: add", "contact.plan")
    mouse.add("send_inapp")
    mouse.insert_value("Title", "asset")
    mouse.insert_value("Text", "amountUsd")
    mouse.click(mouse.canvas.locator(".react-flow__node[data-id=condition] [data-handle=false]"))
    mouse.add("send_inapp")
    mouse.insert_value("Title", "amountUsd")
    mouse.insert_value("Text", "asset")
    expect(mouse.canvas.get_by_label("Preview").locator(".ewc-toast")).to_be_visible()


def assert_keys_stay_inside(page: Page, mouse: Mouse) -> None:
    cells = page.locator(".jp-Cell").count()
    for place in (".react-flow__pane", ".react-flow__node[data-id=trigger]"):
        mouse.canvas.locator(place).click(position={"x": 20, "y": 20})
        # In JupyterLab these add cells above and below, delete, cut, convert to Markdown, and run.
        for key in ("a", "b", "d", "d", "x", "m", "Shift+Enter"):
            page.keyboard.press(key)
    assert page.locator(".jp-Cell").count() == cells
    assert page.locator(".jp-CodeCell").count() == cells


def send_deposit(running: Running) -> None:
    event = {
        "event": "deposit",
        "contact": {"walletAddress": "0xCa11AB1e00000000000000000000000000000001"},
        "attributes": {"plan": "pro"},
        "payload": {"amountUsd": 250, "asset": "ETH"},
    }
    key = {"authorization": f"Bearer {running.keys['live']}"}
    assert httpx.post(f"{running.url}/api/v1/events", json=event, headers=key).status_code == 202


def test_an_automation_built_with_the_mouse_runs(page: Page, lab: Lab, running: Running, pictures: Path) -> None:
    write_notebook(lab, "canvas.ipynb", CELLS)
    open_notebook(page, lab, "canvas.ipynb", "canvas")
    page.evaluate("window.jupyterapp.shell.collapseLeft()")
    assert page.evaluate(RUN_ALL) is True, page.locator(".jp-Notebook").inner_text()
    mouse = Mouse(page)
    expect(mouse.canvas).to_be_visible()
    expect(page.locator(".ewb-canvas-copy")).to_be_hidden()

    build_automation(mouse)
    assert_keys_stay_inside(page, mouse)
    page.locator(".jp-Notebook").screenshot(path=pictures / "canvas-built.png")
    mouse.press("Test")
    expect(mouse.canvas.get_by_test_id("simulation")).to_contain_text("Would send 1 message")
    mouse.canvas.screenshot(path=pictures / "canvas-tested.png")
    mouse.press("Publish")
    expect(mouse.canvas.get_by_test_id("impact")).to_contain_text("version 1")
    mouse.canvas.screenshot(path=pictures / "canvas-publish.png")
    mouse.click(mouse.canvas.get_by_role("dialog").get_by_role("button", name="Publish"))
    expect(mouse.canvas.get_by_test_id("notice")).to_contain_text("Published")

    mouse.canvas.get_by_text("More", exact=True).click()
    mouse.press("Backtest")
    mouse.press("Run the backtest")
    backtest = mouse.canvas.get_by_role("dialog")
    expect(backtest).to_contain_text("Would have started", timeout=60_000)
    mouse.canvas.screenshot(path=pictures / "canvas-backtest.png")
    backtest.get_by_role("button", name="Close").click()
    expect(mouse.canvas.get_by_role("alert")).to_have_count(0)

    send_deposit(running)
    first_message = mouse.canvas.locator(".react-flow__node[data-id=send_inapp]")
    expect(first_message.get_by_test_id("sent")).to_have_text("1 sent", timeout=20_000)
    [entry] = running.workbench().automation(NAME).entries()
    assert entry.state == "completed"
    assert entry.refresh().messages[0].title == "ETH"
    mouse.canvas.get_by_test_id("problems").click()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        use_theme(page, theme)
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        mouse.canvas.screenshot(path=pictures / f"canvas-counts-{theme.split()[1].lower()}.png")
