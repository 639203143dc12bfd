"""axe-core finds no serious fault in a canvas, and everything on it can be done with the keyboard."""

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.bare_page import open_canvas
from tests.browser.test_canvas_view import card, drag, greeting, links, wait_until_sent
from tests.running import Running

pytestmark = pytest.mark.browser

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"  # `make browser` installs it
SERIOUS_FINDINGS = """async (part) => {
    const { violations } = await axe.run(part);
    return violations
        .filter(({ impact }) => ["serious", "critical"].includes(impact))
        .flatMap(({ id, nodes }) => nodes.map(node => `${id}: ${node.html} ${node.failureSummary}`));
}"""


def serious_findings(page: Page, part: str = ".ewc") -> list[str]:
    """Return what axe-core finds in the parts of the page that a selector matches."""
    if not page.evaluate("() => 'axe' in window"):
        page.add_script_tag(path=AXE)
    findings: list[str] = page.evaluate(SERIOUS_FINDINGS, part)
    return findings


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_serious_fault(page: Page, dark: bool) -> None:
    automation = greeting().split({"a": 50, "b": 50}).branch("a", lambda b: b.wait_for("trade", within="2d"))
    with open_canvas(page, automation, dark=dark) as view:
        found = {"overview": serious_findings(page)}
        for node in automation.to_json()["graph"]["nodes"]:
            card(view, node["id"]).click()
            found[node["id"]] = serious_findings(page)
        card(view, "trigger").click()
        page.get_by_role("combobox", name="Event", exact=True).click()
        page.get_by_text("Rules for the whole automation").click()
        for rule in ("Goal", "Quiet hours", "Frequency cap", "Holdout"):
            page.get_by_label(rule, exact=True).check()
        found["rules"] = serious_findings(page)
        page.get_by_role("button", name="Test", exact=True).click()
        expect(page.get_by_test_id("simulation")).to_contain_text("Steps")
        found["test"] = serious_findings(page)
        page.get_by_role("button", name="Keyboard shortcuts").click()
        found["help"] = serious_findings(page)
        assert {state: faults for state, faults in found.items() if faults} == {}


def press_until_focused(page: Page, key: str, target: Locator) -> None:
    """Press Tab or Shift+Tab until the target has the focus."""
    for _ in range(60):
        page.keyboard.press(key)
        if target.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"{target} cannot be reached with {key}")


def add_by_keyboard(page: Page, output: str, kind: str) -> None:
    """Go from a card to an output, and add a step of a kind there."""
    press_until_focused(page, "Tab", page.get_by_role("button", name=output, exact=True))
    page.keyboard.press("Enter")
    choose_kind(page, kind)


def choose_kind(page: Page, kind: str) -> None:
    press_until_focused(page, "ArrowDown", page.locator(f"[data-kind={kind}]"))
    page.keyboard.press("Enter")
    expect(page.locator(".ewc-panel").locator(":focus")).to_be_visible()


