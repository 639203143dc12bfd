"""Builds parts in processes that kill themselves before a call that changes rows or files.

For each line of its input, with the number of calls before that one and a moment, it forks a builder, and writes its
exit code. Forking saves the imports of each builder.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from api.parts import build, files
from api.store import parts as store
from api.store.database import Database

POINTS = (
    (store, "number_contacts", "begin_parts", "advance_progress", "add_event_numbers", "add_parts", "remove_parts"),
    (store, "clear_all_touched", "clear_touched", "note_rewritten", "remove_dropped_months", "delete_removed"),
    (files.FileWriter, "write", "finish"),
    (files, "flush_folder"),
    (Path, "rename", "unlink"),
)


def kill_after(calls: int) -> None:
    """Let the process kill itself before the next of such calls."""
    left = [calls]

    def killing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for owner, *names in POINTS:
        for name in names:
            setattr(owner, name, killing(getattr(owner, name)))


async def run(dsn: str, folder: str, org_id: int, moment: float) -> None:
    async with Database(dsn, size=3) as database:
        now = datetime.fromtimestamp(moment, UTC)
        await build.build(database, Path(folder), org_id, lambda: now)


def main(dsn: str, folder: str, org_id: str) -> None:
    for line in sys.stdin:
        calls, moment = line.split()
        if (pid := os.fork()) == 0:
            kill_after(int(calls))
            asyncio.run(run(dsn, folder, int(org_id), float(moment)))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201  the answer of this process


if __name__ == "__main__":
    main(*sys.argv[1:])
