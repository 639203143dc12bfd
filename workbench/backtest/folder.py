"""A place on disk for the files of a backtest, which goes with the last who holds it. Only its owner may look into it."""

import shutil
import tempfile
import weakref
from pathlib import Path


class Folder:
    """A temporary folder; `remove()` does not wait until it is let go."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="workbench-backtest-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
