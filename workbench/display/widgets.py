"""Widgets: the page sends requests, and Python answers with the data to display. The notebook file stores no state.

Most of the content comes from outside (event names, payloads), so it is sent as text and numbers, and the page never
sets it as HTML. Where the front end supports it (JupyterLab does), requests are answered on their own thread, also
while a cell runs.

`LiveView` follows a stream of events: one thread reads, another sends batches to the page, ten times a second. The page
reports every few seconds that it is visible. After a minute without a report the threads end, because the server allows
only a few followers, and a closed tab sends no message. When the page reports again, the stream continues from the
cursor.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import anywidget
import IPython.display
from traitlets import Unicode

from workbench import environment
from workbench.errors import WorkbenchError

Content: TypeAlias = dict[str, Any]
Answer: TypeAlias = Callable[[Content], Content]
Row: TypeAlias = dict[str, str | int]
Follow: TypeAlias = Callable[[str], Iterator[tuple[str, Row | None, str]]]
"""Follows a stream from a cursor. Yields the next cursor, a row or None, and the reason if the connection was lost."""

MAX_ROWS = 500  # as in tail.js
AWAY_S = 60.0
_LEAVE_GRACE_S = 12.0  # pages report every 8 s, so another page with the same widget reports within this time
_SEND_INTERVAL_S = 0.1
_CHECK_INTERVAL_S = 5.0
_START_TIMEOUT_S = 3.0  # a cell waits until following has started, so that events of the next cell are included
_RECONNECT_S = 5.0
_STATIC = Path(__file__).parent.parent / "static"
_PAGE_JS = f"{(_STATIC / 'keys.js').read_text()}\n{(_STATIC / 'page.js').read_text()}"
_COPY_TEXT = "Run this cell for the live view."


class _Window(anywidget.AnyWidget):
    """Answers requests by their id. A first reply, `received`, tells the page that the kernel is alive."""

    own_id = Unicode("").tag(sync=True)  # the page finds the widget's cell by this id

    def __init__(self, answer: Answer, **traits: Any) -> None:
        self._answer = answer
        super().__init__(**traits)
        self.own_id = str(self.model_id)
        self.on_msg(self._on_request)

    def _on_request(self, _widget: Any, request: Content, _buffers: Any) -> None:
        self.send({"id": request.get("id"), "received": True})
        try:
            content = self._answer(request)
        except WorkbenchError as error:
            content = {"error": str(error)}
        except Exception as error:
            # A bug: the page shows it at once, and the kernel's log has the traceback.
            self.send({"id": request.get("id"), "error": f"{type(error).__name__}: {error}"})
            raise
        self.send({"id": request.get("id"), **content})


class CatalogWindow(_Window):
    """A list of events with search, or one event. Requests: `list` (`text`) and `look` (`event`)."""

    event = Unicode("").tag(sync=True)

    _esm = f"{_PAGE_JS}\n{(_STATIC / 'catalog.js').read_text()}"
    _css = f"{(_STATIC / 'page.css').read_text()}\n{(_STATIC / 'catalog.css').read_text()}"


class TailWindow(_Window):
    """Events as they arrive. Requests: `hello`, `here` while visible, and `leave`; it receives `rows` and `state`."""

    _esm = f"{_PAGE_JS}\n{(_STATIC / 'tail.js').read_text()}"
    _css = f"{(_STATIC / 'page.css').read_text()}\n{(_STATIC / 'tail.css').read_text()}"


class FormWindow(_Window):
    """Forms, in tabs if there are several. Requests: `open`; `fields` and `run`, with a `form` and its `values`."""

    _esm = f"{_PAGE_JS}\n{(_STATIC / 'form.js').read_text()}"
    _css = f"{(_STATIC / 'page.css').read_text()}\n{(_STATIC / 'form.css').read_text()}"


class LiveWindow(_Window):
    """The figures of one automation. Requests: `look`, and `replay` (`cause`)."""

    _esm = f"{_PAGE_JS}\n{(_STATIC / 'live.js').read_text()}"
    _css = f"{(_STATIC / 'page.css').read_text()}\n{(_STATIC / 'live.css').read_text()}"


def show(window: _Window, static: str) -> None:
    """Display a widget, and below it the static HTML for copies of the notebook, hidden while the widget is alive."""
    display: Any = IPython.display  # untyped
    bundle, metadata = window._repr_mimebundle_() or ({}, {})
    display.display({**bundle, "text/plain": _COPY_TEXT}, raw=True, metadata=metadata)
    if static:
        display.display(display.HTML(f'<div class="ewb-static">{static}</div>'))


class LiveView:
    """The stream behind one widget, and the threads that follow it."""

    def __init__(self, follow: Follow) -> None:
        self._follow = follow
        self._lock = threading.Lock()
        self._rows: deque[Row] = deque(maxlen=MAX_ROWS)
        self._unsent: list[Row] = []
        self._changed = threading.Event()
        self._started = threading.Event()
        self._state, self._reason = "resting", ""
        self._cursor = ""
        self._row_count = 0
        self._update_count = 0  # lets the page recognize an update that arrives after a newer one
        self._generation = 0  # threads of an older generation end
        self._visible_at = 0.0
        self.window = TailWindow(self.answer)

    def show(self) -> None:
        """Display the widget; return once it follows the stream, so that it receives all later events."""
        self.answer({"ask": "here"})
        show(self.window, "")
        self._started.wait(_START_TIMEOUT_S)

    def answer(self, request: Content) -> Content:
        """Answer the page: `hello` asks for all rows, `here` reports that it is visible, `leave` that it was closed."""
        with self._lock:
            leaves = request.get("ask") == "leave"
            # Closing one page must not end the view of another, so `leave` only shortens the time to the next report.
            self._visible_at = environment.monotonic_s() - (AWAY_S - _LEAVE_GRACE_S if leaves else 0.0)
            if self._state == "resting" and not leaves:
                self._generation += 1
                self._state = "connecting"
                for work in (self._read, self._send):
                    name = f"tail-{work.__name__}"
                    # Daemons, so that a stream without events does not keep a stopped kernel alive.
                    threading.Thread(target=work, args=(self._generation,), daemon=True, name=name).start()
            return self._update(list(self._rows) if request.get("ask") == "hello" else [])

    def _update(self, rows: list[Row]) -> Content:
        self._update_count += 1
        return {"update": self._update_count, "rows": rows, "state": self._state, "reason": self._reason}

    def _read(self, generation: int) -> None:
        """Follow the stream until it ends. A WorkbenchError (a rejected key) ends it; other errors reconnect."""
        reason: str | None = None
        while reason is None:
            try:
                for cursor, row, lost in self._follow(self._cursor):
                    if not self._add(generation, cursor, row, lost):
                        return
                reason = "The time limit of the live view was reached."
            except WorkbenchError as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001  the top of the thread: only the page can show the error
                if not self._add(generation, self._cursor, None, f"{type(error).__name__}: {error}"):
                    return
                environment.sleep(_RECONNECT_S)
        with self._lock:
            if generation == self._generation:
                self._set_state("ended", reason)

    def _add(self, generation: int, cursor: str, row: Row | None, lost: str) -> bool:
        """Store a step of the stream; return False if a newer generation of threads follows it."""
        with self._lock:
            if generation != self._generation:
                return False
            self._cursor = cursor
            if row is not None:
                self._row_count += 1
                # The page may receive a row twice, in a response and in an update, and recognizes it by the number.
                numbered = row | {"number": self._row_count}
                self._rows.append(numbered)
                self._unsent.append(numbered)
                self._changed.set()
            self._set_state("lost" if lost else "following", lost)
            self._started.set()
            return True

    def _set_state(self, state: str, reason: str) -> None:
        if (state, reason) != (self._state, self._reason):
            self._state, self._reason = state, reason
            self._changed.set()

    def _send(self, generation: int) -> None:
        while True:
            self._changed.wait(_CHECK_INTERVAL_S)
            environment.sleep(_SEND_INTERVAL_S)  # one message per event would overload the page
            with self._lock:
                if generation != self._generation:
                    return
                if environment.monotonic_s() - self._visible_at > AWAY_S:
                    # The reading thread notices the new generation at the next event or heartbeat.
                    self._generation += 1
                    self._state = "resting"
                    return
                update = self._update(self._unsent[-MAX_ROWS:]) if self._changed.is_set() else None
                self._unsent = []
                self._changed.clear()
            if update is not None:
                self.window.send(update)
                if update["state"] == "ended":
                    return
