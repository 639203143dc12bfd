"""Shows a canvas in a page without JupyterLab and without a kernel, with the real widget and the real module.

Messages of a view go to the widget immediately, and the same call returns the answers.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from workbench import Automation
from workbench.canvas.widget import Canvas

STATIC = Path(__file__).parents[2] / "workbench" / "static"
TRAITS = ("palette", "document", "cards", "routes", "diagnostics", "status", "counts", "height", "read_only")
PAGE = """<!doctype html><meta charset="utf-8"><title>canvas</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="/canvas.css">
<body data-jp-theme-light="{light}" style="margin:0"><div id="one"></div><div id="two"></div>
<script type="module">
import canvas from "/canvas.js";
const state = await window.python(null);
const listeners = {{}};
window.model = {{
  get: name => state[name],
  on: (event, listener) => (listeners[event] ??= new Set()).add(listener),
  off: (event, listener) => listeners[event]?.delete(listener),
  send: async content => {{ if (!window.stopped) window.receive(await window.python(structuredClone(content))); }},
}};
window.receive = outbox => {{
  for (const {{ traits, message }} of outbox) {{
    if (traits) Object.assign(state, traits);
    for (const name of Object.keys(traits ?? {{}})) listeners["change:" + name]?.forEach(listener => listener());
    if (message) listeners["msg:custom"]?.forEach(listener => listener(message));
  }}
}};
for (const id of {views}) canvas.render({{ model: window.model, el: document.getElementById(id) }});
window.ready = true;
</script>"""


class BarePage:
    """A page with one or two views of a canvas, and the canvas. `window.stopped` in the page plays a stopped kernel."""

    def __init__(self, page: Page, automation: Automation, **options: Any) -> None:
        self.page = page
        self.automation = automation
        self.canvas = Canvas(automation, **options)
        self._outbox: list[dict[str, Any]] = []
        self.canvas.send = lambda message, _=None: self._outbox.append({"message": message})
        self.canvas.observe(lambda change: self._outbox.append({"traits": {change["name"]: change["new"]}}), TRAITS)

    def open(self, url: str) -> None:
        self.page.expose_function("python", self._receive)
        self.page.goto(url)
        self.page.wait_for_function("window.ready === true")
        self.page.wait_for_selector(".react-flow__node")

    def deliver(self) -> None:
        """Deliver the changes that Python made without a message from the page."""
        self.page.evaluate("outbox => window.receive(outbox)", self._take_outbox())

    def _receive(self, content: dict[str, Any] | None) -> Any:
        if content is None:
            return {name: getattr(self.canvas, name) for name in TRAITS}
        self.canvas._receive(self.canvas, content, [])
        return self._take_outbox()

    def _take_outbox(self) -> list[dict[str, Any]]:
        outbox, self._outbox = self._outbox, []
        return outbox


@contextmanager
def open_canvas(
    page: Page, automation: Automation, *, views: int = 1, dark: bool = False, **options: Any
) -> Iterator[BarePage]:
    """Serve and open a page with a canvas of an automation."""
    html = PAGE.format(light=str(not dark).lower(), views=["one", "two"][:views])

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            if self.path != "/":
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(html.encode())
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=STATIC)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        bare_page = BarePage(page, automation, **options)
        bare_page.open(f"http://127.0.0.1:{server.server_port}/")
        try:
            yield bare_page
        finally:
            server.shutdown()
