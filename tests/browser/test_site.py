"""The site in a real browser, as a running service serves it: it searches, is dark, and sends requests."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

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


def test_a_request_is_sent_from_the_page(page: Page, running: Running, pictures: Path) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(f"{running.url}/help/reference/http.html")
    expect(page.locator("#swagger-ui .opblock-tag").first).to_be_visible()
    page.locator("#swagger-ui .authorize").first.click()
    dialog = page.locator(".modal-ux")
    dialog.locator(".auth-container", has_text="secretKey").locator("input").fill(running.keys["workbench"])
    dialog.locator(".auth-container", has_text="secretKey").get_by_role("button", name="Apply credentials").click()
    dialog.get_by_role("button", name="Close").last.click()
    page.locator("[id='operations-tag-account']").click()
    operation = page.locator(".opblock", has_text="/api/v1/me").first
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table")).to_contain_text('"organization": "demo"')
    assert page.evaluate(SCHEME) == "slate"
    page.screenshot(path=pictures / "site-http.png")


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
