"""How far files of history have been imported: the statements of `sql/queries/imports.sql`."""

from datetime import datetime

import msgspec

from api.store.calls import Call, nothing, statements
from api.store.database import Transaction
from api.store.statements import load

_SQL = load("imports")
_CALLS = statements("imports")


class Progress(msgspec.Struct, frozen=True):
    """What became of the first `lines` of a file; `finished_at`: when all of it was done."""

    lines: int
    stored: int
    duplicates: int
    rejected: int
    finished_at: datetime | None = None


async def begin_import(tx: Transaction, org_id: int, digest: str, name: str, at: datetime) -> Progress:
    """Note that a file is being imported; return how far it is."""
    values = {"org_id": org_id, "digest": digest, "name": name, "at": at}
    row = await (await tx.execute(_SQL["begin_import"], values)).fetchone()
    assert row is not None
    return Progress(*row)


def advance_import(org_id: int, digest: str, brought: Progress, at: datetime) -> Call[None]:
    """Note that a file is done up to `brought.lines`, and add the other numbers of `brought` to what is known of it."""
    return Call(
        _CALLS["advance_import"],
        nothing,
        org_id=org_id,
        digest=digest,
        lines=brought.lines,
        stored=brought.stored,
        duplicates=brought.duplicates,
        rejected=brought.rejected,
        at=at,
    )


async def finish_import(tx: Transaction, org_id: int, digest: str, at: datetime) -> None:
    """Note that a file is done."""
    await tx.execute(_SQL["finish_import"], {"org_id": org_id, "digest": digest, "at": at})


async def forget_import(tx: Transaction, org_id: int, digest: str) -> None:
    """Forget how far a file is: it begins anew."""
    await tx.execute(_SQL["forget_import"], {"org_id": org_id, "digest": digest})
