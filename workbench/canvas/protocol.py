"""The automation as a canvas sees it. `workbench.automation.Automation` is one; the canvas stands below it and cannot name it."""

from collections.abc import Mapping
from typing import Any, Protocol

from workbench.connection import Connection
from workbench.draft import Draft
from workbench.language.check import Diagnostic
from workbench.publish import AutomationRecord
from workbench.simulate import Simulation


class CanvasRecord(Protocol):
    """Where an automation lives: the server, and what it held when last seen."""

    connection: Connection | None
    record: AutomationRecord | None


class Drawn(Protocol):
    """An automation that can be drawn, tried, saved, published and switched."""

    _draft: Draft
    _server: Any  # a SavedAutomation; a protocol's attribute that can be set fits no subclass

    @property
    def name(self) -> str:
        """The name by which it is saved and opened."""

    def simulate(self, event: Mapping[str, Any], contact: Mapping[str, Any] | None = None) -> Simulation:
        """Return what would happen with an event."""

    def save(self, *, overwrite: bool = False) -> object:
        """Save the draft."""

    def publish(self, *, overwrite: bool = False) -> object:
        """Save and publish it, and switch it on."""

    def activate(self) -> object:
        """Switch it on."""

    def deactivate(self) -> object:
        """Switch it off."""

    def pause(self) -> object:
        """Let it stand still."""

    def resume(self) -> object:
        """Let it go on."""

    def _status_pills(self) -> list[tuple[str, str]]: ...

    def _archive_remarks(self) -> list[Diagnostic]: ...

    def _repr_html_(self) -> str: ...
