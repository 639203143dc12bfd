"""The notebook side of Event Workbench: see events, ask SQL, write, try, publish and watch automations.

from workbench import Workbench
wb = Workbench()

`%load_ext workbench` adds `%%events`: a cell of SQL.
"""

from typing import TYPE_CHECKING

from api.language.version import VERSION
from workbench.automation import Automation
from workbench.catalog import Catalog
from workbench.contacts import Contact
from workbench.dead_letters import DeadLetters
from workbench.entries import Entries, Entry
from workbench.errors import (
    DraftError,
    KeyRefusedError,
    NoSuchVerbError,
    NotThereError,
    PublishError,
    RefusedError,
    SqlError,
    StaleError,
    StillRunningError,
    StoppedError,
    UnavailableError,
    UnknownOutcomeError,
    UnreachableError,
    VersionError,
    WorkbenchError,
)
from workbench.events import Receipt, Receipts
from workbench.merging import Merge
from workbench.plan import Plan
from workbench.segments import Segment
from workbench.simulate import Simulation
from workbench.workbench import Workbench

if TYPE_CHECKING:  # IPython is there where it loads us
    from IPython.core.interactiveshell import InteractiveShell

__all__ = [
    "Automation",
    "Catalog",
    "Contact",
    "DeadLetters",
    "DraftError",
    "Entries",
    "Entry",
    "KeyRefusedError",
    "Merge",
    "NoSuchVerbError",
    "NotThereError",
    "Plan",
    "PublishError",
    "Receipt",
    "Receipts",
    "RefusedError",
    "Segment",
    "Simulation",
    "SqlError",
    "StaleError",
    "StillRunningError",
    "StoppedError",
    "UnavailableError",
    "UnknownOutcomeError",
    "UnreachableError",
    "VersionError",
    "Workbench",
    "WorkbenchError",
    "__version__",
]

__version__ = VERSION


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Do what `%load_ext workbench` asks for."""
    from workbench.magic import load

    load(shell)


def unload_ipython_extension(shell: "InteractiveShell") -> None:
    """Do what `%unload_ext workbench` asks for."""
    from workbench.magic import unload

    unload(shell)
