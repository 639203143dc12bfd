"""An organization's webhook secret: made when it is first asked for, replaced by a roll. Either is for whoever may see it."""

from api.access.verify import Principal
from api.clock import from_us, token, uuid7
from api.delivery import signing
from api.keyring import Keyring
from api.language.codec import encode
from api.store import delivery as store
from api.store.authoring import AuditRow, insert_audit
from api.store.database import Database, Transaction


async def secret(database: Database, keyring: Keyring, org_id: int, now_us: int) -> str:
    """Return the secret that deliveries are signed with."""
    now = from_us(now_us)
    async with database.transaction() as tx:
        found = await store.webhook_secrets(tx, keyring, [org_id], now)
        if org_id not in found:
            await store.insert_webhook_secret(tx, keyring, org_id, _new_secret(), now)
            found = await store.webhook_secrets(tx, keyring, [org_id], now)
    return found[org_id][0]


async def roll(database: Database, keyring: Keyring, who: Principal, now_us: int) -> tuple[str, store.Roll]:
    """Replace the secret and return the new one; for a day deliveries carry a signature by each."""
    now = from_us(now_us)
    roll, new = store.Roll(now, now + signing.OVERLAP), _new_secret()
    async with database.transaction() as tx:
        await store.roll_webhook_secret(tx, keyring, who.org_id, new, roll)
        await _note(tx, who, "webhook_secret.roll", now_us, {"previousUntil": roll.previous_until})
    return new, roll


async def open_endpoint(database: Database, keyring: Keyring, who: Principal, now_us: int, url: str) -> bool:
    """Send again to an address that said 410; return whether it was closed."""
    async with database.transaction() as tx:
        was_closed = await store.open_endpoint(tx, who.org_id, keyring.of(who.org_id).digests("url", url))
        if was_closed:
            await _note(tx, who, "webhook_endpoint.open", now_us, {})
    return was_closed


async def _note(tx: Transaction, who: Principal, action: str, now_us: int, detail: dict[str, object]) -> None:
    text = encode(detail).decode()
    await insert_audit(tx, AuditRow(who.org_id, uuid7(now_us), who.key_id, action, None, text, from_us(now_us)))


def _new_secret() -> str:
    return signing.new_secret(token(signing.SECRET_BYTES))
