"""Provides the actions of a user on a canvas."""

from playwright.sync_api import Locator, Page


class Mouse:
    """The mouse of a user. It counts actions: a click, or a text that is typed into one field."""

    def __init__(self, page: Page, actions: int = 0) -> None:
        self.canvas = page.locator(".ewc").first
        self.actions = actions

    def click(self, target: Locator) -> None:
        target.click()
        self.actions += 1

    def add(self, kind: str) -> None:
        self.click(self.canvas.locator(f"[data-kind={kind}]"))

    def press(self, name: str) -> None:
        self.click(self.canvas.get_by_role("button", name=name, exact=True))

    def choose(self, field: str, value: str) -> None:
        """Click into a field, then on one of its suggestions."""
        box = self.canvas.get_by_role("combobox", name=field, exact=True)
        if not box.evaluate("box => box === document.activeElement"):
            self.click(box)
        self.click(self.canvas.get_by_role("option", name=value).first)

    def insert_value(self, field: str, value: str) -> None:
        self.press(f"Insert a value into {field}")
        self.click(
            self.canvas.get_by_role("listbox", name=f"Values for {field}").get_by_role("option", name=value).first
        )

    def fill(self, field: str, text: str) -> None:
        self.canvas.get_by_label(field, exact=True).fill(text)
        self.actions += 1

    def type(self, text: str) -> None:
        """Type into the field that has the focus, over what is selected in it."""
        self.canvas.page.keyboard.type(text)
        self.actions += 1

    def select(self, field: str, option: str) -> None:
        """Open a menu with a click, and click an option."""
        self.canvas.get_by_label(field, exact=True).select_option(option)
        self.actions += 2
