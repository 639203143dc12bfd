"""The canvas in JupyterLab: an automation built by mouse alone is tested, published, and then runs for an event that is really sent."""

import json
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Lab
from tests.browser.test_first_automation import RUN_ALL, open_notebook, use_theme
from tests.running import Running

pytestmark = pytest.mark.browser

NAME = "Built by mouse"
CELLS = (f'from workbench import Workbench\n\na = Workbench().automation("{NAME}")\na.canvas(height=760)', "print(1)")
SAY = """async code => {
    const kernel = window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel;
    const future = kernel.requestExecute({ code, store_history: false });
    let said = "";
    future.onIOPub = message => { said += message.content.text ?? message.content.evalue ?? ""; };
    await future.done;
    return said;
}"""


class Hand:
    """The mouse of a person, counted: a click, a choice, or a field filled in is one action."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.canvas = page.locator(".ewc").first
        self.actions = 0

    def click(self, what: Locator) -> None:
        what.click()
        self.actions += 1

    def add(self, kind: str) -> None:
        self.click(self.canvas.locator(f"[data-kind={kind}]"))

    def press(self, name: str) -> None:
        self.click(self.canvas.get_by_role("button", name=name, exact=True))

    def choose(self, field: str, value: str) -> None:
        """Click into a field, and then on one of its suggestions."""
        box = self.canvas.get_by_role("combobox", name=field, exact=True)
        if not box.evaluate("box => box === document.activeElement"):
            self.click(box)
        self.click(self.canvas.get_by_role("option", name=value).first)

    def put_in(self, field: str, value: str) -> None:
        self.press(f"Insert a value into {field}")
        self.click(self.canvas.get_by_role("button", name=value).first)


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


def test_built_by_mouse_tested_published_and_run(page: Page, lab: Lab, running: Running, pictures: Path) -> None:
    notebook(lab, "canvas.ipynb", CELLS)
    open_notebook(page, lab, "canvas.ipynb", "canvas")
    page.evaluate("window.jupyterapp.shell.collapseLeft()")
    assert page.evaluate(RUN_ALL) is True, page.locator(".jp-Notebook").inner_text()
    hand = Hand(page)
    expect(hand.canvas).to_be_visible()
    expect(page.locator(".ewb-canvas-copy")).to_be_hidden()

    hand.choose("Event", "deposit")
    hand.add("condition")
    hand.choose("Yes, when: add", "contact.plan")
    hand.add("send_inapp")
    hand.put_in("Title", "asset")
    hand.put_in("Text", "amountUsd")
    hand.canvas.locator(".react-flow__node[data-id=condition] [data-way=false]").click()
    hand.actions += 1
    hand.add("send_inapp")
    hand.put_in("Title", "amountUsd")
    hand.put_in("Text", "asset")
    expect(hand.canvas.get_by_label("Preview").locator(".ewc-toast")).to_be_visible()
    page.locator(".jp-Notebook").screenshot(path=pictures / "canvas-built.png")

    hand.press("Test")
    expect(hand.canvas.get_by_test_id("trial")).to_contain_text("Would send 1 message")
    hand.canvas.screenshot(path=pictures / "canvas-tested.png")
    hand.press("Publish")
    expect(hand.canvas.get_by_test_id("impact")).to_contain_text("first version")
    hand.click(hand.canvas.get_by_role("dialog").get_by_role("button", name="Publish"))
    expect(hand.canvas.get_by_test_id("notice")).to_contain_text("Published")
    print(f"\nevent, condition and two messages, tested and published: {hand.actions} actions after the cell")

    event = {
        "event": "deposit",
        "contact": {"walletAddress": "0xCa11AB1e00000000000000000000000000000001"},
        "attributes": {"plan": "pro"},
        "payload": {"amountUsd": 250, "asset": "ETH"},
    }
    sent = httpx.post(
        f"{running.url}/api/v1/events", json=event, headers={"authorization": f"Bearer {running.keys['live']}"}
    )
    assert sent.status_code == 202
    first = hand.canvas.locator(".react-flow__node[data-id=send_inapp]")
    expect(first.get_by_test_id("passed")).to_have_text("✓ 1", timeout=20_000)
    [entry] = running.workbench().automation(NAME).entries()
    assert entry.state == "completed"
    assert entry.refresh().messages[0].title == "ETH"
    page.keyboard.press("Escape")
    hand.canvas.get_by_test_id("problems").click()
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        use_theme(page, theme)
        hand.canvas.screenshot(path=pictures / f"canvas-counts-{theme.split()[1].lower()}.png")
