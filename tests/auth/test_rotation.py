"""H5: during a rotation, processes of two generations ingest at once and create no duplicate contacts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import pytest

from api.auth import AccessError
from api.auth.rotation import ForeignSecretError, require_secret, run_phase
from api.automations.automations import Author, Refusal
from api.clock import Clock, uuid7
from api.contacts import merge as contacts_merge
from api.contacts.merge import Pair
from api.crypto import Keyring, next_chain
from api.ingest.parse import AcceptedEvent
from api.ingest.pipeline import Pipeline
from api.ingest.queue import TokenBuckets
from api.ingest.rejected import Notices
from api.store.access import insert_organization
from api.store.connections import list_connections, save_connection
from api.store.contacts import find_contact_state
from api.store.database import Database, with_application_name
from api.store.messages import find_suppressed, find_webhook_secrets, insert_webhook_secret, suppress
from api.store.query import run
from workbench.language.codec import encode
from workbench.language.event import Identifiers
from workbench.language.responses import MergeView

OLD, NEW = "the old secret of tests", "the new secret of tests"


class Process:
    """The ingest of one process, with the secrets of a phase of the rotation."""

    def __init__(self, dsn: str, text: str) -> None:
        self.keyring, self.clock = Keyring(text), Clock()
        self.database = Database(with_application_name(dsn, self.keyring.tag()), size=2)
        hot = Database(with_application_name(dsn, self.keyring.tag()), size=2, lock_ms=2_000, hot=True)
        self._notices = Notices(self.database, self.clock)
        self._pipeline = Pipeline(hot, self.keyring, self.clock, TokenBuckets(0, 1), self._notices)

    async def send(self, org_id: int, contact: dict[str, str]) -> None:
        (outcome,) = await self._pipeline.ingest(org_id, [encode({"event": "deposit", "contact": contact})], False)
        assert isinstance(outcome, AcceptedEvent), outcome

    async def find_email(self, org_id: int, email: str) -> str | None:
        async with self.database.transaction() as tx:
            contact = await find_contact_state(tx, org_id, self.keyring.of(org_id), Identifiers(None, email, None))
        return None if contact is None else contact.identifiers.email

    async def owner(self, org_id: int, email: str) -> str | None:
        async with self.database.transaction() as tx:
            contact = await find_contact_state(tx, org_id, self.keyring.of(org_id), Identifiers(None, email, None))
        return None if contact is None else contact.id

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        async with self.database.transaction() as tx:
            return await (await tx.execute(statement)).fetchall()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Process"]:
        await self.database.open()
        await self._pipeline.start()
        await self._notices.start()
        await self.database.calibrate(self.clock)
        yield self
        await self._pipeline.stop()
        await self._notices.stop()
        await self.database.close()


class EventSender:
    """Sends events of new and existing contacts through all processes, some of them at the same time."""

    def __init__(self, org_id: int) -> None:
        self.processes: list[Process] = []
        self.contacts = 0
        self._org_id, self._chance, self._running = org_id, Random(0), True
        self._round = asyncio.Condition()

    async def run(self) -> None:
        while self._running:
            number, processes = self.contacts, [*self.processes]
            await asyncio.gather(*[self._send(process, number) for process in processes for _ in range(2)])
            await asyncio.gather(*[self._send(process, self._chance.randrange(number + 1)) for process in processes])
            async with self._round:
                self.contacts += 1
                self._round.notify_all()

    async def switch_to(self, *processes: Process) -> None:
        """Send through these processes from now on; wait for eight more contacts."""
        self.processes = [*processes]
        enough = self.contacts + 8
        async with asyncio.timeout(60), self._round:
            await self._round.wait_for(lambda: self.contacts >= enough)

    def stop(self) -> None:
        self._running = False

    async def _send(self, process: Process, number: int) -> None:
        email, others = f"p{number}@example.com", {"walletAddress": f"0xW{number}", "externalId": f"u{number}"}
        names = self._chance.sample(sorted(others), self._chance.choice((0, 1, 2)))
        await process.send(self._org_id, {"email": email} | {name: others[name] for name in names})


async def test_h5_lookups_find_every_contact_while_the_secret_is_rotated(database_url: str) -> None:
    texts = [OLD]
    while len(texts) < 4:
        texts.append(next_chain(texts[-1], NEW))
    async with AsyncExitStack() as last:
        before = await last.enter_async_context(Process(database_url, texts[0]).running())
        sender = EventSender(org_id := await organization(before))
        sender.processes = [before]
        sending = asyncio.create_task(sender.run())
        for text in texts[1:]:
            ended = last.pop_all()
            after = await last.enter_async_context(Process(database_url, text).running())
            await sender.switch_to(before, after)  # while they are renewed, one after the other
            await sender.switch_to(after)
            await ended.aclose()
            interrupted = asyncio.create_task(run_phase(database_url, after.keyring))
            await asyncio.sleep(0.02)
            interrupted.cancel()
            await asyncio.gather(interrupted, return_exceptions=True)
            await run_phase(database_url, after.keyring)
            await sender.switch_to(after)
            all_emails = [f"p{number}@example.com" for number in range(sender.contacts)]
            assert [await after.find_email(org_id, email) for email in all_emails] == all_emails
            before = after
        sender.stop()
        await sending
        assert not await run_phase(database_url, before.keyring)
        await assert_only_new(before, org_id, sender.contacts)


async def test_h5_a_merge_from_before_the_rotation_is_undone_with_the_new_secret(database_url: str) -> None:
    texts = [OLD]
    while len(texts) < 4:
        texts.append(next_chain(texts[-1], NEW))
    async with Process(database_url, texts[0]).running() as process:
        org_id = await organization(process)
        await process.send(org_id, {"walletAddress": "0xWeb"})
        await process.send(org_id, {"email": "app@example.com"})
        web, app = [row[0] for row in await process.rows("SELECT id FROM contacts ORDER BY wallet_address")]
        merge = await contacts_merge.merge(process.database, author(process, org_id), Pair(web, app), str)
        assert isinstance(merge, MergeView)
        assert await process.owner(org_id, "app@example.com") == web
    for text in texts[1:3]:
        await run_phase(database_url, Keyring(text))
    async with Process(database_url, texts[3]).running() as process:
        assert await process.owner(org_id, "app@example.com") == web
        await run_phase(database_url, process.keyring)
        keys = process.keyring.of(org_id)
        ((sealed,),) = await process.rows("SELECT new #>> '{}' FROM contact_changes WHERE field = 'email'")
        assert (sealed.startswith(keys.email_prefix), keys.open_email(sealed)) == (True, "app@example.com")
        undone = await contacts_merge.undo(process.database, author(process, org_id), merge.id or "")
        assert not isinstance(undone, Refusal), undone
        assert await process.owner(org_id, "app@example.com") == app


def author(process: Process, org_id: int) -> Author:
    now_us = process.clock.unique_now_us()
    return Author(org_id, uuid7(now_us), now_us)


@pytest.mark.parametrize(
    "contact", [{"walletAddress": "0xWeb"}, {"email": "app@example.com"}, {"externalId": "u1"}], ids=str
)
async def test_the_first_secret_of_an_upgraded_database_must_read_its_contacts(
    database_url: str, contact: dict[str, str]
) -> None:
    async with Process(database_url, OLD).running() as process:
        await process.send(await organization(process), contact)
        await process.rows("DELETE FROM root_secrets RETURNING true")
        with pytest.raises(ForeignSecretError):
            await require_secret(database_url, Keyring(NEW))
        assert await process.rows("SELECT FROM root_secrets") == []
        await require_secret(database_url, Keyring(OLD))
        assert await process.rows("SELECT fingerprints FROM root_secrets") == [([Keyring(OLD).fingerprint()],)]


async def test_contacts_that_a_process_with_a_foreign_secret_created_do_not_make_it_the_own_one(
    database_url: str,
) -> None:
    async with Process(database_url, OLD).running() as process, Process(database_url, NEW).running() as foreign:
        org_id = await organization(process)
        for number in range(2):
            await process.send(org_id, {"externalId": f"u{number}"})
        await foreign.send(org_id, {"externalId": "u0"})
        with pytest.raises(ForeignSecretError):
            await require_secret(database_url, Keyring(NEW))
        for number in range(2, 11):
            await process.send(org_id, {"externalId": f"u{number}"})
        for number in range(30):
            await foreign.send(org_id, {"externalId": f"v{number}"})
        with pytest.raises(ForeignSecretError):
            await require_secret(database_url, Keyring(NEW))
        await require_secret(database_url, Keyring(OLD))


async def test_the_first_secret_of_a_database_without_contacts_is_accepted(database_url: str) -> None:
    async with Process(database_url, OLD).running() as process:
        await organization(process)
    await require_secret(database_url, Keyring(NEW))
    with pytest.raises(ForeignSecretError):
        await require_secret(database_url, Keyring(OLD))


async def test_nothing_is_done_while_a_process_holds_other_secrets(database_url: str) -> None:
    text = next_chain(OLD, NEW)
    async with Process(database_url, OLD).running(), Process(database_url, text).running() as process:
        with pytest.raises(AccessError, match="processes with another secret are connected"):
            await run_phase(database_url, process.keyring)


async def organization(process: Process) -> int:
    """Make an organization with an address that gets no emails, and a webhook secret."""
    now = process.clock.now()
    async with process.database.transaction() as tx:
        org_id = await insert_organization(tx, "acme", now)
        assert org_id is not None
        digests = process.keyring.of(org_id).digests("email", "p0@example.com")
        await run(tx, suppress(org_id, "email", digests, now))
        await insert_webhook_secret(tx, process.keyring, org_id, "whsec_x", now)
        sealed = process.keyring.of(org_id).seal_connection('{"key": "k1"}', "chat")
        await save_connection(tx, org_id, "chat", "{}", sealed, now, uuid7(process.clock.now_us()))
    return org_id


async def assert_only_new(process: Process, org_id: int, contacts: int) -> None:
    """Assert that no contact is duplicated, and that no value was made with the old secret."""
    assert await process.rows("SELECT count(*), count(DISTINCT email) FROM contacts") == [(contacts, contacts)]
    assert await process.rows("SELECT DISTINCT left(value_digest::text, 1) FROM identities") == [("2",)]
    assert await process.rows("SELECT count(*) FROM identity_conflicts") == [(0,)]
    for table, column in (("contacts", "email"), ("events", "email")):
        assert await process.rows(f"SELECT DISTINCT left({column}, 5) FROM {table}") == [("enc2_",)]
    (address,) = await process.rows("SELECT address_digest::text FROM suppressions")
    now = process.clock.now()
    async with process.database.transaction() as tx:
        suppressed = {process.keyring.of(org_id).digest("email", "p0@example.com")}
        assert await find_suppressed(tx, org_id, "email", suppressed) == suppressed == {address[0].replace("-", "")}
        assert await find_webhook_secrets(tx, process.keyring, org_id, now) == ("whsec_x",)
        (connection,) = await list_connections(tx, org_id)
        assert process.keyring.of(org_id).open_connection(connection.secrets, "chat") == '{"key": "k1"}'
