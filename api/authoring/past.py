"""What an entry of this moment would see of the contact's past, as the engine reads it: for trials, which have no entry."""

from datetime import datetime

from api.language.advance import LOOP_LIMIT, LOOP_WINDOW, needs
from api.language.described import SIMULATED
from api.language.facts import Past
from api.language.run import Run
from api.language.simulate import Automation
from api.store.calls import run
from api.store.database import Transaction
from api.store.engine import Claim
from api.store.facts import count_recent, read_entered, read_messages_at


async def past_of(tx: Transaction, org_id: int, automation: Automation, contact_id: str, now: datetime) -> Past:
    """Return what the automation's first decision on a stored contact looks at; nothing of what came after `now`."""
    asked = needs(automation.graph, Run(SIMULATED, automation.id))
    claim = Claim(SIMULATED, automation.id, None, SIMULATED, now, contact_id, None, 0, 1, 0, now, None, 0)
    since = () if asked.messages is None else ((claim, now - asked.messages),)
    entered, recent, messages = await run(
        tx,
        read_entered(org_id, [claim] if asked.entries else []),
        count_recent(org_id, [claim] if asked.recent else [], LOOP_WINDOW, LOOP_LIMIT),
        read_messages_at(org_id, since),
    )
    before = entered.get(SIMULATED)
    counted = before if before is not None and before.at <= now else None
    return Past(
        None if counted is None else counted.at,
        counted is not None and counted.running,
        recent.get(SIMULATED, 0),
        tuple(at for at in messages.get(SIMULATED, ()) if at <= now),
    )
