"""The settings of an organization that its automations keep from their publication on."""

from api.automations.automations import Author, record
from api.store import access
from api.store.database import Database


async def set_timezone(database: Database, author: Author, timezone: str | None) -> None:
    """Set the time zone of the organization, which versions keep from the next publication on."""
    async with database.transaction() as tx:
        before = await access.find_timezone(tx, author.org_id)
        if before != timezone:
            await access.set_timezone(tx, author.org_id, timezone)
            await record(tx, author, "organization.timezone", None, {"from": before, "to": timezone})