def test_an_automation_with_two_branches_is_built_with_the_keyboard_alone(
    page: Page, running: Running, pictures: Path
) -> None:
    wb = running.workbench()
    automation = wb.automation("Canvas: by keyboard")
    with open_canvas(page, automation) as view:
        press_until_focused(page, "Tab", card(view, "trigger"))
        page.keyboard.press("Enter")
        page.keyboard.type("deposit")
        expect(page.locator(".ewc-combo").get_by_role("option", name="deposit")).to_be_visible()
        page.keyboard.press("Enter")
        page.keyboard.press("ArrowDown")  # opens the list of the other events
        page.keyboard.press("Tab")
        expect(page.get_by_role("combobox", name="Only if: add")).to_be_focused()
        page.keyboard.press("Escape")  # closes the list
        page.keyboard.press("Escape")
        add_by_keyboard(page, "Add a step after When: deposit", "condition")
        page.keyboard.type("contact.plan")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        add_by_keyboard(page, "Add a step after If: contact.plan is set, yes", "send_inapp")
        page.keyboard.type("A plan")
        press_until_focused(page, "Tab", page.get_by_label("Text", exact=True))
        page.keyboard.type("{{ amountUsd }} USD have arrived.")
        page.keyboard.press("Escape")
        no = page.get_by_role("button", name="Add a step after If: contact.plan is set, no", exact=True)
        press_until_focused(page, "Shift+Tab", no)
        page.screenshot(path=pictures / "canvas-output-focused.png")
        page.keyboard.press("Enter")
        choose_kind(page, "send_inapp")
        page.keyboard.type("No plan")
        press_until_focused(page, "Tab", page.get_by_label("Text", exact=True))
        page.keyboard.type("Choose one.")
        page.keyboard.press("Escape")
        page.keyboard.press("t")
        expect(page.get_by_test_id("simulation")).to_contain_text("Would send 1 message")
        press_until_focused(page, "Shift+Tab", page.get_by_role("button", name="Publish"))
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("impact")).to_contain_text("version 1")
        press_until_focused(page, "Tab", page.get_by_role("dialog").get_by_role("button", name="Publish"))
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("notice")).to_contain_text("Published")
    wallet = "0xca11ab1e00000000000000000000000000000018"
    receipt = wb.events.send("deposit", wallet_address=wallet, attributes={"plan": "pro"}, payload={"amountUsd": 250})
    entry = automation.wait_for_entry(receipt)
    assert [(message.title, message.body) for message in entry.messages] == [("A plan", "250 USD have arrived.")]


def test_an_output_is_connected_to_a_card_with_the_keyboard(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation) as view:
        card(view, "send_inapp").focus()
        press_until_focused(page, "Tab", card(view, "send_inapp").locator(".ewc-out"))
        page.keyboard.press("Space")
        press_until_focused(page, "Tab", card(view, "add_tag_small"))
        page.keyboard.press("c")
        wait_until_sent(view)
        assert ("send_inapp", "add_tag_small") in links(automation)


def test_an_output_gets_a_second_branch(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation) as view:
        card(view, "add_tag_small").click()
        page.locator("[data-kind=delay]").click()
        wait_until_sent(view)
        drag(page, card(view, "send_inapp").locator(".ewc-out"), card(view, "delay").locator(".ewc-card"))
        page.keyboard.down("Control")
        drag(page, card(view, "send_inapp").locator(".ewc-out"), card(view, "add_tag_small").locator(".ewc-card"))
        page.keyboard.up("Control")
        edges = page.locator(".react-flow__edge")
        labels = edges.evaluate_all(
            "edges => edges.map(edge => edge.ariaLabel).filter(label => label.includes('branch'))"
        )
        second = "from send_inapp to add_tag_small, branch 2 of 2"
        assert labels == ["from send_inapp to delay, branch 1 of 2", second]
        page.keyboard.press("Control+z")
        press_until_focused(page, "Tab", card(view, "send_inapp").locator(".ewc-out"))
        page.keyboard.press("Space")
        press_until_focused(page, "Tab", card(view, "add_tag_small"))
        page.keyboard.press("Shift+C")
        expect(page.locator(f'.react-flow__edge[aria-label="{second}"]')).to_contain_text("2")


def test_the_focus_stays_on_the_canvas(page: Page) -> None:
    with open_canvas(page, greeting()) as view:
        focused = page.locator(":focus")
        card(view, "send_inapp").focus()
        page.keyboard.press("Enter")
        press_until_focused(page, "Tab", page.get_by_role("button", name="Insert a value into Title"))
        page.keyboard.press("Escape")
        expect(focused).to_have_attribute("data-id", "send_inapp")
        page.keyboard.press("Delete")
        expect(card(view, "send_inapp")).to_have_count(0)
        expect(focused).to_have_class("ewc")
        page.keyboard.press("Control+z")
        expect(card(view, "send_inapp")).to_be_visible()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        expect(focused).to_have_class("ewc")
