"""The notebook side of Event Workbench: see events, ask SQL, write, try, publish and watch automations.

from workbench import Workbench
wb = Workbench()
"""

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
    UnavailableError,
    UnknownOutcomeError,
    UnreachableError,
    WorkbenchError,
)
from workbench.events import Receipt, Receipts
from workbench.merging import Merge
from workbench.plan import Plan
from workbench.simulate import Simulation
from workbench.workbench import Workbench

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
    "Simulation",
    "SqlError",
    "StaleError",
    "StillRunningError",
    "UnavailableError",
    "UnknownOutcomeError",
    "UnreachableError",
    "Workbench",
    "WorkbenchError",
]
