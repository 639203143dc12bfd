"""A canvas in a bare page, without JupyterLab and without a kernel: the real widget in Python, the real module in the browser.

What a view sends is handed to the widget at once, and what the widget says in return is the answer of the same call.
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
SYNCED = ("kinds", "operators", "document", "cards", "lanes", "remarks", "status", "counts", "height", "read_only")
PAGE = """<!doctype html><meta charset="utf-8"><title>canvas</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="/canvas.css"><body data-jp-theme-light="{light}" style="margin:0"><div id="one"></div><div id="two"></div>
<script type="module">
import canvas from "/canvas.js";
const state = await window.python(null);
const heard = {{}};
window.model = {{
  get: name => state[name],
  on: (event, back) => (heard[event] ??= new Set()).add(back),
  off: (event, back) => heard[event]?.delete(back),
  send: async content => {{ if (!window.gone) window.take(await window.python(structuredClone(content))); }},
}};
window.take = out => {{
  for (const {{ set, said }} of out) {{
    if (set) Object.assign(state, set);
    for (const name of Object.keys(set ?? {{}})) heard["change:" + name]?.forEach(back => back());
    if (said) heard["msg:custom"]?.forEach(back => back(said));
  }}
}};
for (const id of {views}) canvas.render({{ model: window.model, el: document.getElementById(id) }});
window.ready = true;
</script>"""


class Bare:
    """A page with views of one canvas, and the canvas."""

    def __init__(self, page: Page, automation: Automation, **options: Any) -> None:
        self.page = page
        self.automation = automation
        self.canvas = Canvas(automation, **options)
        self._out: list[dict[str, Any]] = []
        self.canvas.send = lambda said, _=None: self._out.append({"said": said})
        self.canvas.observe(lambda change: self._out.append({"set": {change["name"]: change["new"]}}), SYNCED)

    def open(self, url: str) -> None:
        self.page.expose_function("python", self._heard)
        self.page.goto(url)
        self.page.wait_for_function("window.ready === true")
        self.page.wait_for_selector(".react-flow__node")

    def show(self) -> None:
        """Hand over what Python has changed by itself."""
        self.page.evaluate("out => window.take(out)", self._taken())

    def _heard(self, content: dict[str, Any] | None) -> Any:
        if content is None:
            return {name: getattr(self.canvas, name) for name in SYNCED}
        self.canvas._receive(self.canvas, content, [])
        return self._taken()

    def _taken(self) -> list[dict[str, Any]]:
        out, self._out = self._out, []
        return out


@contextmanager
def bare(page: Page, automation: Automation, *, views: int = 1, dark: bool = False, **options: Any) -> Iterator[Bare]:
    """Give a page with a canvas of an automation."""
    shown = PAGE.format(light=str(not dark).lower(), views=["one", "two"][:views])

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            if self.path != "/":
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(shown.encode())
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=STATIC)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        made = Bare(page, automation, **options)
        made.open(f"http://127.0.0.1:{server.server_port}/")
        try:
            yield made
        finally:
            server.shutdown()
