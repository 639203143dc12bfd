"""The page of preferences and the confirmation of a topic, from the links of emails to what is stored."""

import email
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_canvas_accessibility import AXE
from tests.running import Running

pytestmark = pytest.mark.browser

SERIOUS_FINDINGS = """async () => {
    const { violations } = await axe.run();
    return violations
        .filter(({ impact }) => ["serious", "critical"].includes(impact))
        .flatMap(({ id, nodes }) => nodes.map(node => `${id}: ${node.html} ${node.failureSummary}`));
}"""


def link_in_email(folder: Path, to: str, path: str) -> str:
    """Return the link with this path in an email to an address; wait until it is there."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for file in (folder / "data/mail/new").glob("*"):
            message = email.message_from_bytes(file.read_bytes())
            content = message.get_payload(decode=True)
            assert isinstance(content, bytes)
            link = re.search(rf"http://\S+{path}/[\w-]+", content.decode())
            if message["To"] == to and link is not None:
                return link[0]
        time.sleep(0.1)
    raise AssertionError(f"no email to {to} with a link to {path}")


def open_page(page: Page, url: str, screenshot: Path) -> None:
    """Open a page in light and dark; axe-core finds no serious fault, and the keyboard reaches all of it."""
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.goto(url)
        page.evaluate(AXE.read_text())
        assert page.evaluate(SERIOUS_FINDINGS) == []
    page.screenshot(path=screenshot)


def test_a_contact_chooses_topics_in_its_language_and_confirms_one(
    running: Running, page: Page, tmp_path: Path
) -> None:
    wb = running.workbench()
    wb.topics.save("page-news", "News", labels={"de": "Neues der Seite"})
    wb.topics.save("page-club", "Club", labels={"de": "Der Club"}, opt_in="double")
    wb.topics.double_opt_in("page-club").publish()
    letter = wb.automation("page letter").on("page:letter").send_email("Hi", "{{ preferences_url }}", topic="page-news")
    letter.publish()
    for name, locale in (("eva", "en"), ("uli", "de-AT")):
        wb.events.send("page:letter", email=f"{name}@page.example", attributes={"locale": locale})
    open_page(page, link_in_email(running.folder, "eva@page.example", "/preferences"), tmp_path / "en.png")
    expect(page.get_by_role("heading", name="Your preferences")).to_be_visible()

    open_page(page, link_in_email(running.folder, "uli@page.example", "/preferences"), tmp_path / "de.png")
    expect(page.get_by_role("heading", name="Ihre Einstellungen")).to_be_visible()
    expect(page.get_by_text("u•••@page.example")).to_be_visible()
    page.get_by_label("Neues der Seite").uncheck()
    page.get_by_label("Der Club").check()
    page.get_by_role("button", name="Speichern").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Bitte bestätigen Sie „Der Club“")
    expect(page.get_by_label("Neues der Seite")).not_to_be_checked()
    page.screenshot(path=tmp_path / "saved.png")

    open_page(page, link_in_email(running.folder, "uli@page.example", "/preferences/confirm"), tmp_path / "confirm.png")
    page.get_by_role("button", name="Bestätigen").click()
    expect(page.get_by_role("heading")).to_have_text("Vielen Dank. Sie erhalten ab jetzt Nachrichten zu „Der Club“.")
    contact = wb.contact(email="uli@page.example")
    topics = contact.preferences().topics
    assert (topics["page-news"], topics["page-club"]) == (False, True)
    sources = wb.sql("SELECT topic, source FROM consents WHERE contact_id = :id ORDER BY at", id=contact.id)
    assert sources.rows() == [("page-news", "preference_page"), ("page-club", "double_opt_in")]
