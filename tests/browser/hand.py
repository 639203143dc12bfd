"""What a person does on a canvas."""

from playwright.sync_api import Locator, Page


class Hand:
    """The mouse of a person, counted: a click, a choice, or a field filled in is one action."""

    def __init__(self, page: Page, actions: int = 0) -> None:
        self.canvas = page.locator(".ewc").first
        self.actions = actions

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

    def fill(self, field: str, text: str) -> None:
        self.canvas.get_by_label(field, exact=True).fill(text)
        self.actions += 1
