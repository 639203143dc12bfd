"""In JupyterLab the catalog can be searched and inserts a cell that runs, and the live tail shows events."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Lab, write_notebook
from tests.browser.test_first_automation import RUN_ALL, open_notebook, use_theme
from tests.running import Running
from workbench import InvalidRequestError

pytestmark = pytest.mark.browser

CELLS = ("from workbench import Workbench\nwb = Workbench()", "wb.catalog", 'wb.catalog["deposit"]', "wb.events.tail()")
SOURCES = "() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells.map(cell => cell.getSource())"


def test_the_catalog_and_the_tail_in_a_notebook(page: Page, lab: Lab, running: Running, pictures: Path) -> None:
    write_notebook(lab, "catalog.ipynb", CELLS)
    open_notebook(page, lab, "catalog.ipynb", "catalog")
    page.evaluate("window.jupyterapp.shell.collapseLeft()")
    use_theme(page, "JupyterLab Light")
    page.set_viewport_size({"width": 1240, "height": 2400})
    assert page.evaluate(RUN_ALL) is True
    browser, event, tail = (page.locator(".ewb-widget").nth(n) for n in range(3))

    expect(event.locator(".paths tr", has_text="amountUsd")).to_be_visible()
    expect(page.locator(".ewb-static").first).to_be_hidden()
    browser.locator("input").fill("DEPO")
    expect(browser.locator("tr[data-event]")).to_have_count(1)
    browser.locator("input").press("ArrowDown")
    page.keyboard.press("Enter")
    expect(browser.locator(".detail .head")).to_contain_text("deposit:")
    # Only a Lab that was started for tests exposes its app to the page; the widget must work without it.
    page.evaluate("() => [window.exposed, window.jupyterapp] = [window.jupyterapp, undefined]")
    browser.locator(".paths tr", has_text="asset").locator(".insert").click()
    expect(browser.locator(".notice")).to_have_text("Inserted a cell below.")
    page.evaluate("() => void (window.jupyterapp = window.exposed)")
    browser.locator("tr[data-event]").press("d")
    browser.locator("tr[data-event]").press("d")
    browser.locator("input").fill("")

    sources = page.evaluate(SOURCES)
    assert "payload #>> :path" in sources[2]
    assert "path=['asset']" in sources[2]
    assert (len(sources), sources[1]) == (len(CELLS) + 1, CELLS[1])
    assert page.evaluate(RUN_ALL) is True
    expect(page.locator(".jp-Cell").nth(2)).to_contain_text("USDC")

    expect(tail.locator(".state")).to_have_text("live")
    wb = running.workbench()
    wb.events.send("seen:live", external_id="u1", payload={"html": "<img src=x onerror=alert(1)>"})
    with pytest.raises(InvalidRequestError):
        wb.events.send("seen:bad", email="nobody", external_id="u1")
    expect(tail.locator("tr.event", has_text="seen:live")).to_contain_text("started nothing")
    expect(tail.locator("tr.event", has_text="seen:bad")).to_contain_text("not a valid email address")
    browser.locator("tr[data-event=deposit]").click()
    expect(browser.locator(".paths tr", has_text="amountUsd")).to_be_visible()
    for theme in ("Light", "Dark"):
        use_theme(page, f"JupyterLab {theme}")
        for name, widget in (("catalog", browser), ("event", event), ("tail", tail)):
            widget.screenshot(path=pictures / f"{name}-{theme.lower()}.png")
