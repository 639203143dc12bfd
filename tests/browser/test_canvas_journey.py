"""A whole journey is built on the canvas: with the mouse in JupyterLab in at most 25 actions, and with the keyboard.

After a deposit over 500, contacts that do not trade within 2 hours get a push with their first name, and at the next
09:00 of theirs an email with a coupon. 10 % are held out, and a contact gets at most 1 message a day.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.bare_page import open_canvas
from tests.browser.conftest import Lab, write_notebook
from tests.browser.mouse import Mouse
from tests.browser.test_canvas_accessibility import AXE, choose_kind, press_until_focused, serious_findings
from tests.browser.test_canvas_view import card, wait_until_sent
from tests.browser.test_first_automation import RUN_ALL, open_notebook
from tests.running import Running
from workbench import Automation, Workbench, testing

pytestmark = pytest.mark.browser

MAX_ACTIONS = 25
TITLE, HEADING = "Your deposit is here", "A coupon for your first trade"
BODY, COUPON = "Make your first trade, ", "Trade today with the coupon FIRST10."
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
CONTACT = {
    "walletAddress": "0xCa11AB1e00000000000000000000000000000025",
    "email": "ada@journey.example",
    "attributes": {"first_name": "Ada", "timezone": "Europe/Zurich"},
}


def written_in_python(wb: Workbench) -> Automation:
    return (
        wb.automation("Journey: written")
        .on("deposit")
        .where("amountUsd", gt=500)
        .wait_for("trade", within="2h")
        .otherwise(
            lambda b: (
                b.send_inapp(TITLE, BODY + "{{ contact.first_name }}").wait_until("09:00").send_email(HEADING, COUPON)
            )
        )
        .holdout(10)
        .frequency_cap(1, per="day")
    )


def meaning_of(automation: Automation) -> dict[str, Any]:
    """Return what an automation does: its trigger, settings, actions, and the edges by the numbers of nodes."""
    trigger, graph = automation._draft.language()
    number = {node.id: index for index, node in enumerate(graph.nodes)}
    edges = sorted((number[edge.source], edge.handle or "", number[edge.target]) for edge in graph.edges)
    actions = [(node.kind, node.action) for node in graph.nodes]
    return {"trigger": trigger, "settings": graph.settings, "actions": actions, "edges": edges}


def introduce_contact(running: Running) -> None:
    """Store the contact, so that the canvas suggests its attributes."""
    identifiers = {"wallet_address": CONTACT["walletAddress"], "email": CONTACT["email"]}
    events = running.workbench().events
    assert events.send("trade", **identifiers, attributes=CONTACT["attributes"], payload={"amountUsd": 20}).accepted


def assert_it_does_what_the_sentence_says(automation: Automation) -> None:
    def run(payload: dict[str, Any], journey: Automation = automation, *later: dict[str, Any]) -> testing.TestRun:
        return testing.simulate(journey, "deposit", payload, contact=CONTACT, now=NOON, events=later)

    big = {"amountUsd": 501}
    assert not run({"amountUsd": 500}).started
    assert run(big, automation, {"event": "trade", "after": "1h"}).messages == []
    email = run(big)
    assert [message.body for message in email.messages] == [BODY + "Ada", COUPON]
    assert email.simulation.steps[-1].at == datetime(2026, 6, 2, 7, tzinfo=UTC)  # 09:00 in Zurich


def build_by_mouse(mouse: Mouse) -> None:
    mouse.choose("Event", "deposit")
    mouse.choose("Only if: add", "amountUsd")
    mouse.type("500")
    mouse.click(mouse.canvas.get_by_text("Rules for the whole automation"))
    mouse.click(mouse.canvas.get_by_label("Frequency cap", exact=True))
    mouse.fill("Maximum messages", "1")
    mouse.click(mouse.canvas.get_by_label("Calendar day of the contact"))
    mouse.click(mouse.canvas.get_by_label("Holdout", exact=True))
    mouse.add("wait_for_event")
    mouse.choose("Event", "trade")
    mouse.select("Unit of Time limit", "hours")
    mouse.click(mouse.canvas.locator(".react-flow__node[data-id=wait_for_event] [data-handle=timeout]"))
    mouse.add("send_inapp")
    mouse.type(TITLE)
    mouse.fill("Text", BODY)
    mouse.insert_value("Text", "contact.first_name")
    mouse.add("wait_until")
    mouse.add("send_email")
    mouse.type(HEADING)
    mouse.fill("Text", COUPON)


def assert_it_is_live_as_written(running: Running, name: str) -> None:
    built = running.workbench().automation(name)
    assert meaning_of(built) == meaning_of(written_in_python(running.workbench()))
    assert built.state == "live"
    assert_it_does_what_the_sentence_says(built)


def test_a_journey_is_built_with_the_mouse_in_25_actions(
    page: Page, lab: Lab, running: Running, pictures: Path
) -> None:
    introduce_contact(running)
    name = "Journey: by mouse"
    cell = f'from workbench import Workbench\n\na = Workbench().automation("{name}")\na.canvas(height=860)'
    write_notebook(lab, "journey.ipynb", [cell])
    open_notebook(page, lab, "journey.ipynb", "journey")
    page.evaluate("window.jupyterapp.shell.collapseLeft()")
    assert page.evaluate(RUN_ALL) is True, page.locator(".jp-Notebook").inner_text()
    mouse = Mouse(page, actions=1)  # running the cell
    expect(mouse.canvas).to_be_visible()
    build_by_mouse(mouse)
    assert mouse.actions <= MAX_ACTIONS, mouse.actions
    expect(page.locator('.ewc[data-unsent="true"]')).to_have_count(0)
    mouse.canvas.screenshot(path=pictures / "journey-by-mouse.png")
    mouse.press("Publish")
    expect(mouse.canvas.get_by_test_id("impact")).to_contain_text("version 1")
    mouse.click(mouse.canvas.get_by_role("dialog").get_by_role("button", name="Publish"))
    expect(mouse.canvas.get_by_test_id("notice")).to_contain_text("Published")

    assert_it_is_live_as_written(running, name)


HIDDEN_FOCUS = """() => {
    window.hiddenFocus = [];
    document.addEventListener("focusin", ({ target }) => requestAnimationFrame(() => {
        if (target !== document.activeElement || target.matches(".ewc")) return;
        const [own, card] = [target, target.querySelector(":scope > .ewc-card")].map(it => it && getComputedStyle(it));
        const outlined = own.outlineStyle !== "none" && parseFloat(own.outlineWidth) > 0;
        const edge = target.querySelector(":scope > .react-flow__edge-path");
        const drawn = edge && parseFloat(getComputedStyle(edge).strokeWidth) > 3;
        if (!outlined && !drawn && (!card || card.boxShadow === "none")) window.hiddenFocus.push(target.outerHTML);
    }));
}"""


def test_the_journey_is_built_with_the_keyboard_alone(page: Page, running: Running, pictures: Path) -> None:
    introduce_contact(running)
    name = "Journey: by keyboard"
    automation = running.workbench().automation(name)
    with open_canvas(page, automation) as view:
        page.add_script_tag(path=AXE)
        page.evaluate(HIDDEN_FOCUS)
        faults: list[str] = []
        keys = page.keyboard

        def field(label: str, role: Any = None) -> None:
            target = page.get_by_role(role, name=label, exact=True) if role else page.get_by_label(label, exact=True)
            press_until_focused(page, "Tab", target)

        def add(kind: str, output: str | None = None) -> None:
            faults.extend(serious_findings(page))
            keys.press("Escape")  # from the form to the card
            if output is None:
                keys.press("n")
            else:
                press_until_focused(page, "Tab", page.get_by_role("button", name=output, exact=True))
                keys.press("Enter")
            choose_kind(page, kind)

        press_until_focused(page, "Tab", card(view, "trigger"))
        keys.press("Enter")
        keys.type("deposit")
        keys.press("Enter")
        field("Only if: add", "combobox")
        keys.type("amountUsd")
        expect(page.get_by_role("option", name="amountUsd")).to_contain_text("number")  # values of deposits are loaded
        keys.press("Enter")
        keys.type("500")
        keys.press("Escape")  # closes the list of values
        press_until_focused(page, "Tab", page.get_by_text("Rules for the whole automation"))
        keys.press("Enter")
        field("Frequency cap")
        keys.press("Space")
        field("Maximum messages")
        keys.press("Control+a")
        keys.type("1")
        field("Calendar day of the contact")
        keys.press("Space")
        field("Holdout")
        keys.press("Space")
        add("wait_for_event")
        keys.type("trade")
        keys.press("Enter")
        field("Unit of Time limit")
        keys.press("ArrowUp")
        add("send_inapp", "Add a step after Wait for event: trade, Timed out")
        keys.type(TITLE)
        field("Text")
        keys.type(BODY)
        field("Insert a value into Text")
        keys.press("Enter")
        keys.type("firstname")
        page.screenshot(path=pictures / "journey-values-by-keyboard.png")
        keys.press("Enter")
        add("wait_until")
        add("send_email")
        keys.type(HEADING)
        field("Text")
        keys.type(COUPON)
        wait_until_sent(view)
        page.screenshot(path=pictures / "journey-by-keyboard.png")
        faults += serious_findings(page)
        press_until_focused(page, "Shift+Tab", page.get_by_role("button", name="Publish"))
        keys.press("Enter")
        expect(page.get_by_test_id("impact")).to_contain_text("version 1")
        faults += serious_findings(page)
        press_until_focused(page, "Tab", page.get_by_role("dialog").get_by_role("button", name="Publish"))
        keys.press("Enter")
        expect(page.get_by_test_id("notice")).to_contain_text("Published")
        assert faults == []
        assert page.evaluate("window.hiddenFocus") == []
    assert_it_is_live_as_written(running, name)
