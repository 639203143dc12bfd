"""Preferences of contacts: the topics and channels that they want.

They are changed by the API, on the page of preferences, and by links in emails. A channel is declined by an opt-out of
the contact. A topic is declined or granted by its latest consent, and without one by its `optIn`. Every choice adds a
row to `consents`, in the transaction that applies it.
"""

import hashlib
from collections.abc import Mapping
from datetime import timedelta

import msgspec

from api.automations.automations import Author, Refusal, invalid, record, retry_conflicts, unknown
from api.channels.signing import ContactLink
from api.clock import from_us, uuid7
from api.contacts.contacts import channel_consents, set_opt_outs
from api.crypto import Keyring, OrgKeys
from api.ingest.parse import AcceptedEvent, Duplicate
from api.ingest.pipeline import Pipeline
from api.store import consents as store
from api.store.consents import ConsentRow, ConsentSource
from api.store.contacts import find_contact, opt_out_of_emails
from api.store.database import Database, Transaction, TransactionConflictError
from api.store.locks import hold_contacts
from api.store.merges import find_kept_contact
from api.store.messages import suppress
from api.store.query import run
from workbench.language.channel import CHANNELS, EMAIL
from workbench.language.codec import encode
from workbench.language.problem import Problem, suggestion
from workbench.language.responses import ContactView, PreferencesView, TopicView

REQUESTED, CONFIRMED = "consent.requested", "consent.confirmed"  # events of the contact
REQUEST_WINDOW_US = 60_000_000  # several requests for one topic within it are one event


class ContactTopics(msgspec.Struct, frozen=True):
    """The contact of a link, and the topics of its organization."""

    contact: ContactView
    topics: list[TopicView]


async def read(database: Database, org_id: int, contact_id: str) -> PreferencesView | Refusal:
    """Return what a contact wants, or the one that it was merged into."""
    async with database.transaction() as tx:
        subject = await _find(tx, org_id, contact_id)
    return unknown("contact") if subject is None else _view(subject)


@retry_conflicts
async def change(
    database: Database, author: Author, contact_id: str, topics: Mapping[str, bool], channels: Mapping[str, bool]
) -> PreferencesView | Refusal:
    """Set topics and channels of a contact to wanted (True) or declined; the others stay as they are."""
    async with database.transaction() as tx:
        await run(tx, hold_contacts([contact_id]))
        subject = await _find(tx, author.org_id, contact_id)
        if subject is None or subject.contact.id != contact_id:
            return unknown("contact")
        names = [topic.name for topic in subject.topics]
        if unknown_names := [name for name in topics if name not in names]:
            return invalid(
                tuple(Problem(f"topics.{name}", f"unknown topic{suggestion(name, names)}") for name in unknown_names)
            )
        await _choose(tx, author.org_id, subject.contact, topics, channels, "api", author.now_us, key_id=author.key_id)
        await record(
            tx, author, "contact.preferences", contact_id, {"topics": dict(topics), "channels": dict(channels)}
        )
        subject = await _find(tx, author.org_id, contact_id)
        assert subject is not None
    return _view(subject)


async def find_subject(database: Database, link: ContactLink) -> ContactTopics | None:
    """Return the contact of a link, or the one that it was merged into; None if it was erased."""
    async with database.transaction() as tx:
        return await _find(tx, link.org_id, link.contact_id)


class PageChoices(msgspec.Struct, frozen=True):
    """The choices of a person on the page of preferences, and the text that it showed for each topic and channel."""

    topics: Mapping[str, bool]
    channels: Mapping[str, bool]
    texts: Mapping[str, str]
    channel_texts: Mapping[str, str]


@retry_conflicts
async def save_page(database: Database, link: ContactLink, choices: PageChoices, now_us: int) -> list[str]:
    """Apply what differs from the stored choices; return the topics that the person has yet to confirm."""
    async with database.transaction() as tx:
        (contact_id,) = await _hold(tx, link.org_id, link.contact_id)
        subject = await _find(tx, link.org_id, contact_id)
        if subject is None:
            return []
        contact = subject.contact
        changed = {
            topic.name: choices.topics[topic.name]
            for topic in subject.topics
            if choices.topics.get(topic.name) is (topic.name in contact.declined)
        }
        opt_in = {topic.name: topic.opt_in for topic in subject.topics}
        pending = [name for name, wanted in changed.items() if wanted and opt_in[name] == "double"]
        topics = {name: wanted for name, wanted in changed.items() if name not in pending}
        channels = {name: wanted for name, wanted in choices.channels.items() if wanted is (name in contact.opted_out)}
        shown = choices.texts, choices.channel_texts
        await _choose(tx, link.org_id, contact, topics, channels, "preference_page", now_us, *shown)
    return pending


@retry_conflicts
async def withdraw(database: Database, link: ContactLink, owner_id: str | None, now_us: int) -> None:
    """Decline the topic of a link for its contact; if that is gone, for the owner of the address."""
    async with database.transaction() as tx:
        for contact_id in await _hold(tx, link.org_id, link.contact_id, *([owner_id] if owner_id else [])):
            if contact := await find_contact(tx, link.org_id, contact_id):
                await _choose(tx, link.org_id, contact, {link.topic: False}, {}, "one_click", now_us)
                return


