"""axe-core finds no serious fault in a canvas, and everything on it can be done with the keyboard."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.bare_page import open_canvas
from tests.browser.test_canvas_view import card, greeting

pytestmark = pytest.mark.browser

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"  # `make browser` installs it
SERIOUS_FINDINGS = """async () => {
    const { violations } = await axe.run(".ewc");
    return violations
        .filter(({ impact }) => ["serious", "critical"].includes(impact))
        .flatMap(({ id, nodes }) => nodes.map(node => `${id}: ${node.html} ${node.failureSummary}`));
}"""


def serious_findings(page: Page) -> list[str]:
    findings: list[str] = page.evaluate(SERIOUS_FINDINGS)
    return findings


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_serious_fault(page: Page, dark: bool) -> None:
    automation = greeting().split({"a": 50, "b": 50}).branch("a", lambda b: b.wait_for("trade", within="2d"))
    with open_canvas(page, automation, dark=dark) as view:
        page.add_script_tag(path=AXE)
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
