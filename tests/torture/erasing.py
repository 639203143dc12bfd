"""Erases contacts during the run: while their events arrive, their entries run and their sockets are open."""

import asyncio
from collections.abc import Mapping, Sequence

from tests.torture.callers import Caller
from tests.torture.log import ErasedContact, SentEvent, now_us

_INTERVAL_S = (0.5, 2.0)  # seconds
_LATEST = 300  # recent events from which contacts are picked


async def erase_some(caller: Caller, answered: Mapping[str, Sequence[SentEvent]]) -> None:
    """Erase contacts of an organization until cancelled, mostly of recently `answered` events."""
    while True:
        await asyncio.sleep(caller.chance.uniform(*_INTERVAL_S))
        if events := answered.get(caller.org):
            contact = caller.chance.choice(events[-_LATEST:]).body["contact"]
            response = await caller.request(
                "POST", "/contacts/find", "contacts", key="admin", good=(200, 404), json={"contact": contact}
            )
            if response is not None and response.status_code == 200:
                await _erase(caller, response.json()["id"])


async def _erase(caller: Caller, contact_id: str) -> None:
    began = now_us()
    while await caller.request("DELETE", f"/contacts/{contact_id}", "erasure", key="admin") is None:
        await asyncio.sleep(0.2)
    caller.log.erased.append(ErasedContact(caller.org, contact_id, began, now_us()))
