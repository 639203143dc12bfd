"""The site in a real browser, as a running service serves it: it searches, is dark, and sends requests."""

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.running import Running

pytestmark = pytest.mark.browser

SCHEME = "() => document.body.dataset.mdColorScheme"
BACKGROUND = "selector => getComputedStyle(document.querySelector(selector)).backgroundColor"


def test_a_word_of_an_error_leads_to_its_row(page: Page, running: Running, pictures: Path) -> None:
    page.goto(f"{running.url}/help/")
    page.screenshot(path=pictures / "site-home.png")
    page.get_by_role("textbox", name="Search").fill("Content-Type must be application/json")
    page.locator(".md-search-result__link[href*='#content-type-must-be-application']").first.click()
    expect(page.locator("article")).to_contain_text("Content-Type must be application/json")
    assert "/help/reference/errors.html" in page.url


def authorize(page: Page, key: str) -> None:
    """Type a key into the dialog of the reference."""
    page.locator("#swagger-ui .authorize").first.click()
    scheme = page.locator(".modal-ux .auth-container", has_text="secretKey")
    if (change := scheme.get_by_role("button", name="Remove authorization")).is_visible():
        change.click()
    scheme.locator("input").press_sequentially(key)
    scheme.get_by_role("button", name="Apply credentials").click()
    page.locator(".modal-ux").get_by_role("button", name="Close").last.click()


def try_out(page: Page, tag: str, path: str, body: str | None = None) -> Locator:
    """Send a request of the reference, and return the answer that it shows."""
    page.locator(f"[id='operations-tag-{tag}']").click()
    operation = page.locator(f"[id^='operations-{tag}-'].opblock", has=page.locator(f"[data-path='{path}']")).first
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    if body is not None:
        operation.locator("textarea").fill(body)
    operation.get_by_role("button", name="Execute").click()
    return operation.locator(".live-responses-table")


def test_requests_are_sent_from_the_page_with_the_key_that_was_typed(
    page: Page, running: Running, pictures: Path
) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(f"{running.url}/help/reference/http.html")
    expect(page.locator("#swagger-ui .opblock-tag").first).to_be_visible()
    authorize(page, running.keys["workbench"])
    expect(try_out(page, "account", "/api/v1/me")).to_contain_text('"organization": "demo"')
    assert page.evaluate(SCHEME) == "slate"
    page.screenshot(path=pictures / "site-http.png")
    authorize(page, running.keys["live"])
    body = '{"event": "site:tried", "contact": {"externalId": "site-1"}}'
    expect(try_out(page, "events", "/api/v1/events", body)).to_contain_text('"accepted": true')
    sent = running.workbench().sql("SELECT count(*) AS n FROM app_events WHERE event = 'site:tried'")
    assert sent["n"].to_list() == [1]


def test_a_notebook_is_shown_in_light_and_dark(page: Page, running: Running, pictures: Path) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{running.url}/help/notebooks/01_first_automation.html")
        expect(page.locator(".notebook-output .ewb").first).to_be_visible()
        broken = "() => [...document.images].filter(image => !image.complete || !image.naturalWidth).length"
        assert page.evaluate(broken) == 0
        page.locator(".md-content").screenshot(path=pictures / f"site-notebook-{scheme}.png")
    assert page.evaluate(SCHEME) == "slate"


def test_a_missing_page_leads_back(page: Page, running: Running) -> None:
    answer = page.request.get(f"{running.url}/help/nothing/at/all.html")
    assert (answer.status, "/help/assets/" in answer.text()) == (404, True)
