"""Widgets: the page asks, Python answers with what to show, and no state is kept in the notebook file.

Most of the content comes from outside (event names, payloads), so it travels as text and numbers, and the page never sets it as HTML.
Questions are answered on a thread of their own where the front end supports that (JupyterLab does), so also while a cell runs.

`LiveView` follows a stream of events: one thread reads, another sends batches to the page, ten times a second. The page reports every
few seconds that it is visible. After a minute without a report (closed tabs do not report) the threads end, and when the page comes
back, following continues where it ended. Only a WorkbenchError, such as a rejected key, ends it for good; after any other error it
reconnects. All threads are daemons, so they end with the kernel.
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
StreamSteps: TypeAlias = Callable[[str], Iterator[tuple[str, Row | None, str]]]
"""From a cursor: tuples of the next cursor, a row (None: a heartbeat), and the reason why the connection was lost (empty: it was not)."""

MAX_ROWS = 500  # here and in the page
AWAY_S = 60.0
_LEAVE_GRACE_S = 12.0  # another page with the same widget has this long to report
_SEND_INTERVAL_S = 0.1
_CHECK_INTERVAL_S = 5.0
_START_TIMEOUT_S = 3.0  # a cell waits until following has begun, so that events of the next cell are included
_RECONNECT_S = 5.0
_STATIC = Path(__file__).parent.parent / "static"
_TEXT_IN_COPIES = "Run this cell for the live view."


class _Window(anywidget.AnyWidget):
    """Answers questions by their id. A first reply, `heard`, tells the page that the kernel is alive."""

    own_id = Unicode("").tag(sync=True)  # the page finds the cell of the widget by it

    def __init__(self, answer: Answer, **traits: Any) -> None:
        self._answer = answer
        super().__init__(**traits)
        self.own_id = str(self.model_id)
        self.on_msg(self._on_question)

    def _on_question(self, _widget: Any, question: Content, _buffers: Any) -> None:
        self.send({"id": question.get("id"), "heard": True})
        try:
            content = self._answer(question)
        except WorkbenchError as error:
            content = {"error": str(error)}
        except Exception as error:
            self.send({"id": question.get("id"), "error": f"{type(error).__name__}: {error}"})
            raise
        self.send({"id": question.get("id"), **content})


class CatalogWindow(_Window):
    """A list of events with search, or the details of one. Asks `list` (`text`) and `look` (`event`)."""

    event = Unicode("").tag(sync=True)

    _esm = f"{(_STATIC / 'page.js').read_text()}\n{(_STATIC / 'catalog.js').read_text()}"
    _css = f"{(_STATIC / 'page.css').read_text()}\n{(_STATIC / 'catalog.css').read_text()}"


class TailWindow(_Window):
    """Events as they arrive. Asks `hello`, `here` while it is visible, and `leave`; receives `rows` and `state`."""

    _esm = f"{(_STATIC / 'page.js').read_text()}\n{(_STATIC / 'tail.js').read_text()}"
    _css = f"{(_STATIC / 'page.css').read_text()}\n{(_STATIC / 'tail.css').read_text()}"


class LiveWindow(_Window):
    """The figures of one automation. Asks `look`, and `replay` (`cause`)."""

    _esm = f"{(_STATIC / 'page.js').read_text()}\n{(_STATIC / 'live.js').read_text()}"
    _css = f"{(_STATIC / 'page.css').read_text()}\n{(_STATIC / 'live.css').read_text()}"


def show(window: _Window, static: str) -> None:
    """Show a widget, and below it the HTML for copies of the notebook, which is hidden while the widget is alive."""
    display: Any = IPython.display  # untyped
    bundle, metadata = window._repr_mimebundle_() or ({}, {})
    display.display({**bundle, "text/plain": _TEXT_IN_COPIES}, raw=True, metadata=metadata)
    if static:
        display.display(display.HTML(f'<div class="ewb-static">{static}</div>'))


class LiveView:
    """The stream behind one widget, and the threads that follow it."""

    def __init__(self, steps: StreamSteps) -> None:
        self._steps = steps
        self._lock = threading.Lock()
        self._rows: deque[Row] = deque(maxlen=MAX_ROWS)
        self._unsent: list[Row] = []
        self._changed = threading.Event()
        self._started = threading.Event()
        self._state, self._reason = "resting", ""
        self._cursor = ""
        self._row_count = 0
        self._update_count = 0  # the page drops updates that overtook each other
        self._generation = 0  # of threads; those of an older generation end
        self._visible_at = 0.0
        self.window = TailWindow(self.answer)

    def show(self) -> None:
        """Show the widget; return when it follows, so that later events are in it."""
        self.answer({"ask": "here"})
        show(self.window, "")
        self._started.wait(_START_TIMEOUT_S)

    def answer(self, question: Content) -> Content:
        """Answer the page: `hello` asks for all rows, `here` says that it is visible, `leave` that it no longer is."""
        with self._lock:
            leaves = question.get("ask") == "leave"
            self._visible_at = environment.monotonic_s() - (AWAY_S - _LEAVE_GRACE_S if leaves else 0.0)
            if self._state == "resting" and not leaves:
                self._generation += 1
                self._state = "connecting"
                for work in (self._read, self._send):
                    name = f"tail-{work.__name__}"
                    threading.Thread(target=work, args=(self._generation,), daemon=True, name=name).start()
            return self._update(list(self._rows) if question.get("ask") == "hello" else [])

    def _update(self, rows: list[Row]) -> Content:
        self._update_count += 1
        return {"told": self._update_count, "rows": rows, "state": self._state, "why": self._reason}

    def _read(self, generation: int) -> None:
        while (reason := self._follow(generation)) is None:
            environment.sleep(_RECONNECT_S)
        with self._lock:
            if generation == self._generation:
                self._set_state("ended", reason)

    def _follow(self, generation: int) -> str | None:
        """Follow the stream until it ends; return the reason, or None to reconnect."""
        try:
            for cursor, row, lost in self._steps(self._cursor):
                if not self._take(generation, cursor, row, lost):
                    return ""
        except WorkbenchError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  the top of the thread: the page shows the error, nothing else could
            reason = f"{type(error).__name__}: {error}"
            return None if self._take(generation, self._cursor, None, reason) else ""
        return "The time limit of the live view was reached."

    def _take(self, generation: int, cursor: str, row: Row | None, lost: str) -> bool:
        """Keep what the stream gave; return False if a newer generation follows it by then."""
        with self._lock:
            if generation != self._generation:
                return False
            self._cursor = cursor
            if row is not None:
                self._row_count += 1
                numbered = row | {
                    "number": self._row_count
                }  # the page drops rows that it received twice by their number
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
            environment.sleep(_SEND_INTERVAL_S)  # gather a batch: one message for each event would flood the page
            with self._lock:
                if generation != self._generation:
                    return
                if environment.monotonic_s() - self._visible_at > AWAY_S:
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
