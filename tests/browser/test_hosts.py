"""JupyterLab, Jupyter Notebook 7 and marimo show the same outputs; hosts without widgets show pictures and tables."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest
from nbconvert.utils.base import NbConvertBase
from playwright.sync_api import Page, expect

from tests.browser.conftest import Lab, jupyter, wait_for, write_notebook
from tests.browser.test_canvas_accessibility import serious_findings
from tests.browser.test_first_automation import DRAWN, KERNEL_IDLE, RUN_ALL, open_notebook
from tests.running import Running, free_port

pytestmark = pytest.mark.browser

CELLS = (
    "from workbench import Workbench\n\nwb = Workbench()",
    'wb.funnel(["deposit", "trade"])',
    'wb.sql("SELECT event, count(*) AS n FROM app_events GROUP BY event ORDER BY 2 DESC LIMIT 3")',
    'a = wb.automation("In every host").on("deposit").where("amountUsd", gte=10).add_tag("depositor").save()\na',
    'a.simulate("deposit", external_id="host-1", payload={"amountUsd": 25})',
    "a.canvas()",
    "wb.catalog",
    "wb",
)
WIDGET = "application/vnd.jupyter.widget-view+json"
# What a host shows of an output: the first of these media types that the output has.
ORDERS = {
    # https://github.com/microsoft/vscode: extensions/ipynb/src/deserializers.ts
    "VS Code": (WIDGET, "text/html", "text/latex", "text/markdown", "image/png", "image/svg+xml", "text/plain"),
    "without widgets": NbConvertBase.display_data_priority.default(),
}
_MARIMO_CELL = """
@app.cell
def _({takes}):
    {source}
    return {gives}
