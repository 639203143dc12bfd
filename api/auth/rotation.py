"""The secret that belongs to a database, and its rotation while the service runs.

**The secret of a database.** With any other secret, every API key gets 401 and every entry of an automation fails. So
the database has the fingerprint of its secret from the first use on, and processes and commands with another one are
refused (`require_secret`). As long as the database has no organization, the secret may change. A database of an earlier
version has no fingerprint: the first secret that reads the identifiers of most of its oldest contacts is its own.

**Rotation.** The changes in the database that each phase needs.

Three values of WORKBENCH_SECRET follow one another (see `api.crypto`), one for each phase. The changes of a phase are
made when every process uses its value; processes report theirs in the application name of their connections.

Identifiers are looked up by the blind index of one generation, so every row must have that index. Phase `next` adds the
new indexes while processes write both and look up by the old one, so a lookup never has two answers and no contact is
created twice. Phase `former` encrypts with the new secret. Phase `settled` deletes the old indexes.

When a phase begins, only its value belongs to the database, so no process can start with the value of the phase
before. When its work is done, the value of the next phase belongs to the database, too.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from api.auth import AccessError
from api.auth.keys import operator_transaction
from api.crypto import Keyring
from api.store import access as store
from api.store.access import Org
from api.store.contacts import find_contact_state
from api.store.database import Database, Transaction, TransactionConflictError, with_application_name
from api.store.migrate import require_connection
from api.store.sql_roles import close_login, role_exists
from workbench.language.event import Identifiers

_MAX_CONFLICTS = 20  # consecutive conflicts of one page

Step = Callable[[Transaction, str], Awaitable[str | None]]


class ForeignSecretError(AccessError):
    """The secret does not belong to the database."""


async def require_secret(dsn: str, keyring: Keyring) -> None:
    """Raise ForeignSecretError unless the secret belongs to the database; store the fingerprint of the first one."""
    async with operator_transaction(dsn) as (tx, _):
        stored, fingerprint = await store.find_fingerprints(tx), keyring.fingerprint()
        if fingerprint in stored:
            return
        if not await store.has_organizations(tx):
            await store.set_fingerprints(tx, [fingerprint])
            return
        if not stored and await _reads_contacts(tx, keyring):  # an earlier version created the organizations
            await store.insert_fingerprint(tx, fingerprint)
            stored = await store.find_fingerprints(tx)
        if fingerprint not in stored:
            raise ForeignSecretError(
                "this is not the secret of this database: with it, no API key and no email address could be read"
            )


async def _reads_contacts(tx: Transaction, keyring: Keyring) -> bool:
    """Return whether the secret reads the identifiers of more than half of a sample, or there are no contacts."""
    contacts = await store.sample_contacts(tx)
    readable = 0
    for contact in contacts:
        keys = keyring.of(contact.org_id)
        with suppress(ValueError):  # an email that another secret has sealed
            email = None if contact.email is None else keys.open_email(contact.email)
            identifiers = Identifiers(contact.wallet_address, email, contact.external_id)
            # A process with a foreign secret may have created another contact with the same identifiers.
            owner = await find_contact_state(tx, contact.org_id, keys, identifiers)
            readable += owner is not None and owner.id == contact.id
    return not contacts or readable > len(contacts) / 2


async def is_in_use(dsn: str) -> bool:
    """Return whether the database has any organization."""
    async with operator_transaction(dsn) as (tx, _):
        return await store.has_organizations(tx)


async def run_phase(dsn: str, keyring: Keyring, next_keyring: Keyring | None = None) -> bool:
    """Do the work of the current phase and return whether there was any. Can be repeated safely. Raise AccessError.

    `next_keyring`: the keyring of the next phase, whose secret belongs to the database once the work is done.
    """
    await require_connection(dsn)
    # A page of rows takes longer than a request may: 60 s.
    async with Database(with_application_name(dsn, keyring.tag()), size=2, statement_ms=60_000) as database:
        async with database.transaction() as tx:
            if await store.count_other_generations(tx, keyring.tag()):
                raise AccessError(
                    "processes with another secret are connected; restart them with this command's WORKBENCH_SECRET"
                )
            # During a rotation there are two fingerprints; the older phase is first.
            begins = (await store.find_fingerprints(tx))[:1] != [keyring.fingerprint()]
            if begins:
                await store.set_fingerprints(tx, [keyring.fingerprint()])
            orgs = [Org(org_id, keyring.of(org_id)) for org_id in await store.list_organizations(tx)]
        changed = any([await _rotate_organization(database, keyring, org) for org in orgs])
        if next_keyring is not None:
            async with database.transaction() as tx:
                await store.set_fingerprints(tx, [keyring.fingerprint(), next_keyring.fingerprint()])
        return changed or begins


async def _rotate_organization(database: Database, keyring: Keyring, org: Org) -> bool:
    current = keyring.chain.current.number

    def current_index(digest: str) -> list[str]:
        return [digest] if int(digest[0], 16) == current else []  # the first digit is the number of the secret

    all_indexes = partial(store.reseal_merges, org=org, indexes=org.keys.list_digests_from)
    match keyring.chain.part:
        case "next":
            await _rotate_indexes(database, org, current, drop=False)
            await _run_pages(database, all_indexes)
            await _rotate_indexes(database, org, current, drop=False)  # an undone merge may have restored old ones
        case "former":
            for table in store.SEALED_TABLES:
                await _run_pages(database, partial(store.reseal_emails, org=org, table=table))
            await _run_pages(database, partial(store.reseal_changes, org=org))
            await _run_pages(database, partial(store.rotate_conflict_indexes, org=org, number=current - 1))
            await _run_pages(database, all_indexes)

            def risen(key_hash: bytes) -> bytes | None:
                return keyring.next_key_hash(key_hash) if key_hash[0] >> 4 < current else None

            async with database.transaction() as tx:
                await store.reseal_secrets(tx, org, risen)
                # The password of the analyst role was derived from the former secret.
                role = keyring.former_reader_role(org.id)
                if role is not None and await role_exists(tx, role):
                    await close_login(tx, role)
        case "settled":
            rotated = [await _rotate_indexes(database, org, number, drop=True) for number in range(1, current)]
            await _run_pages(database, partial(store.reseal_merges, org=org, indexes=current_index))
            return any(rotated)
    return True


async def _rotate_indexes(database: Database, org: Org, number: int, *, drop: bool) -> bool:
    """Add the indexes of generation `number + 1`; with `drop`, remove earlier ones. Return whether there were any."""
    steps = [
        partial(store.rotate_indexes, org=org, table=table, number=number, drop=drop) for table in store.INDEXED_TABLES
    ]
    return any([await _run_pages(database, step) for step in steps])


async def _run_pages(database: Database, step: Step) -> bool:
    """Run a step page by page, each in its own transaction; return whether there was a page."""
    last, any_page, conflicts = store.FIRST_DIGEST, False, 0
    while conflicts < _MAX_CONFLICTS:
        try:
            async with database.transaction() as tx:
                next_last = await step(tx, last)
        except TransactionConflictError:  # ingest and engines write the same rows
            conflicts += 1
            continue
        if next_last is None:
            return any_page
        last, any_page, conflicts = next_last, True, 0
    raise AccessError("the rotation lost too many conflicts with other transactions; repeat the command to continue")
