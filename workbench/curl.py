"""The `curl` line that does the same as a call, ready to paste into a terminal or another program."""

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from api.language.codec import encode
from workbench import surroundings
from workbench.display.page import html


class CurlLine:
    """A `curl` command. `print` it, copy the block, write `!{line}` in a cell, or `.run()` it.

    `idempotency_key` is in the line; `automation.watch(line.idempotency_key)` watches what it started.
    """

    def __init__(
        self, url: str, body: Mapping[str, Any], key: str, show_key: bool, python: Callable[[], object]
    ) -> None:
        self.idempotency_key = str(body["idempotencyKey"])
        self._key = key
        self._python = python
        bearer = (
            f"'Authorization: Bearer {key}'"
            if show_key
            else f'"Authorization: Bearer ${surroundings.EVENTS_KEY_VARIABLE}"'
        )
        self._text = " \\\n  ".join(
            [
                f"curl -sS -X POST {shlex.quote(url)}",
                f"-H {bearer}",
                "-H 'Content-Type: application/json'",
                f"-d {shlex.quote(encode(body).decode())}",
            ]
        )

    def run(self) -> str:
        """Run the line and return what the server answered; where there is no curl, do the same from Python and say so."""
        shell, curl = shutil.which("sh"), shutil.which("curl")
        if shell is None or curl is None:
            return (
                f"There is no curl on this machine; the same request from Python was answered with:\n{self._python()!r}"
            )
        environment = surroundings.environment() | {surroundings.EVENTS_KEY_VARIABLE: self._key}
        done = subprocess.run(  # noqa: S603  our own line, quoted above
            [shell, "-c", self._text], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return (done.stdout + done.stderr).strip()

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        note = "One click selects it all. Sending it twice stores it once: the idempotency key is in the line."
        return html(
            "line.html.j2",
            text="The same as a line for the terminal",
            state="POST",
            look="busy",
            note=note,
            block=self._text,
        )
