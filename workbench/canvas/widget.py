"""The still picture beside a canvas: what is left of it in a saved notebook, without a kernel, in nbconvert and on the web.

The canvas hides it with its style sheet wherever it is drawn itself.

The widget: holds one automation, writes into it what views send, and shows every view what came of it.

Messages of a view arrive in a thread of their own (JupyterLab sends them to a subshell of the kernel), while cells run in the main thread:
one lock guards all drafts that are drawn, and whatever asks the server does so outside of it. Two canvases of one automation are
possible, too: each looks whether the draft is still the one it knows before it writes into it.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from typing import Any

import msgspec
import traitlets
from anywidget import AnyWidget
from IPython.display import HTML, DisplayHandle, display

from workbench import publish as publishing
from workbench.canvas.document import Patch, Sheet, cards, laid_out, passing, read, remarks, sheet_of
from workbench.canvas.forms import kinds, operators
from workbench.canvas.protocol import Drawn
from workbench.canvas.requests import QUESTIONS, NodePreviewRequest
from workbench.canvas.status import StatusPoller
from workbench.canvas.suggestions import Suggestions
from workbench.draft import Draft, JsonObject, new_draft
from workbench.errors import ConflictError, InvalidAutomationError, WorkbenchError
from workbench.language.check import Diagnostic


class Copy:
    """The picture of one automation in one output; shows the draft, and where it stands, as of the last `refresh`."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None
        self._shown: object = None

    def show(self, automation: Drawn) -> None:
        """Put the picture into the output of the cell that runs."""
        self._shown = _state(automation)
        self._handle = display(_picture(automation), display_id=True)  # type: ignore[no-untyped-call]  # IPython has no types

    def refresh(self, automation: Drawn) -> None:
        """Put what is there now into the picture; a draft that cannot be read yet waits for the next time."""
        state = _state(automation)
        if self._handle is None or state == self._shown:
            return
        with suppress(WorkbenchError):
            self._handle.update(_picture(automation))  # type: ignore[no-untyped-call]
            self._shown = state


def _state(automation: Drawn) -> tuple[Draft, list[tuple[str, str]]]:
    return automation._draft, automation._status_pills()


def _picture(automation: Drawn) -> HTML:
    return HTML(f'<div class="ewb-canvas-copy">{automation._repr_html_()}</div>')  # type: ignore[no-untyped-call]


_LOOKING = "this canvas is read-only"
_LOCK = threading.RLock()
_STATIC = files("workbench").joinpath("static")


