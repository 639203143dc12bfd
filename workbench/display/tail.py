"""Events as they come, in a widget: a thread reads them, another one sends what has gathered, ten times a second.

It follows from the moment it is shown and while somebody looks: the page says so every few seconds, and when it has not for a minute
(a closed tab says nothing), the thread stops, and goes on from where it was when the page comes back. Only a refusal (of the key, of
the question) ends it; after anything else it tries again. The threads are daemons: they end with the kernel.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from workbench import surroundings
from workbench.display.window import TailWindow, show
from workbench.errors import WorkbenchError

Row: TypeAlias = dict[str, str | int]
Steps: TypeAlias = Callable[[str], Iterator[tuple[str, Row | None, str]]]
"""From a cursor on: the cursor that goes on after it, what came (None: a heartbeat), and what broke the connection."""

KEPT = 500  # rows, here and in the page
AWAY_SECONDS = 60.0
_LEAVING_SECONDS = 12.0  # until another page that shows the same has said that it is there
_GATHER_SECONDS = 0.1
_LOOK_SECONDS = 5.0
_BEGIN_SECONDS = 3.0  # that a cell waits at most, so that the next one's events are seen
_AGAIN_SECONDS = 5.0


class Following:
    """What one widget follows."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._lock = threading.Lock()
        self._rows: deque[Row] = deque(maxlen=KEPT)
        self._new: list[Row] = []
        self._news = threading.Event()
        self._begun = threading.Event()
        self._state, self._why = "resting", ""
        self._cursor = ""
        self._number = 0
        self._told = 0  # how often a page was told something: what was told later counts
        self._turn = 0  # of the threads that may write; older ones end
        self._seen = 0.0
        self.window = TailWindow(self.answer)

    def show(self) -> None:
        """Show the widget, and return when it follows; what happens from here on is in it."""
        self.answer({"ask": "here"})
        show(self.window, "")
        self._begun.wait(_BEGIN_SECONDS)

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer the page: `hello` wants what there is, `here` says that it is still there, `leave` that it goes."""
        with self._lock:
            leaves = question.get("ask") == "leave"
            self._seen = surroundings.seconds() - (AWAY_SECONDS - _LEAVING_SECONDS if leaves else 0.0)
            if self._state == "resting" and not leaves:
                self._start()
            return self._tell(list(self._rows) if question.get("ask") == "hello" else [])

    def _tell(self, rows: list[Row]) -> dict[str, Any]:
        self._told += 1
        return {"told": self._told, "rows": rows, "state": self._state, "why": self._why}

    def _start(self) -> None:
        self._turn += 1
        self._state = "connecting"
        for work in (self._read, self._send):
            threading.Thread(target=work, args=(self._turn,), daemon=True, name=f"tail-{work.__name__}").start()

    def _read(self, turn: int) -> None:
        while (why := self._followed(turn)) is None:
            surroundings.sleep(_AGAIN_SECONDS)
        with self._lock:
            if turn == self._turn:
                self._say("ended", why)

    def _followed(self, turn: int) -> str | None:
        """Follow until it is over, and return why; None: it broke in a way that nobody thought of."""
        try:
            for cursor, row, lost in self._steps(self._cursor):
                if not self._take(turn, cursor, row, lost):
                    return ""
        except WorkbenchError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001  the edge of the thread: the page says it, and nobody else could
            return None if self._take(turn, self._cursor, None, f"{type(error).__name__}: {error}") else ""
        return "Its time is over."

    def _take(self, turn: int, cursor: str, row: Row | None, lost: str) -> bool:
        with self._lock:
            if turn != self._turn:
                return False
            self._cursor = cursor
            if row is not None:
                self._number += 1
                numbered = row | {"number": self._number}  # by which the page knows a row that it was told twice
                self._rows.append(numbered)
                self._new.append(numbered)
                self._news.set()
            self._say("lost" if lost else "following", lost)
            self._begun.set()
            return True

    def _say(self, state: str, why: str) -> None:
        if (state, why) != (self._state, self._why):
            self._state, self._why = state, why
            self._news.set()

    def _send(self, turn: int) -> None:
        while True:
            self._news.wait(_LOOK_SECONDS)
            surroundings.sleep(_GATHER_SECONDS)
            with self._lock:
                if turn != self._turn:
                    return
                if surroundings.seconds() - self._seen > AWAY_SECONDS:
                    self._turn += 1
                    self._state = "resting"
                    return
                said = self._tell(self._new[-KEPT:]) if self._news.is_set() else None
                self._new = []
                self._news.clear()
            if said is not None:
                self.window.send(said)
            if said is not None and said["state"] == "ended":
                return
