"""In JupyterLab every cell of the first notebook runs, and every picture is drawn."""

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page

from tests.browser.conftest import Lab

pytestmark = pytest.mark.browser

RUN_ALL = """async () => {
    const app = window.jupyterapp;
    const timeout = new Promise(done => setTimeout(() => done("timeout"), 90000));
    return await Promise.race([app.commands.execute("notebook:run-all-cells"), timeout]);
}"""
KERNEL_IDLE = """() =>
    window.jupyterapp?.shell?.currentWidget?.context?.sessionContext?.session?.kernel?.status === "idle"
"""
DRAWN = "image => image.complete && image.naturalWidth > 0"


def open_notebook(page: Page, lab: Lab, name: str, workspace: str) -> None:
    page.goto(f"{lab.url}/lab/workspaces/{workspace}/tree/{name}?token={lab.token}")
    page.wait_for_function(KERNEL_IDLE, timeout=60_000)


def use_theme(page: Page, theme: str) -> None:
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
    page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)


def block(page: Page, heading: str) -> Locator:
    """Return the first output of the package with this text in its heading."""
    return page.locator(".ewb").filter(has=page.locator(f".head:has-text('{heading}')")).first


def take_pictures(page: Page, pictures: Path, theme: str) -> None:
    """Take a picture of every output."""
    page.set_viewport_size({"width": 1240, "height": 9000})  # Lab draws only the cells in view
    page.wait_for_selector(".ewb .head:has-text('Entries:')")
    outputs = page.locator(".jp-OutputArea-child:has(.ewb:visible), .jp-OutputArea-child:has(table:visible)")
    for number, output in enumerate(outputs.all()):
        output.screenshot(path=pictures / f"{theme}-{number:02}.png")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_the_first_notebook_runs_and_is_drawn(page: Page, lab: Lab, pictures: Path, theme: str) -> None:
    open_notebook(page, lab, "01_first_automation.ipynb", theme.split()[1].lower())
    page.evaluate("window.jupyterapp.shell.collapseLeft()")
    use_theme(page, theme)
    assert page.evaluate(RUN_ALL) is True
    take_pictures(page, pictures, theme.split()[1].lower())
    assert block(page, "Welcome the first deposit").locator("img").first.evaluate(DRAWN)
    assert block(page, "Would send 1 message").locator(".toast").is_visible()
    assert all(image.evaluate(DRAWN) for image in page.locator(".ewb img").all())
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
