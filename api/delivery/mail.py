"""An email as it is handed to a transport."""

from datetime import datetime
from typing import Protocol

import msgspec

from api.delivery.outcome import MayLeave, Outcome, always


class Mail(msgspec.Struct, frozen=True):
    """One email to one address. `html`: the body is HTML; `unsubscribe_url`: where one POST ends all such mail.

    `created_at` is the moment of the message, not of an attempt: every attempt has the same bytes. `test`: a header says that it is one.
    """

    id: str
    created_at: datetime
    recipient: str
    subject: str
    body: str
    html: bool
    unsubscribe_url: str
    test: bool = False


class Mailer(Protocol):
    """A way for emails to leave."""

    async def send(self, mail: Mail, may_leave: MayLeave = always) -> Outcome:
        """Send an email once, if it still may leave when all is ready for it."""

    async def close(self) -> None:
        """End what is kept open."""