@retry_conflicts
async def stop_emails(database: Database, org_id: int, address_digest: str, now_us: int) -> None:
    """Suppress an email address, and opt the contact that owns it out of emails."""
    at = from_us(now_us)
    async with database.transaction() as tx:
        contact_id = await opt_out_of_emails(tx, org_id, address_digest, at)
        await run(tx, suppress(org_id, EMAIL.name, address_digest, at))
        if contact_id is not None:
            row = ConsentRow(uuid7(now_us), contact_id, False, "one_click", at, None, EMAIL.name)
            await store.add_consents(tx, org_id, [row])


@retry_conflicts
async def confirm(database: Database, link: ContactLink, text: str, now_us: int) -> ConsentRow | None:
    """Grant the topic of a link; return the consent, the earlier one if it is granted. None: no contact any more."""
    async with database.transaction() as tx:
        (contact_id,) = await _hold(tx, link.org_id, link.contact_id)
        contact = await find_contact(tx, link.org_id, contact_id)
        if contact is None:
            return None
        await _choose(tx, link.org_id, contact, {link.topic: True}, {}, "double_opt_in", now_us, {link.topic: text})
        return await store.find_latest_consent(tx, link.org_id, contact_id, link.topic)


async def send_event(
    pipeline: Pipeline, keyring: Keyring, org_id: int, contact: ContactView, name: str, topic: str, key: str
) -> bool:
    """Store an event of a contact about a topic; return whether it is stored, now or before."""
    identifier = _identifier(keyring.of(org_id), contact)
    if identifier is None:
        return True  # no event can be about it
    event = {"event": name, "contact": identifier, "payload": {"topic": topic}, "idempotencyKey": f"{name}/{key}"}
    (outcome,) = await pipeline.ingest(org_id, [encode(event)], test_key=False, limited=False)
    return isinstance(outcome, AcceptedEvent | Duplicate)


def sha256_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


async def _hold(tx: Transaction, org_id: int, *contact_ids: str) -> list[str]:
    """Lock contacts, or those that they were merged into, and return the ids of these.

    Raises TransactionConflictError if one was merged while this waited: the contact that is kept is not locked.
    """
    kept_ids = [await find_kept_contact(tx, org_id, contact_id) for contact_id in contact_ids]
    await run(tx, hold_contacts(kept_ids))
    for kept_id in kept_ids:
        if await find_kept_contact(tx, org_id, kept_id) != kept_id:
            raise TransactionConflictError(f"contact {kept_id} was merged")
    return kept_ids


async def _find(tx: Transaction, org_id: int, contact_id: str) -> ContactTopics | None:
    contact = await find_contact(tx, org_id, await find_kept_contact(tx, org_id, contact_id))
    return None if contact is None else ContactTopics(contact, await store.list_topics(tx, org_id))


async def _choose(
    tx: Transaction,
    org_id: int,
    contact: ContactView,
    topics: Mapping[str, bool],
    channels: Mapping[str, bool],
    source: ConsentSource,
    now_us: int,
    texts: Mapping[str, str] = {},
    channel_texts: Mapping[str, str] = {},
    key_id: str | None = None,
) -> None:
    """Apply choices of a contact, whose lock is held, with a row for each that is new."""
    at, rows = from_us(now_us), list[ConsentRow]()
    for name, granted in topics.items():
        latest = await store.find_latest_consent(tx, org_id, contact.id, name)
        if latest is None or latest.granted is not granted:
            # After an earlier choice, whatever the clock of the process that stored it.
            moment = at if latest is None else max(at, latest.at + timedelta(microseconds=1))
            text = sha256_of(texts[name]) if name in texts else None
            rows.append(ConsentRow(uuid7(now_us + len(rows)), contact.id, granted, source, moment, name, None, text))
    for name, wanted in channels.items():
        text = sha256_of(channel_texts[name]) if name in channel_texts else None
        rows += channel_consents(contact, {name: wanted}, source, now_us + len(rows), text)
    if channels:
        opt_outs = {name: not wanted for name, wanted in channels.items()}
        await set_opt_outs(tx, org_id, contact, opt_outs, key_id, at)
    if rows:
        await store.add_consents(tx, org_id, rows)


def _view(subject: ContactTopics) -> PreferencesView:
    contact = subject.contact
    topics = {topic.name: topic.name not in contact.declined for topic in subject.topics}
    return PreferencesView(topics, {name: name not in contact.opted_out for name in CHANNELS})


def _identifier(keys: OrgKeys, contact: ContactView) -> dict[str, str] | None:
    """Return one identifier of a contact, as in an event: it finds the contact again, and changes nothing."""
    email = None if contact.email is None else keys.open_email(contact.email)
    identifiers = {"email": email, "walletAddress": contact.wallet_address, "externalId": contact.external_id}
    return next(({name: value} for name, value in identifiers.items() if value is not None), None)
