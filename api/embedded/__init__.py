"""An embedded Postgres: one server per home folder, owned by one process, shared by many.

The process that holds the `flock` on `home/postgres/lock` owns the server: it starts the server as a child process,
adopts one that a killed owner left behind, and stops it. Other processes only connect. Before a dead server is started
again, its remaining back-ends must have ended, because two servers on one data folder destroy the data. fsync and
synchronous_commit stay on, so an embedded server is as durable as any other.

Postgres refuses to run as root. As root, we run it as a system user and keep its data under /var/lib/event-workbench,
because that user cannot read private folders. Only folders that this package created ever change their mode.
"""

from api.embedded.paths import EmbeddedError
from api.embedded.server import EmbeddedPostgres, Server, find

__all__ = ["EmbeddedError", "EmbeddedPostgres", "Server", "find"]
