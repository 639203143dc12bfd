"""Answer a report from parts: a child process counts it, with a bounded memory.

It is killed when the reader of the report leaves. At most two such processes run on a machine, and one of an
organization, whatever the number of API processes (`turns`). The SQL of the report answers what parts do not: an
organization without parts, what the kernels cannot count exactly, and a report that waited too long for its turn.

A process takes half a second to start, most of it for imports: longer than the SQL of a report over a million events.
So a process is started ahead: with the service if there are parts, and after each report.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from api.parts import files
from api.parts.count import CountRequest, ReportCounts
from api.parts.turns import CountingBusyError, read_progress, turn
from api.query.gateway import Gateway
from api.settings import Settings, child_environment
from api.store.analyst import QueryTimeoutError
from api.store.database import key_value_dsn
from workbench.language.codec import encode
from workbench.language.reports import MessagePerformance, ReportBody, ReportProgress

START_TIMEOUT_S = 5.0
COUNT_TIMEOUT_S = 40.0  # of the minute that a request has, in which the query of the answer takes 18 s at most

_log = logging.getLogger("workbench.parts")


class ReportCounter:
    """Counts reports over parts, for one API process."""

    def __init__(self, gateway: Gateway, dsn: str, data_dir: Path | None) -> None:
        self._gateway, self._dsn, self._data_dir = gateway, key_value_dsn(dsn), data_dir
        self.running: set[asyncio.subprocess.Process] = set()
        self.spares: list[asyncio.subprocess.Process] = []  # each has 50 MB of memory of its own

    async def start(self) -> None:
        """Start the process of the first report, if an organization has parts."""
        with contextlib.suppress(OSError):  # of a mounted folder whose server does not answer
            async with asyncio.timeout(START_TIMEOUT_S):
                if self._data_dir is not None and await files.look(files.has_any, self._data_dir):
                    await self._start_spare()

    async def count(self, org_id: int, report: ReportBody) -> ReportCounts | None:
        """Return what the kernels count; None if the SQL of the report has to answer.

        `data_dir` None switches parts off. Raises QueryError and InvalidQueryError.
        """
        if self._data_dir is None or isinstance(report, MessagePerformance):
            return None
        try:
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                if not await files.look(files.folder(self._data_dir, org_id).is_dir):
                    return None
                snapshot = None
                if report.as_of is not None:
                    if report.segments or report.logs or (report.group or ("",))[0] in ("contact", "segment"):
                        return None  # only events have a past, and the SQL says so
                    snapshot = await self._gateway.snapshot_of(org_id, report.as_of)
                request = CountRequest(
                    self._dsn, str(self._data_dir), org_id, report.name, msgspec.to_builtins(report), snapshot
                )
                counts = await self._ask(request, self._data_dir)
        except TimeoutError:
            raise QueryTimeoutError(f"the report took longer than {COUNT_TIMEOUT_S:g} s") from None
        except (CountingBusyError, OSError) as error:  # a folder may be removed at any moment
            counts = ReportCounts(reason=f"{type(error).__name__}: {error}")
        if counts.reason:
            _log.info("report_by_sql", extra={"org_id": org_id, "reason": counts.reason})
            return None
        return counts

    def progress(self, org_id: int) -> ReportProgress:
        """Return how far the report of an organization is that any process of this data folder counts."""
        return ReportProgress() if self._data_dir is None else read_progress(self._data_dir, org_id)

    async def _ask(self, request: CountRequest, data_dir: Path) -> ReportCounts:
        async with self._gateway.slot(request.org_id), turn(data_dir, request.org_id), self._child() as child:
            output, _ = await child.communicate(encode(msgspec.to_builtins(request)))
        await self._start_spare()
        try:
            return msgspec.json.decode(output, type=ReportCounts)
        except msgspec.DecodeError:  # the process ended, most likely for lack of memory
            return ReportCounts(reason=f"the process ended with {child.returncode}")

    @contextlib.asynccontextmanager
    async def _child(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Yield a process that counts one report, and end it if it still runs at the end of the block."""
        child = self.spares.pop() if self.spares else await _start()
        self.running.add(child)
        try:
            yield child
        finally:
            self.running.discard(child)
            await _end(child)

    async def _start_spare(self) -> None:
        if not self.spares:
            with contextlib.suppress(OSError):  # without memory for it, the next report tries again
                self.spares.append(await _start())

    async def close(self) -> None:
        """End the processes that wait for a report."""
        while self.spares:
            await _end(self.spares.pop())


async def _start() -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    # All that it needs is in the request, so it gets no secret and no setting.
    settings = [field.type.__metadata__[0] for field in msgspec.structs.fields(Settings)]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "api.parts.count"),
        stdin=pipe,
        stdout=pipe,
        env=child_environment(dict.fromkeys(settings)),
    )


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.kill()
        await child.wait()
