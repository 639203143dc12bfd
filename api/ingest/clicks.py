"""Clicks on tracked links: events `link.clicked` of the contacts that got the emails.

A redirect is answered without waiting for its event, and also while the database is away. Clicks that are not stored
yet wait in the memory of this process, each for about half a minute. After that, and if too many wait, they are lost
and counted; those of a killed process are lost uncounted.
"""

import asyncio
import hashlib
import logging
from typing import Literal

from api.channels.tracked_links import Link
from api.clock import Clock
from api.crypto import Keyring
from api.ingest.parse import AcceptedEvent, Duplicate
from api.ingest.pipeline import Pipeline
from api.process import Tally
from api.store.database import Database, DatabaseUnavailableError, TransactionConflictError
from api.store.messages import find_message_contact
from workbench.language.codec import encode

CLICKED = "link.clicked"
REPEAT_WINDOW_US = 60_000_000  # clicks on one link in it count once: scanners open links several times
ATTEMPTS_AFTER_S = (0.0, 1.0, 5.0, 25.0)
MAX_WAITING = 1_000
STOP_TIMEOUT_S = 2.0

_log = logging.getLogger("workbench.clicks")


class Clicks:
    """The clicks of one API process. `outcomes` counts them; `unknown`: the message or its contact is gone."""

    def __init__(self, database: Database, keyring: Keyring, clock: Clock, pipeline: Pipeline) -> None:
        self.outcomes = Tally("outcome")
        self._database, self._keyring, self._clock, self._pipeline = database, keyring, clock, pipeline
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def note(self, link: Link) -> None:
        """Store a click in the background."""
        minute = self._clock.now_us() // REPEAT_WINDOW_US
        key = f"{CLICKED}/{link.message_id}/{hashlib.sha256(link.url.encode()).hexdigest()[:32]}/{minute}"
        if key in self._waiting:
            self.outcomes.add("repeated")
        elif len(self._waiting) >= MAX_WAITING:
            self.outcomes.add("lost")
        else:
            self._waiting[key] = task = asyncio.create_task(self._store(link, key))
            task.add_done_callback(lambda _: self._waiting.pop(key))

    async def stop(self) -> None:
        """Wait briefly for the clicks that are not stored yet; the others are lost."""
        if self._waiting:
            _, late = await asyncio.wait(self._waiting.values(), timeout=STOP_TIMEOUT_S)
            for task in late:
                task.cancel()
            if late:
                self.outcomes.add("lost", times=len(late))
                _log.warning("clicks_lost", extra={"clicks": len(late)})

    async def _store(self, link: Link, key: str) -> None:
        for after_s in ATTEMPTS_AFTER_S:
            await asyncio.sleep(after_s)
            outcome = await self._attempt(link, key)
            if outcome is not None:
                self.outcomes.add(outcome)
                return
        self.outcomes.add("lost")
        _log.warning("clicks_lost", extra={"org_id": link.org_id, "message_id": link.message_id, "clicks": 1})

    async def _attempt(self, link: Link, key: str) -> Literal["stored", "repeated", "unknown"] | None:
        """Store the event of a click; return None if a later attempt may succeed."""
        try:
            async with self._database.transaction() as tx:
                message = await find_message_contact(tx, link.org_id, link.message_id)
        except (DatabaseUnavailableError, TransactionConflictError):
            return None
        if message is None:
            return "unknown"
        contact = message.identifier(self._keyring.of(link.org_id))
        payload = {
            "url": link.url,
            "messageId": link.message_id,
            "automationId": message.automation_id,
            "nodeId": message.node_id,
        }
        # Without `occurredAt`, a repeated click has the same body, as a retry has.
        event = encode({"event": CLICKED, "contact": contact, "payload": payload, "idempotencyKey": key})
        (outcome,) = await self._pipeline.ingest(link.org_id, [event], test_key=False, limited=False)
        match outcome:
            case AcceptedEvent():
                return "stored"
            case Duplicate():
                return "repeated"
            case _:
                return None
