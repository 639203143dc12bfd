"""The child processes of `workbench up`: started in sessions of their own, watched, started again after a crash, stopped.

A crashed child is started again after 1, 2, 4 … 30 seconds; one that ran for a minute is forgiven its past.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from api.clock import monotonic_ns

_LONGEST_PAUSE = 30
_FORGIVEN_NS = 60_000_000_000
_STOP_SECONDS = 15.0
_LOG_LIMIT = 10 * 1024 * 1024
_TAIL_BYTES = 4096


class Child:
    """One process, known by its own name; its output goes to its log."""

    def __init__(
        self, name: str, command: list[str], environment: Mapping[str, str], log: Path, report: Callable[[str], None]
    ) -> None:
        """Start nothing yet; `report` hears of every crash."""
        self.name = name
        self.log = log
        self.crashes = 0
        self._command = command
        self._environment = environment
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._started_ns = 0
        self._again_ns = 0

    def start(self) -> None:
        """Start the process; its stdin stays open as long as we live."""
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".1.log"))
        self.log.touch(mode=0o600)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started_ns = monotonic_ns()

    def watch(self) -> None:
        """Notice a crash and start again when its pause is over; call this often."""
        if self._process is not None and self._process.poll() is not None:
            self._crashed(self._process.returncode)
        if self._process is None and monotonic_ns() >= self._again_ns:
            self.start()

    def stop(self) -> None:
        """Ask the process to end and wait; after a while end what is left of its session."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close()

    def tail(self) -> str:
        """Return the end of the log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-15:])

    def _crashed(self, code: int) -> None:
        lived_ns = monotonic_ns() - self._started_ns
        self.crashes = 1 if lived_ns > _FORGIVEN_NS else self.crashes + 1
        pause = min(2 ** (self.crashes - 1), _LONGEST_PAUSE)
        self._again_ns = monotonic_ns() + pause * 1_000_000_000
        self._close()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        self._report(f"{self.name} stopped ({how}); starting it again in {pause} s; see {self.log}")

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