class Canvas(AnyWidget):
    """An automation to draw on. `canvas.automation` is what is drawn; assign another value of it, and that is drawn.

    ```
    canvas = a.canvas()
    canvas.automation = canvas.automation.add_tag("vip")  # shows on the canvas
    a.describe()                                          # tells what was drawn
    ```
    """

    _esm = _STATIC.joinpath("canvas.js").read_text("utf-8")
    _css = _STATIC.joinpath("canvas.css").read_text("utf-8")

    kinds: Any = traitlets.List().tag(sync=True)
    operators: Any = traitlets.List().tag(sync=True)
    document = traitlets.Dict().tag(sync=True)
    cards = traitlets.Dict().tag(sync=True)
    lanes = traitlets.Dict().tag(sync=True)
    remarks: Any = traitlets.List().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    counts = traitlets.Dict().tag(sync=True)
    height = traitlets.Int().tag(sync=True)
    read_only = traitlets.Bool().tag(sync=True)

    _draft: Draft
    _sheet: Sheet

    def __init__(self, automation: Drawn, *, height: int = 640, read_only: bool = False) -> None:
        super().__init__(kinds=kinds(), operators=operators(), height=height, read_only=read_only)
        self._automation = automation
        self._bound = [automation]
        self._known = Suggestions(automation._server.connection)
        self._watch = StatusPoller()
        self._objections: list[Diagnostic] = []
        self._stale = ""
        self._revision = 0
        self._seen: dict[str, int] = {}
        self._copy = Copy()
        self._open()
        self.on_msg(self._receive)

    @property
    def automation(self) -> Drawn:
        """The automation as it is drawn."""
        return self._automation

    @automation.setter
    def automation(self, automation: Drawn) -> None:
        with _LOCK:
            self._automation = automation
            self._bound.append(automation)
            for each in self._bound:
                each._server = automation._server
            self._write(automation._draft)
            self._open()
        self._object()

    # What a view says

    def _receive(self, _: object, content: JsonObject, __: object) -> None:
        hear = {"edit": self._edit, "ask": self._answer, "tick": self._tick}
        hear[content["kind"]](content)

    def _tick(self, _: JsonObject) -> None:
        """Say that we are here, and look how the automation is doing."""
        self.send({"kind": "tock"})
        with _LOCK:
            self._catch_up()
        self._look()

    def _edit(self, content: JsonObject) -> None:
        """Write a change into the draft; what has been written already is not written again."""
        view, number = str(content["view"]), int(content["number"])
        with _LOCK:
            if number <= self._seen.get(view, 0):
                return
            self._catch_up()
            try:
                if self.read_only:
                    raise InvalidAutomationError(_LOOKING)
                sheet = self._sheet.patched(msgspec.convert(content["patch"], Patch))
                self._write(sheet.draft(self._automation.name))
                self._sheet = sheet
            except (InvalidAutomationError, ValueError) as error:
                self.send({"kind": "refused", "view": view, "why": str(error)})
            self._seen[view] = number
            self._show()
        self._object()

    def _answer(self, content: JsonObject) -> None:
        answer: JsonObject = {"kind": "answer", "id": content.get("id")}
        try:
            value = self._asked(str(content["what"]), content)
        except ConflictError as error:
            self._stale = str(error)
            answer |= {"error": str(error), "stale": True}
        except WorkbenchError as error:
            answer |= {"error": str(error)}
        except Exception as error:  # noqa: BLE001  the edge: a view that gets no answer waits for ever
            answer |= {"error": f"error in the kernel: {type(error).__name__}: {error}"}
        else:
            answer |= {"value": value}
        self._show_status()
        self.send(answer)

    def _asked(self, what: str, content: JsonObject) -> Any:
        if what not in QUESTIONS:
            return self._done(what, overwrite=content.get("overwrite") is True)
        with _LOCK:
            self._catch_up()
            sheet = self._sheet
            question = NodePreviewRequest(
                self._automation, self._known, sheet.draft(self._automation.name), sheet, content
            )
        return QUESTIONS[what](question)

    def _done(self, what: str, *, overwrite: bool) -> str:
        """Change the automation on the server; return what to say about it."""
        automation = self._automation
        if self.read_only:
            raise InvalidAutomationError(_LOOKING)
        deeds: dict[str, tuple[Callable[[], object], str]] = {
            "save": (lambda: automation.save(overwrite=overwrite), "Saved. The published version stays as it is."),
            "publish": (lambda: automation.publish(overwrite=overwrite), "Published: new events start it."),
            "activate": (automation.activate, "Switched on: new events start it."),
            "deactivate": (
                automation.deactivate,
                "Switched off: no event starts it, and waiting entries are cancelled.",
            ),
            "pause": (
                automation.pause,
                "Paused: no event starts it, and its entries wait until you resume it.",
            ),
            "resume": (automation.resume, "Resumed: new events start it, and paused entries continue."),
            "reload": (self._reload, "Loaded the version from the server."),
        }
        if what not in deeds:
            raise InvalidAutomationError(f"unknown action {what!r}")
        do, said = deeds[what]
        do()
        if what == "publish" and self._is_paused():
            said = "Published. It is paused: events start it after you resume it."
        self._stale = ""
        self._watch.soon()
        with _LOCK:
            self._show_remarks()
        self._copy.refresh(automation)
        return said

    def _is_paused(self) -> bool:
        record = self._automation._server.record
        return record is not None and record.paused_at is not None

    def _reload(self) -> None:
        """Put what the server has in place of the draft."""
        place = self._automation._server
        if place.connection is None:
            raise InvalidAutomationError("this automation is not connected to a server")
        record = publishing.find(place.connection, self._automation.name)
        if record is None:
            raise InvalidAutomationError("the automation no longer exists on the server")
        with _LOCK:
            place.record = record
            self._write(record.draft())
            self._open()
        self._object()

    # What views are shown

    def _open(self) -> None:
        """Take the draft apart, laid out where nobody has put its nodes anywhere, and show it; an empty one begins with its trigger."""
        self._draft = self._automation._draft
        draft = self._draft if self._draft.nodes else new_draft(self._draft.name, ())
        self._sheet = sheet_of(draft, {} if draft.positions() is not None else laid_out(draft))
        self._show()

    def _catch_up(self) -> None:
        """Open the draft again where somebody else has written into it: another canvas of the same automation."""
        if self._automation._draft is not self._draft:
            self._open()

    def _write(self, draft: Draft) -> None:
        self._draft = draft
        for each in self._bound:
            each._draft = draft

    def _show(self) -> None:
        """Show everything that follows from the draft; what the catalog objects to comes later."""
        known = read(self._sheet.draft(self._automation.name))
        self._revision += 1
        with self.hold_sync():
            self.document = self._sheet.pieces() | {"revision": self._revision, "seen": {**self._seen}}
            self.cards = cards(self._sheet, known)
            self.lanes = passing(self._sheet, self.cards)
            self._show_remarks()
            self._show_status()

    def _object(self) -> None:
        """Look up what the catalog has against the draft, and show it unless the draft has changed meanwhile."""
        with _LOCK:
            draft = self._automation._draft
            known = read(draft)
        objections = self._known.objections(known.trigger, known.graph)
        with _LOCK:
            if draft is self._automation._draft:
                self._objections = objections
                self._show_remarks()

    def _show_remarks(self) -> None:
        automation = self._automation
        draft = automation._draft
        own = draft.remarks() if draft.nodes else ()
        self.remarks = remarks(self._sheet, (*own, *automation._archive_remarks(), *self._objections))

    def _show_status(self) -> None:
        record = self._automation._server.record
        self.status = {
            "name": self._automation.name,
            "pills": [{"text": text, "look": look} for text, look in self._automation._status_pills()],
            "published": record is not None and record.published_version is not None,
            "active": record is not None and record.active,
            "paused": self._is_paused(),
            "archived": record is not None and record.archived_at is not None,
            "connected": self._automation._server.connection is not None,
            "stale": self._stale,
        }

    def _look(self) -> None:
        """See how the automation is doing, and keep the copy up to date that stays when the kernel is gone."""
        place = self._automation._server
        with suppress(WorkbenchError):
            seen = self._watch.look(place.connection, place.record) if place.connection and place.record else None
            if seen is not None:
                self._stale = _changed(place.record, seen.revision)
                with _LOCK:
                    keys = self._sheet.keys()
                    nodes = {keys[each]: count for each, count in seen.nodes.items() if each in keys}
                    elsewhere = sum(count["live"] for each, count in seen.nodes.items() if each not in keys)
                    self.counts = {"nodes": nodes, "headline": seen.headline, "elsewhere": elsewhere}
        self._show_status()
        self._copy.refresh(self._automation)

    def __repr__(self) -> str:
        return f"Canvas of {self._automation.name!r}: run the cell to draw on it"

    def _ipython_display_(self) -> None:
        self._object()
        bundle, metadata = self._repr_mimebundle_() or ({}, {})
        display(bundle, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]  # IPython has no types
        self._copy.show(self._automation)


def _changed(known: publishing.AutomationRecord, revision: int) -> str:
    """Say that somebody else has changed the automation; empty when nobody has."""
    if revision <= known.revision:
        return ""
    yours = f"yours is revision {known.revision}, the server's is {revision}"
    return f"Someone changed this automation after you opened it: {yours}."
