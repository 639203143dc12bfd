"""Forms of starts, waits and collected events are filled in and edited with the keyboard alone; axe finds no fault."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.bare_page import BarePage, open_canvas
from tests.browser.test_canvas_accessibility import AXE, choose_kind, press_until_focused, serious_findings
from tests.browser.test_canvas_journey import meaning_of
from tests.browser.test_canvas_view import card, wait_until_sent
from tests.running import Running
from workbench import Automation, Workbench

pytestmark = pytest.mark.browser


class Keyboard:
    """The keyboard of a user on a canvas. `faults`: what axe finds in the forms that were filled in."""

    def __init__(self, page: Page, view: BarePage, picture: Path) -> None:
        self.page, self.view, self._picture = page, view, picture
        self.faults: list[str] = []
        page.add_script_tag(path=AXE)

    def choose_trigger(self, kind: str) -> None:
        """Replace the trigger, and go to the form of the new one."""
        press_until_focused(self.page, "Tab", card(self.view, "trigger"))
        self.page.keyboard.press("Delete")
        self.page.keyboard.press("n")
        choose_kind(self.page, kind)

    def edit(self, node_id: str) -> None:
        press_until_focused(self.page, "Tab", card(self.view, node_id))
        self.page.keyboard.press("Enter")
        expect(self.page.locator(".ewc-panel").locator(":focus")).to_be_visible()

    def field(self, label: str) -> None:
        inputs = self.page.locator("input, select")
        target = self.page.get_by_label(label, exact=True).and_(inputs).first  # rules have names of fields, too
        if not target.evaluate("element => element === document.activeElement"):
            press_until_focused(self.page, "Tab", target)

    def write(self, label: str, text: str) -> None:
        """Replace the text of a field; a list of suggestions is closed, so that the text stays as typed."""
        self.field(label)
        self.page.keyboard.press("Control+a")
        self.page.keyboard.type(text)

    def pick(self, label: str, text: str) -> None:
        """Type the beginning of a suggestion, and take it."""
        self.write(label, text)
        expect(self.page.get_by_role("option", name=text).first).to_be_visible()
        self.page.keyboard.press("Enter")

    def choose(self, label: str, key: str, times: int = 1) -> None:
        """Choose in a menu with an arrow key."""
        self.field(label)
        for _ in range(times):
            self.page.keyboard.press(key)

    def add(self, kind: str, output: str | None = None) -> None:
        """Leave the form, and add a step at the selected card, or at one of its outputs."""
        self.leave()
        if output is None:
            self.page.keyboard.press("n")
        else:
            press_until_focused(self.page, "Tab", self.page.get_by_role("button", name=output, exact=True))
            self.page.keyboard.press("Enter")
        choose_kind(self.page, kind)

    def picture(self, form: str) -> None:
        wait_until_sent(self.view)
        self.page.screenshot(path=self._picture.with_name(f"{self._picture.name}-{form}.png"))

    def leave(self) -> None:
        wait_until_sent(self.view)
        self.faults += serious_findings(self.page)
        self.page.keyboard.press("Escape")  # closes the list of suggestions
        if self.page.locator(".ewc-panel :focus").count():
            self.page.keyboard.press("Escape")


def fill_in_segment(keyboard: Keyboard) -> None:
    keyboard.choose_trigger("segment_entered")
    keyboard.pick("Segment", "forms")
    keyboard.add("wait_until")
    keyboard.choose("Date", "ArrowDown")
    keyboard.write("Date, the value", "contact.trial_ends")
    keyboard.choose("Earlier or later", "ArrowUp", 2)
    keyboard.choose("Earlier or later", "ArrowDown")
    keyboard.write("Earlier or later, by how much", "3")
    keyboard.write("Time of day", "0900AM")
    for day in ("Mon", "Fri"):
        keyboard.choose(day, "Space")
    keyboard.write("Attribute with the time zone", "zone")
    keyboard.picture("wait-until-date")
    keyboard.add("add_tag", "Add a step after Wait until: contact.trial_ends at 09:00, Date missed")
    keyboard.page.keyboard.type("no date")


def fill_in_schedule(keyboard: Keyboard) -> None:
    keyboard.choose_trigger("schedule")
    keyboard.page.keyboard.type("0 8 * * mon")
    keyboard.pick("Time zone", "Europe/Zurich")
    keyboard.pick("Segment", "forms")
    keyboard.choose("A missed run", "ArrowDown")
    keyboard.picture("schedule")
    keyboard.add("wait_until")
    keyboard.write("Time of day", "0630PM")
    keyboard.add("add_tag")
    keyboard.page.keyboard.type("weekly")
    keyboard.leave()
    keyboard.edit("schedule")
    keyboard.page.keyboard.press("Control+a")
    keyboard.page.keyboard.type("0 9 * * mon")


def fill_in_collect(keyboard: Keyboard) -> None:
    keyboard.edit("trigger")
    keyboard.pick("Event", "deposit")
    keyboard.add("collect")
    keyboard.choose("For", "Control+a")
    keyboard.page.keyboard.press("Delete")
    keyboard.write("Or until", "0500PM")
    keyboard.write("Only with the same", "asset")
    keyboard.write("At most", "20")
    keyboard.picture("collect")
    keyboard.add("add_tag")
    keyboard.page.keyboard.type("digest")


def written(wb: Workbench) -> dict[str, tuple[Callable[[Keyboard], None], Automation]]:
    """Return how each automation is filled in, and the same automation in Python."""
    trial = wb.automation("Forms: written").on_segment_entered("forms")
    trial = trial.wait_until("09:00", date="contact.trial_ends", shift="-3d", weekdays=["mon", "fri"], timezone="zone")
    weekly = wb.automation("Forms: written").on_schedule(
        "0 9 * * mon", timezone="Europe/Zurich", segment="forms", missed="skip"
    )
    digest = wb.automation("Forms: written").on("deposit").collect(until="17:00", key="asset", max=20)
    return {
        "segment": (fill_in_segment, trial.otherwise(lambda b: b.add_tag("no date"))),
        "schedule": (fill_in_schedule, weekly.wait_until("18:30").add_tag("weekly")),
        "collect": (fill_in_collect, digest.add_tag("digest")),
    }


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["segment", "schedule", "collect"])
def test_forms_are_filled_in_with_the_keyboard_alone(
    page: Page, running: Running, pictures: Path, name: str, dark: bool
) -> None:
    wb = running.workbench()
    wb.events.send("deposit", external_id="forms", payload={"asset": "USDC"})
    wb.audience([wb.contact(external_id="forms").id], name="forms")
    fill_in, in_python = written(wb)[name]
    automation = wb.automation(f"Forms: {name}, {'dark' if dark else 'light'}")
    with open_canvas(page, automation, dark=dark) as view:
        keyboard = Keyboard(page, view, pictures / f"canvas-{'dark' if dark else 'light'}")
        fill_in(keyboard)
        keyboard.leave()
        assert keyboard.faults == []
        assert meaning_of(view.canvas.automation) == meaning_of(in_python)
