"""Reports of bounces and complaints: each is recorded as an event of the contact, and some suppress the address.

A complaint suppresses the address: it gets no more emails, also as the address of another contact. So does a permanent
bounce whose status is about the address; other permanent bounces make the message `failed`. Temporary bounces change
nothing else. A scheduled page is not a message of a contact, so its permanent bounces are shown with its run. A report
that is sent twice counts once.
"""

from typing import Literal, TypeAlias

from api.automations.automations import retry_conflicts
from api.channels.bounce import Bounce
from api.clock import Clock, token
from api.crypto import INDEX, Keyring, OrgKeys
from api.ingest.match import Triggers
from api.ingest.parse import EventReader, ParsedEvent
from api.ingest.store import store_batch
from api.store import messages as store
from api.store.contacts import find_email_owner
from api.store.database import Database, Transaction
from api.store.page_schedules import fail_page_email, find_page_recipient
from api.store.query import run
from workbench.language.channel import EMAIL
from workbench.language.codec import encode

BounceOutcome: TypeAlias = Literal["suppressed", "recorded", "unknown"]


@retry_conflicts
async def record_bounce(database: Database, keyring: Keyring, clock: Clock, bounce: Bounce) -> BounceOutcome:
    """Record a bounce or a complaint; `unknown`: nothing was stored, because no contact has or had the address."""
    org_id, keys, now = bounce.org_id, keyring.of(bounce.org_id), clock.now()
    async with database.transaction() as tx:
        message = None
        if bounce.message_id is not None:
            message = await store.find_message_contact(tx, org_id, bounce.message_id)
        # The message id of a report is not signed: it must be of an email to this address.
        if message is not None and (
            message.recipient is None
            or keys.digest(EMAIL.name, keys.open_email(message.recipient)) not in bounce.address_digests
        ):
            message = None
        is_page = await _fail_page_email(tx, keys, bounce)
        is_owned = await find_email_owner(tx, org_id, bounce.address_digests[:INDEX]) is not None
        if bounce.closes_address:
            digests, cause = bounce.address_digests, bounce.feedback
            await run(tx, store.suppress(org_id, EMAIL.name, digests, now, "opted_out", cause))
        if bounce.is_permanent and message is not None and bounce.message_id is not None:
            await run(tx, store.note_feedback(org_id, bounce.message_id, bounce.feedback, now))
    payload = {"status": bounce.status} if bounce.feedback == "bounced" else {}
    if message is not None:
        about, contact = bounce.message_id, message.identifier(keys)
        payload |= {"messageId": about, "automationId": message.automation_id, "nodeId": message.node_id}
    elif is_owned and bounce.address is not None:
        # Senders of reports repeat them for some hours.
        about, contact = f"{bounce.address_digests[:INDEX]}/{now:%Y-%m-%d}", {"email": bounce.address}
    else:
        return "suppressed" if bounce.closes_address else "recorded" if is_page else "unknown"
    event = {
        "event": f"email.{bounce.feedback}",
        "contact": contact,
        "payload": payload | {"permanent": bounce.is_permanent},
        "idempotencyKey": f"email.{bounce.feedback}/{about}/{bounce.status}",
    }
    parsed = EventReader(clock, token(8).hex()).read(org_id, keys, encode(event))
    assert isinstance(parsed, ParsedEvent), "an event of stored values is valid"
    async with database.transaction() as tx:
        await store_batch(tx, [parsed], Triggers(keyring), clock.now())
    return "suppressed" if bounce.closes_address else "recorded"


async def _fail_page_email(tx: Transaction, keys: OrgKeys, bounce: Bounce) -> bool:
    """Record a permanent bounce of the email of a page; False if it is about none, or about another address."""
    if (
        bounce.feedback != "bounced"
        or not bounce.is_permanent
        or bounce.message_id is None
        or bounce.page_recipient is None
    ):
        return False
    sealed = await find_page_recipient(tx, bounce.org_id, bounce.message_id, bounce.page_recipient)
    if sealed is None or keys.digest(EMAIL.name, keys.open_email(sealed)) not in bounce.address_digests:
        return False
    error = f"the mail server of the address returned it ({bounce.status or 'without a code'})"
    await fail_page_email(tx, bounce.org_id, bounce.message_id, bounce.page_recipient, error)
    return True
