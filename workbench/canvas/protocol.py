"""The parts of an automation that the canvas uses. `workbench.automation` imports the canvas, not the reverse."""

from collections.abc import Mapping
from typing import Any, Protocol

from workbench.connection import Connection
from workbench.draft import Draft
from workbench.language.check import Diagnostic
from workbench.publish import AutomationRecord
from workbench.simulate import Simulation


class ServerState(Protocol):
    """The server of an automation, and its record there as last read; both None without a server."""

    connection: Connection | None
    record: AutomationRecord | None


class CanvasAutomation(Protocol):
    """An automation that a canvas can edit, simulate, save and publish. `Automation` documents the methods."""

    _draft: Draft
    # A ServerState. It is declared Any because a settable attribute of a protocol is invariant: no subclass would
    # match.
    _server: Any

    @property
    def name(self) -> str: ...

    def simulate(self, event: Mapping[str, Any], contact: Mapping[str, Any] | None = None) -> Simulation: ...

    def save(self, *, overwrite: bool = False) -> object: ...

    def publish(self, *, overwrite: bool = False) -> object: ...

    def activate(self) -> object: ...

    def deactivate(self) -> object: ...

    def pause(self) -> object: ...

    def resume(self) -> object: ...

    def _status_pills(self) -> list[tuple[str, str]]: ...

    def _archive_remarks(self) -> list[Diagnostic]: ...

    def _repr_html_(self) -> str: ...
