"""The canvas in JupyterLab: an automation built by mouse alone is tested, published, and then runs for an event that is really sent."""

import json
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Lab
from tests.browser.hand import Hand
from tests.browser.test_first_automation import RUN_ALL, open_notebook, use_theme
from tests.running import Running

pytestmark = pytest.mark.browser

NAME = "Built by mouse"
CELLS = (
    f'from workbench import Workbench\n\na = Workbench().automation("{NAME}")\na.canvas(height=760)',
    "a.describe()",
)


def notebook(lab: Lab, name: str, cells: tuple[str, ...]) -> None:
    written = [
        {
            "cell_type": "code",
            "id": f"c{number}",
            "metadata": {},
            "source": cell,
            "execution_count": None,
            "outputs": [],
        }
        for number, cell in enumerate(cells)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    content = {"cells": written, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    Path(lab.folder / name).write_text(json.dumps(content))


def build(hand: Hand) -> None:
    """When there is a deposit: who has a plan gets one message, everybody else another."""
    hand.choose("Event", "deposit")
    hand.add("condition")
    hand.choose("Yes, if: add", "contact.plan")
    hand.add("send_inapp")
    hand.put_in("Title", "asset")
    hand.put_in("Text", "amountUsd")
    hand.click(hand.canvas.locator(".react-flow__node[data-id=condition] [data-way=false]"))
    hand.add("send_inapp")
    hand.put_in("Title", "amountUsd")
    hand.put_in("Text", "asset")
    expect(hand.canvas.get_by_label("Preview").locator(".ewc-toast")).to_be_visible()


def keys_stay_inside(page: Page, hand: Hand) -> None:
    cells = page.locator(".jp-Cell").count()
    for place in (".react-flow__pane", ".react-flow__node[data-id=trigger]"):
        hand.canvas.locator(place).click(position={"x": 20, "y": 20})
        for key in (
            "a",
            "b",
            "d",
            "d",
            "x",
            "m",
            "Shift+Enter",
        ):  # in JupyterLab: add, add, delete, cut, turn into text, run
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


def test_built_by_mouse_tested_published_and_run(page: Page, lab: Lab, running: Running, pictures: Path) -> None:
    notebook(lab, "canvas.ipynb", CELLS)
    open_notebook(page, lab, "canvas.ipynb", "canvas")
    page.evaluate("window.jupyterapp.shell.collapseLeft()")
    assert page.evaluate(RUN_ALL) is True, page.locator(".jp-Notebook").inner_text()
    hand = Hand(page)
    expect(hand.canvas).to_be_visible()
    expect(page.locator(".ewb-canvas-copy")).to_be_hidden()

    build(hand)
    keys_stay_inside(page, hand)
    page.locator(".jp-Notebook").screenshot(path=pictures / "canvas-built.png")
    hand.press("Test")
    expect(hand.canvas.get_by_test_id("trial")).to_contain_text("Would send 1 message")
    hand.canvas.screenshot(path=pictures / "canvas-tested.png")
    hand.press("Publish")
    expect(hand.canvas.get_by_test_id("impact")).to_contain_text("version 1")
    hand.canvas.screenshot(path=pictures / "canvas-publish.png")
    hand.click(hand.canvas.get_by_role("dialog").get_by_role("button", name="Publish"))
    expect(hand.canvas.get_by_test_id("notice")).to_contain_text("Published")

    send_deposit(running)
    first = hand.canvas.locator(".react-flow__node[data-id=send_inapp]")
    expect(first.get_by_test_id("passed")).to_have_text("✓ 1", timeout=20_000)
    [entry] = running.workbench().automation(NAME).entries()
    assert entry.state == "completed"
    assert entry.refresh().messages[0].title == "ETH"
    hand.canvas.get_by_test_id("problems").click()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        use_theme(page, theme)
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        hand.canvas.screenshot(path=pictures / f"canvas-counts-{theme.split()[1].lower()}.png")
