"""Rotation of the secret beside everything that goes on: what each of its parts changes in the database.

Three texts follow each other as WORKBENCH_SECRET (see `api.keychain`), and every process has to hold one before the next may come, which
their connections tell. Identifiers are looked up by one index, all of which are there: by the old one until the new ones are complete,
which is what the first part sees to, while processes write both. So no lookup ever has two answers, and no contact comes twice.
The second part seals anew. When it is over, the old indexes are taken away.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from api.access import AccessError
from api.keyring import Keyring
from api.store import rotation as store
from api.store.checkup import must_answer
from api.store.database import ConflictError, Database, Transaction, marked
from api.store.direct import close_login
from api.store.roles import role_exists
from api.store.rotation import Org

_TRIES = 20

Step = Callable[[Transaction, str], Awaitable[str | None]]


async def go_on(dsn: str, keyring: Keyring) -> bool:
    """Do what the part of the rotation asks for that has begun; return whether there was anything to do. Raise AccessError.

    May be repeated, whatever became of it before.
    """
    await must_answer(dsn)
    database = Database(marked(dsn, keyring.mark()), size=2, statement_ms=60_000)
    await database.open()
    try:
        async with database.transaction() as tx:
            if await store.others(tx, keyring.mark()):
                raise AccessError(
                    "processes are connected that hold other secrets than this command; renew them with the same WORKBENCH_SECRET"
                )
            orgs = [Org(org_id, keyring.of(org_id)) for org_id in await store.organizations(tx)]
        return any([await _organization(database, keyring, org) for org in orgs])
    finally:
        await database.close()


async def _organization(database: Database, keyring: Keyring, org: Org) -> bool:
    current = keyring.chain.current.number
    match keyring.chain.part:
        case "next":
            await _raise(database, org, current, drop=False)
            await _pages(database, partial(store.change_merges, org=org, indexes=org.keys.all_of_each))
            await _raise(database, org, current, drop=False)  # also those of merges that were undone in between
        case "former":
            await _seal_anew(database, keyring, org)
        case "settled":
            found = [await _raise(database, org, number, drop=True) for number in range(1, current)]
            await _pages(database, partial(store.change_merges, org=org, indexes=partial(_only, current)))
            return any(found)
    return True


async def _raise(database: Database, org: Org, number: int, *, drop: bool) -> bool:
    """Add the indexes that follow on generation `number`; return whether there were any."""
    steps = [partial(store.raise_indexes, org=org, table=table, number=number, drop=drop) for table in store.KINDS]
    return any([await _pages(database, step) for step in steps])


async def _seal_anew(database: Database, keyring: Keyring, org: Org) -> None:
    """Make with the secret in use what was made with the former one; lock its analysts' role out."""
    current = keyring.chain.current.number
    for table in store.SEALED:
        await _pages(database, partial(store.seal_anew, org=org, table=table))
    await _pages(database, partial(store.raise_conflicts, org=org, number=current - 1))
    await _pages(database, partial(store.change_merges, org=org, indexes=org.keys.all_of_each))

    def risen(key_hash: bytes) -> bytes | None:
        return keyring.risen_key_hash(key_hash) if key_hash[0] >> 4 < current else None

    async with database.transaction() as tx:
        await store.change_rest(tx, org, risen)
        role = keyring.former_reader_role(org.id)
        if role is not None and await role_exists(tx, role):
            await close_login(tx, role)


async def _pages(database: Database, step: Step) -> bool:
    """Do a step page by page, each in a transaction; return whether there was any."""
    last, found = store.FIRST, False
    while (reached := await _tried(database, step, last)) is not None:
        last, found = reached, True
    return found


async def _tried(database: Database, step: Step, last: str) -> str | None:
    for _ in range(_TRIES):
        with suppress(ConflictError):
            async with database.transaction() as tx:
                return await step(tx, last)
    raise AccessError("others hold what the rotation needs; repeat the command, and it goes on")


def _only(number: int, digest: str) -> list[str]:
    return [digest] if int(digest[0], 16) == number else []
