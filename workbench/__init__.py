"""The notebook side of Event Workbench: browse events, query them with SQL, write, test and publish automations.

from workbench import Workbench
wb = Workbench()

`%load_ext workbench` adds the cell magic `%%events`, which runs a cell of SQL.

Importing this package loads nothing else: each public name is loaded when it is first used (PEP 562). So the server,
which needs `workbench.language` only, never loads polars or ipywidgets.
"""

import importlib
from typing import TYPE_CHECKING, Any

from workbench.language.version import VERSION

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from workbench.automation import Automation as Automation
    from workbench.catalog import Catalog as Catalog
    from workbench.client import Client as Client
    from workbench.contacts import Contact as Contact
    from workbench.contacts import Merge as Merge
    from workbench.entries import DeadLetters as DeadLetters
    from workbench.entries import Entries as Entries
    from workbench.entries import Entry as Entry
    from workbench.errors import *  # noqa: F403  every error
    from workbench.events import Receipt as Receipt
    from workbench.events import Receipts as Receipts
    from workbench.plan import Plan as Plan
    from workbench.segments import Segment as Segment
    from workbench.simulate import Simulation as Simulation
    from workbench.workbench import Workbench as Workbench

__version__ = VERSION

_NAMES = {
    "automation": "Automation",
    "catalog": "Catalog",
    "client": "Client RejectedEvent",
    "contacts": "Contact Merge",
    "entries": "DeadLetters Entries Entry",
    "errors": (
        "AuthenticationError ConflictError ConnectionFailedError InvalidArgumentError InvalidAutomationError "
        "InvalidRequestError MissingDependencyError NotFoundError PermissionDeniedError PublishError SpoolError "
        "SqlError StoppedError UnavailableError UnknownOutcomeError UnknownVerbError VersionError WaitTimeoutError "
        "WorkbenchError"
    ),
    "events": "Receipt Receipts",
    "plan": "Plan",
    "segments": "Segment",
    "simulate": "Simulation",
    "workbench": "Workbench",
}
_MODULES = {name: f"workbench.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *sorted(_MODULES)]  # noqa: PLE0604  the keys are strings


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
        return value
    raise AttributeError(f"module 'workbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Register the magics, for `%load_ext workbench`."""
    from workbench.magic import load

    load(shell)


def unload_ipython_extension(shell: "InteractiveShell") -> None:
    """Remove the magics, for `%unload_ext workbench`."""
    from workbench.magic import unload

    unload(shell)
