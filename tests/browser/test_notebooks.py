"""In JupyterLab every cell of the other notebooks runs, and every picture is drawn."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Lab
from tests.browser.test_first_automation import DRAWN, RUN_ALL, open_notebook, use_theme
from tests.notebooks.test_notebooks import A_TENTH

pytestmark = pytest.mark.browser

LAST_OUTPUTS = {
    "02_catalog": "Events of the last 30 days",
    "03_sql_and_reports": "customers",
    "04_segments": "signed-up-no-deposit",
    "05_build_on_canvas": "Added the tag “depositor”",
    "06_test_before_you_send": "1 failed",
    "07_publish_and_watch": "automation: rollback",
    "08_automations_in_git": "brought-a-friend",
    "10_campaigns": "ada@example.com asks for a call",
}
STDERR = ".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']"


def test_the_other_notebooks_run_and_are_drawn(page: Page, lab: Lab, pictures: Path) -> None:
    reports = lab.folder / "03_sql_and_reports.ipynb"
    reports.write_text(reports.read_text().replace(*A_TENTH))
    for name, last in LAST_OUTPUTS.items():
        page.set_viewport_size({"width": 1240, "height": 900})
        open_notebook(page, lab, f"{name}.ipynb", name)
        page.evaluate("window.jupyterapp.shell.collapseLeft()")
        use_theme(page, "JupyterLab Light")
        assert page.evaluate(RUN_ALL) is True
        page.set_viewport_size({"width": 1240, "height": 16_000})  # Lab draws only the cells in view
        expect(page.locator(".jp-CodeCell").last).to_contain_text(last)
        assert all(image.evaluate(DRAWN) for image in page.locator(".ewb img").all())
        assert page.locator(STDERR).count() == 0
        if name == "02_catalog":  # the cell after the tail sends two events
            expect(page.locator(".tail tr.event", has_text="survey_answered")).to_have_count(2)
        page.locator(".jp-Notebook").screenshot(path=pictures / f"{name}.png")
