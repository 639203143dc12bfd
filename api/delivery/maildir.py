"""Where emails land without a mail server: a maildir, which any mail program and the workbench can read.

Files are named by the id of the email, so another attempt is the same file; `new/` only ever holds whole emails.
"""

import asyncio
import os
from pathlib import Path

from api.delivery.mail import Mail
from api.delivery.mime import AddressError, HeaderError, compose, sender_address
from api.delivery.outcome import Failed, MayLeave, Outcome, Retry, Sent, always


class Maildir:
    """The transport into the folder `place`. `sender`: as in a From header."""

    def __init__(self, place: Path, sender: str) -> None:
        self._place, self._sender = place, sender_address(sender)

    async def send(self, mail: Mail, may_leave: MayLeave = always) -> Outcome:
        """Put an email into the folder, if it still may leave."""
        try:
            content = compose(mail, self._sender)
        except HeaderError:
            return Failed("invalid_header")
        except AddressError:
            return Failed("invalid_address")
        if not may_leave():
            return Retry("busy")
        await asyncio.to_thread(self._keep, mail.id, content.replace(b"\r\n", b"\n"))
        return Sent("maildir")

    async def close(self) -> None:
        """Nothing is open."""

    def _keep(self, name: str, content: bytes) -> None:
        for folder in ("tmp", "new", "cur"):
            (self._place / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = self._place / "tmp" / f"{name}.{os.getpid()}"
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._place / "new" / name)
