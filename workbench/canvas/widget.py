"""The canvas widget: holds one automation, applies the changes of its views, and shows every view the result.

JupyterLab delivers the messages of a view in a subshell of the kernel, in a thread of its own, while cells run in the
main thread. One lock guards the drafts of all canvases; it is not held during requests to the server. Two canvases may
show the same automation: before a canvas writes, it checks whether the draft is still the one that it read. Entry
counts and the revision are polled from the server while a canvas is open.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from typing import Any, Literal, get_args

import msgspec
import traitlets
from anywidget import AnyWidget
from IPython.display import HTML, DisplayHandle, display

from workbench import environment
from workbench import publish as publishing
from workbench.broadcasts import Broadcast, create_broadcast, recipients_of
from workbench.canvas.document import (
    DraftPieces,
    Patch,
    arranged,
    cards,
    describe_diagnostics,
    edge_routes,
    palette,
    parse_draft,
    without_overlaps,
)
from workbench.canvas.requests import READ_REQUESTS, CanvasAutomation, CanvasRequest
from workbench.canvas.suggestions import Suggestions
from workbench.display.results import message_figures, message_headline
from workbench.display.words import entry_counts, outcome
from workbench.draft import Draft, JsonObject, start_draft
from workbench.errors import ConflictError, InvalidAutomationError, WorkbenchError
from workbench.language.check import Consent, Diagnostic
from workbench.language.responses import MessageResults
from workbench.publish import AutomationRecord, SavedAutomation, Stopped

_READ_ONLY = "this canvas is read-only; .canvas() without read_only=True opens one that can be changed"
_LOCK = threading.RLock()  # one for all canvases, because two of them may edit the same automation
_STATIC = files("workbench").joinpath("static")
_MIN_POLL_INTERVAL_S = 2.0
_LOAD_FACTOR = 20  # polling takes at most 1/20 of the time, however slow the counts of a large automation are
_NOT_PASSED = ("waiting", "held_out")  # the entry is still at the node, or ended there
_FAILED = ("failed", "refused")


class Canvas(AnyWidget):
    """A canvas for one automation. Assign to `canvas.automation` to show a changed automation.

    ```
    canvas = a.canvas()
    canvas.automation = canvas.automation.add_tag("vip")  # shows on the canvas
    a.describe()                                          # describes what was drawn
    ```
    """

    _esm = f"{_STATIC.joinpath('canvas.js').read_text('utf-8')}\n{_STATIC.joinpath('keys.js').read_text('utf-8')}"
    _css = _STATIC.joinpath("canvas.css").read_text("utf-8")

    palette = traitlets.Dict().tag(sync=True)
    document = traitlets.Dict().tag(sync=True)
    cards = traitlets.Dict().tag(sync=True)
    routes = traitlets.Dict().tag(sync=True)
    diagnostics: Any = traitlets.List().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    counts = traitlets.Dict().tag(sync=True)
    height = traitlets.Int().tag(sync=True)
    read_only = traitlets.Bool().tag(sync=True)

    _draft: Draft
    _pieces: DraftPieces

    def __init__(self, automation: CanvasAutomation, *, height: int = 640, read_only: bool = False) -> None:
        super().__init__(palette=palette(), height=height, read_only=read_only)
        self._automation = automation
        # All `Automation` values that were shown on this canvas. All of them follow the canvas, since a cell may hold
        # any of them.
        self._values = [automation]
        self._suggestions = Suggestions(automation._server)
        self._next_poll_s = 0.0
        self._catalog_warnings: list[Diagnostic] = []
        self._stale = ""  # a message, if the server has a newer revision
        self._revision = 0
        self._acknowledged: dict[str, int] = {}  # number of the last edit by view
        self._picture: DisplayHandle | None = None
        self._pictured: object = None
        self._open()
        self.on_msg(self._receive)

    @property
    def automation(self) -> CanvasAutomation:
        """The automation as it is drawn."""
        return self._automation

    @automation.setter
    def automation(self, automation: CanvasAutomation) -> None:
        with _LOCK:
            self._automation = automation
            self._values.append(automation)
            for value in self._values:
                value._server = automation._server
            self._write(automation._draft)
            self._open()
        self._check_catalog()

    # Messages from a view

    def _receive(self, _: object, content: JsonObject, __: object) -> None:
        handlers = {"edit": self._edit, "request": self._respond, "ping": self._ping}
        if content.get("name") == "display":
            # The view declares the kernel stopped if a ping is not answered for seconds; a backtest takes longer.
            threading.Thread(target=self._respond, args=(content,), daemon=True).start()
        else:
            handlers[content["kind"]](content)

    def _ping(self, _: JsonObject) -> None:
        """Reply, so that the view knows that the kernel runs; refresh the server's counts and the static picture."""
        self.send({"kind": "pong"})
        with _LOCK:
            self._reopen_if_changed()
        # A server that cannot be reached must not disturb editing; the next ping tries again.
        with suppress(WorkbenchError):
            self._poll(self._automation._server)
        self._show_status()
        self._draw_picture()

    def _poll(self, server: SavedAutomation) -> None:
        """Read the counts and the revision of the automation, unless they were read a moment ago."""
        started_s = environment.monotonic_s()
        record = server.record
        if server.connection is None or record is None or started_s < self._next_poll_s:
            return
        path = f"/automations/{record.id}"
        newest = msgspec.convert(server.connection.get(path), AutomationRecord)
        stats = server.connection.get(f"{path}/stats")
        elapsed_s = environment.monotonic_s() - started_s
        self._next_poll_s = started_s + max(_MIN_POLL_INTERVAL_S, elapsed_s * _LOAD_FACTOR)
        own = record.revision
        if newest.revision == own and server.record is record:  # a stop of everything changes its state, not its draft
            results = {"impact": record.impact, "stopped": record.stopped, "moves": record.moves}
            server.record = msgspec.structs.replace(newest, **results)
        revisions = f"yours is revision {own}, the server's is {newest.revision}"
        message = f"Someone changed this automation after you opened it: {revisions}."
        self._stale = message if newest.revision > own else ""
        live, outcomes = stats["live"], stats["nodes"]
        messages = {step.node_id: step for step in msgspec.convert(stats["messages"], tuple[MessageResults, ...])}
        with _LOCK:
            keys = self._pieces.keys()
            nodes: dict[str, JsonObject] = {}
            for node_id in keys.keys() & {*live, *outcomes}:
                counts, kind = outcomes.get(node_id, {}), self._pieces.nodes[keys[node_id]]["type"]
                step = messages.get(node_id)
                nodes[keys[node_id]] = {
                    "live": live.get(node_id, 0),
                    "passed": sum(count for word, count in counts.items() if word not in (*_FAILED, *_NOT_PASSED)),
                    "failed": sum(count for word, count in counts.items() if word in _FAILED),
                    "outcomes": [
                        {"outcome": outcome(word, kind), "count": count} for word, count in sorted(counts.items())
                    ],
                    "figures": [] if step is None else [*message_headline(step)],
                    "messages": [] if step is None else [*message_figures(step)],
                }
            # Entries of earlier versions may be at steps that the draft does not have.
            removed = sum(count for node_id, count in live.items() if node_id not in keys)
            self.counts = {"nodes": nodes, "headline": entry_counts(stats["entries"]), "atRemovedSteps": removed}

    def _edit(self, content: JsonObject) -> None:
        view, number = str(content["view"]), int(content["number"])
        with _LOCK:
            # A view that got no response sends its edits again; applying an edit twice would undo later edits.
            if number <= self._acknowledged.get(view, 0):
                return
            self._reopen_if_changed()
            try:
                if self.read_only:
                    raise InvalidAutomationError(_READ_ONLY)
                pieces = without_overlaps(self._pieces.patched(msgspec.convert(content["patch"], Patch)))
                self._write(pieces.draft(self._automation.name))
                self._pieces = pieces
            except (InvalidAutomationError, ValueError) as error:
                self.send({"kind": "rejected", "view": view, "reason": str(error)})
            self._acknowledged[view] = number
            self._show()
        self._check_catalog()

    def _respond(self, content: JsonObject) -> None:
        response: JsonObject = {"kind": "response", "id": content.get("id")}
        name = str(content.get("name"))
        try:
            if name in READ_REQUESTS:
                with _LOCK:
                    self._reopen_if_changed()
                    pieces = self._pieces
                    draft = pieces.draft(self._automation.name)
                    request = CanvasRequest(self._automation, self._suggestions, draft, pieces, content)
                # The lock is not held here: a request to the server may take seconds, and cells must be able to edit
                # meanwhile.
                response["value"] = READ_REQUESTS[name](request)
            else:
                response["value"] = self._change(name, content)
        except WorkbenchError as error:
            response |= {"error": str(error)}
            if isinstance(error, ConflictError) and name in ("save", "publish"):  # only these name a revision
                self._stale = str(error)
                response["stale"] = True
        except Exception as error:  # noqa: BLE001  a view that gets no response waits until it declares the kernel lost
            response |= {"error": f"Error in the kernel: {type(error).__name__}: {error}"}
        self._show_status()
        self.send(response)

    def _change(self, name: str, content: JsonObject) -> str:
        """Change the automation on the server; return a message for the user."""
        automation, overwrite = self._automation, content.get("overwrite") is True
        agreed = {consent: True for consent in get_args(Consent) if consent in content.get("agreed", ())}
        move: Literal["safe", "none"] = "safe" if content.get("move") is True else "none"
        if self.read_only:
            raise InvalidAutomationError(_READ_ONLY)
        changes: dict[str, tuple[Callable[[], object], str]] = {
            "save": (lambda: automation.save(overwrite=overwrite), "Saved. The published version stays as it is."),
            "publish": (
                lambda: automation.publish(move=move, overwrite=overwrite, **agreed),
                "Published: new events start it.",
            ),
            "activate": (automation.activate, "Switched on: new events start it."),
            "deactivate": (
                automation.deactivate,
                "Switched off: no event starts it, and waiting entries are cancelled.",
            ),
            "pause": (automation.pause, "Paused: no event starts it, and its entries wait until you resume it."),
            "resume": (automation.resume, "Resumed: new events start it, and paused entries continue."),
            "broadcast": (lambda: self._broadcast(content), ""),
            "stop_all": (lambda: publishing.stop_all(automation._connected()), "Everything waits until it is resumed."),
            "resume_all": (lambda: publishing.resume_all(automation._connected()), "New events start entries again."),
            "reload": (self._reload, "Loaded the version from the server."),
        }
        if name not in changes:
            raise InvalidAutomationError(f"unknown action {name!r}")
        change, message = changes[name]
        result = change()
        if name == "publish" and automation.state == "paused":
            message = "Published. It is paused: events start it after you resume it."
        if name == "publish" and automation._draft.trigger.get("type") == "broadcast":
            message = "Published. “More”, “Send the broadcast” starts it for the contacts of a segment."
        if isinstance(result, Broadcast):
            message = f"{result}."
        if name == "publish" and automation.moves is not None:
            message = f"{message} {automation.moves.headline()}."
        stopped = automation.stopped if name == "pause" else result
        if isinstance(stopped, Stopped):
            message = f"{message} {stopped.sentence()}"
        self._stale = ""
        self._next_poll_s = 0.0  # the counts change with the status, and users look at them now
        if isinstance(result, Stopped):  # it has no record of this automation
            with suppress(WorkbenchError):
                self._poll(automation._server)
        with _LOCK:
            self._show_diagnostics()
        self._draw_picture()
        return message

    def _broadcast(self, content: JsonObject) -> Broadcast:
        """Send a broadcast to the contacts that were counted; it says how many entered and left since."""
        server = self._automation._server
        if server.record is None:
            raise InvalidAutomationError("publish the automation first")
        segment = content["segment"]
        recipients = recipients_of(segment or None, not segment) | content["counted"]
        return create_broadcast(self._automation._connected(), server.record.id, recipients, None)

    def _reload(self) -> None:
        server = self._automation._server
        if server.connection is None:
            raise InvalidAutomationError("this automation is not connected to a server")
        record = publishing.find(server.connection, self._automation.name)
        if record is None:
            raise InvalidAutomationError(f"Automation not found on the server: {self._automation.name!r}")
        with _LOCK:
            server.record = record
            self._write(record.draft())
            self._open()
        self._check_catalog()

    # State of the views

    def _open(self) -> None:
        """Split the draft into pieces and show it. Nodes without a position get one; an empty draft gets a trigger."""
        self._draft = self._automation._draft
        # An empty name and not none, so that publishing on every event needs consent.
        draft = self._draft if self._draft.nodes else start_draft(self._draft.name, {"type": "app_event", "event": ""})
        pieces = DraftPieces.of(draft, {} if draft.positions() is not None else arranged(draft))
        self._pieces = without_overlaps(pieces)
        self._show()

    def _reopen_if_changed(self) -> None:
        if self._automation._draft is not self._draft:  # another canvas of the same automation has written to it
            self._open()

    def _write(self, draft: Draft) -> None:
        self._draft = draft
        for value in self._values:
            value._draft = draft

    def _show(self) -> None:
        """Show everything that follows from the draft alone. Warnings from the catalog need the server."""
        parsed = parse_draft(self._pieces.draft(self._automation.name))
        self._revision += 1
        # All in one message: cards of a different revision than the document would be drawn at the wrong nodes.
        with self.hold_sync():
            self.document = self._pieces.to_browser() | {
                "revision": self._revision,
                "acknowledged": {**self._acknowledged},
            }
            self.cards = cards(self._pieces, parsed)
            self.routes = edge_routes(self._pieces, self.cards)
            self._show_diagnostics()
            self._show_status()

    def _check_catalog(self) -> None:
        with _LOCK:
            draft = self._automation._draft
            parsed = parse_draft(draft)
        warnings = [
            *self._suggestions.snippet_problems(draft),
            *self._suggestions.warnings(parsed.trigger, parsed.graph),
        ]
        with _LOCK:
            # The draft may have changed during the request; the check of the later draft shows its own warnings.
            if draft is self._automation._draft:
                self._catalog_warnings = warnings
                self._show_diagnostics()

    def _show_diagnostics(self) -> None:
        automation = self._automation
        draft = automation._draft
        of_draft = draft.remarks() if draft.nodes else ()
        diagnostics = (*of_draft, *automation._archive_remarks(), *self._catalog_warnings)
        self.diagnostics = describe_diagnostics(self._pieces, diagnostics)

    def _show_status(self) -> None:
        record = self._automation._server.record
        self.status = {
            "name": self._automation.name,
            "pills": [{"text": text, "look": look} for text, look in self._automation._status_pills()],
            "state": self._automation.state,
            "archived": record is not None and record.archived_at is not None,
            "connected": self._automation._server.connection is not None,
            "stale": self._stale,
        }

    def __repr__(self) -> str:
        return f"Canvas of {self._automation.name!r}: run the cell to draw on it"

    def _ipython_display_(self) -> None:
        self._check_catalog()
        bundle, metadata = self._repr_mimebundle_() or ({}, {})
        display(bundle, metadata=metadata, raw=True)  # type: ignore[no-untyped-call]  # IPython has no types
        self._picture, self._pictured = DisplayHandle(), None  # type: ignore[no-untyped-call]
        self._draw_picture()

    def _draw_picture(self) -> None:
        """Draw the automation below the canvas; a draft that is not readable keeps its old picture.

        The picture is for saved notebooks, nbconvert and the web, which have no kernel. The style sheet of the canvas
        hides it while the canvas is drawn.
        """
        state = self._automation._draft, self._automation._status_pills()
        if self._picture is not None and state != self._pictured:
            with suppress(WorkbenchError):
                copy = f'<div class="ewb-canvas-copy">{self._automation._repr_html_()}</div>'
                draw = self._picture.display if self._pictured is None else self._picture.update
                draw(HTML(copy))  # type: ignore[no-untyped-call]
                self._pictured = state