"""


@pytest.fixture(scope="module")
def marimo(running: Running) -> Iterator[str]:
    """The URL of an app of marimo with these cells."""
    folder = running.folder / "marimo"
    folder.mkdir()
    names = ({"wb"}, set(), set(), {"a"}, set(), set(), set(), set())
    cells = []
    for source, defined in zip(CELLS, names, strict=True):
        used = {name for name in ("a", "wb") if re.search(rf"\b{name}\b", source)} - defined
        gives = "".join(f"{name}," for name in sorted(defined))
        takes = ", ".join(sorted(used))
        cells.append(_MARIMO_CELL.format(takes=takes, source=source.replace("\n", "\n    "), gives=f"({gives})"))
    (folder / "app.py").write_text(f"import marimo\n\napp = marimo.App()\n{''.join(cells)}")
    port = free_port()
    options = ["--headless", "--no-token", "--host", "127.0.0.1", "--port", str(port)]
    log = (folder / "log").open("w")
    command = [sys.executable, "-m", "marimo", "run", "app.py", *options]
    with log, subprocess.Popen(command, env=running.environment(), cwd=folder, stdout=log, stderr=log) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def use_outputs(page: Page, pictures: Path, host: str) -> None:
    """Use every output: search the catalog, test on the canvas, and try an event in the form, with the keyboard."""
    page.set_viewport_size({"width": 1240, "height": 6000})  # hosts draw only the cells in view
    catalog, canvas, forms = (
        page.locator(".ewb-widget.catalog"),
        page.locator(".ewc"),
        page.locator(".ewb-widget.forms"),
    )
    expect(page.locator(".ewb", has_text="Funnel within 7d").locator("img").first).to_be_visible(timeout=90_000)
    expect(page.locator(".ewb", has_text="Would add the tag “depositor”").first).to_be_visible()
    expect(page.get_by_text("app_open").first).to_be_visible()

    expect(catalog.locator("tr[data-event=deposit]")).to_be_visible(timeout=90_000)
    catalog.locator("input").fill("DEPO")
    expect(catalog.locator("tr[data-event]:not([data-event*=depo])")).to_have_count(0)  # other tests send events, too
    catalog.locator("input").press("ArrowDown")
    page.keyboard.press("Enter")
    expect(catalog.locator(".detail .head")).to_contain_text("deposit:", timeout=60_000)

    expect(canvas.locator(".react-flow__node")).to_have_count(2)
    canvas.get_by_role("button", name="Test", exact=True).click()
    expect(canvas.get_by_test_id("simulation")).to_contain_text("Steps", timeout=60_000)

    forms.get_by_role("tab", name="Explore").press("ArrowRight")
    forms.get_by_role("tab", name="Build").press("ArrowRight")
    expect(forms.get_by_role("tab", name="Test")).to_be_focused()
    form = forms.get_by_role("form", name="Try an event")
    form.get_by_label("Automation").select_option("In every host")
    expect(form.get_by_label("amountUsd")).to_be_visible(timeout=60_000)
    form.get_by_label("Contact", exact=False).nth(1).fill("host-1")
    form.get_by_label("amountUsd").fill("25")
    page.keyboard.press("Enter")
    expect(forms.get_by_role("region", name="Try an event: result")).to_contain_text(
        "Would add the tag", timeout=60_000
    )
    form.get_by_text("The same in Python").click()
    expect(form.get_by_label("Code")).to_contain_text("simulate('deposit', external_id='host-1', payload={")
    assert all(image.evaluate(DRAWN) for image in page.locator(".ewb img:visible").all())
    forms.screenshot(path=pictures / f"forms-test-{host}.png")
    for tab in ("Explore", "Build", "Watch"):
        forms.get_by_role("tab", name=tab).click()
        expect(forms.get_by_role("tabpanel", name=tab).locator("select").first).to_be_visible(timeout=60_000)
        forms.screenshot(path=pictures / f"forms-{tab.lower()}-{host}.png")
    catalog.screenshot(path=pictures / f"catalog-{host}.png")
    canvas.screenshot(path=pictures / f"canvas-{host}.png")


def test_jupyterlab(page: Page, lab: Lab, pictures: Path) -> None:
    write_notebook(lab, "hosts.ipynb", CELLS)
    open_notebook(page, lab, "hosts.ipynb", "hosts")
    page.evaluate("window.jupyterapp.shell.collapseLeft()")
    assert page.evaluate(RUN_ALL) is True
    use_outputs(page, pictures, "lab")
    for output in (".ewb-widget.catalog", ".ewb-widget.forms", ".ewc"):
        assert serious_findings(page, output) == []


def test_jupyter_notebook(page: Page, running: Running, pictures: Path) -> None:
    with jupyter(running, "notebook", "--JupyterNotebookApp.expose_app_in_browser=True") as server:
        write_notebook(server, "hosts.ipynb", CELLS)
        page.goto(f"{server.url}/notebooks/hosts.ipynb?token={server.token}")
        page.wait_for_function(KERNEL_IDLE, timeout=60_000)
        assert page.evaluate(RUN_ALL) is True
        use_outputs(page, pictures, "notebook")
        cells = page.locator(".jp-CodeCell").count()
        for focused in (".ewb-widget.catalog tr[data-event]", ".ewb-widget.forms [role=tab]", ".ewc .react-flow__node"):
            page.locator(focused).first.focus()
            for key in "dd", "b", "a":  # in command mode these delete and insert cells
                page.keyboard.type(key)
        assert page.locator(".jp-CodeCell").count() == cells
        page.goto("about:blank")  # its requests end before the server does


def test_marimo(page: Page, marimo: str, pictures: Path) -> None:
    page.goto(marimo)
    use_outputs(page, pictures, "marimo")


def test_a_host_without_widgets_shows_pictures_and_tables(page: Page, running: Running, pictures: Path) -> None:
    """What VS Code, Colab, GitHub and nbviewer are given: HTML without scripts, and pictures inside it."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", store_widget_state=False)
    client.execute(env=running.environment())
    bundles = [output["data"] for cell in notebook.cells for output in cell.outputs]
    assert all("text/plain" in bundle for bundle in bundles)
    shown = {host: [next(kind for kind in order if kind in data) for data in bundles] for host, order in ORDERS.items()}
    assert shown["VS Code"] == ["text/html"] * 4 + [WIDGET, "text/html"] * 3
    assert shown["without widgets"] == ["text/html"] * 4 + ["text/plain", "text/html"] * 3
    assert all(re.search("(?i)run (this|the) cell", data["text/plain"]) for data in bundles if WIDGET in data)
    pages = [bundle["text/html"] for bundle in bundles if "text/html" in bundle]
    assert not re.search(r"<script|<link|\bon\w+=|javascript:", "".join(pages))
    assert set(re.findall(r"\bsrc=\"(.{10})", "".join(pages))) == {"data:image"}
    page.set_content("<body>" + "<hr>".join(pages))
    assert all(image.evaluate(DRAWN) for image in page.locator("img").all())
    for text in ("Funnel within 7d", "Would add the tag “depositor”", "Events of the last 30 days", "wb.events.tail()"):
        expect(page.get_by_text(text).first).to_be_visible()
    expect(page.get_by_role("img", name="When a deposit event arrives, and amountUsd >= 10:")).to_have_count(3)
    expect(page.get_by_role("img", name="the same numbers as in the table below")).to_have_count(1)
    page.screenshot(path=pictures / "without-widgets.png", full_page=True)
