"""An embedded Postgres: one server per home folder, owned by one process, shared by many.

Theory of operation. Whoever holds the `flock` on `home/postgres/lock` owns the server: it starts it as its own child,
adopts one that a killed owner left behind, and stops it. Everybody else only connects. `postmaster.pid` is never believed
by itself: a server is alive when the pid exists, is no zombie, is a `postgres`, and works in our data folder. Before
a dead server is started over, its left-over back-ends must be gone, because a second server beside them destroys data.
fsync and synchronous_commit stay on: embedded is a mode for one machine, not a toy.

As root the server runs as a system user of its own, with its data under /var/lib/event-workbench, because Postgres
refuses to be root and that user cannot reach private folders; no folder we did not make ever changes its mode.
"""

from api.embedded.errors import (
    BinariesMissingError,
    EmbeddedError,
    HomeUnusableError,
    StartFailedError,
    WrongVersionError,
)
from api.embedded.server import EmbeddedPostgres, Server, find

__all__ = [
    "BinariesMissingError",
    "EmbeddedError",
    "EmbeddedPostgres",
    "HomeUnusableError",
    "Server",
    "StartFailedError",
    "WrongVersionError",
    "find",
]
