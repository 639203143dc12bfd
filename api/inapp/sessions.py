"""Signing a wallet in: a text to sign, used once within five minutes, and a token for the sockets of the hour after.

The token carries what it stands for and a MAC, so any process reads it without asking; whether its key still holds is asked
for every socket, all the time (`feed`). While a socket is open its session is renewed before it ends, for a week after the
wallet signed. A signature is checked before the database is asked, in a thread: without coincurve it takes 40 ms.
"""

import asyncio
import base64
import binascii
import re
from datetime import datetime, timedelta

import msgspec

from api.clock import Clock, from_us, to_us, token
from api.inapp.eip4361 import SignIn, read
from api.inapp.origins import domain
from api.keyring import Keyring
from api.store import inbox as store
from api.store.database import Database
from api.store.inbox import Challenge, Inbox, KeyName

CHALLENGE_LIFE = timedelta(minutes=5)
SESSION_LIFE = timedelta(hours=1)
RENEWED_BEFORE = timedelta(minutes=15)  # its end
SIGNATURE_LIFE = timedelta(days=7)  # until the wallet has to sign again
STATEMENT = "Sign in to receive messages. This costs nothing and gives no access to your funds."

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_NONCE = re.compile(r"([0-9a-f]{1,15})g[0-9a-f]{24}", re.ASCII)  # organization, chance
_NONCE_BYTES = 12
_FORGOTTEN_AT_ONCE = 100
_MAC_BYTES = 32


class Session(msgspec.Struct, frozen=True, array_like=True):
    """A signed-in wallet: which key brought it, from which page; when it signed and when this ends (microseconds)."""

    org_id: int
    key_id: str
    wallet: str
    origin: str
    signed_us: int
    ends_us: int

    @property
    def inbox(self) -> Inbox:
        """Whose messages it gets."""
        return self.org_id, self.wallet

    @property
    def key(self) -> KeyName:
        """The publishable key with which it ends."""
        return self.org_id, self.key_id


class Sessions:
    """Challenges and sessions of one process."""

    def __init__(self, database: Database, keyring: Keyring, clock: Clock) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock

    async def challenge(self, key: KeyName, address: str, origin: str, chain_id: int) -> SignIn:
        """Return what the wallet has to sign for a page of this origin."""
        from api.inapp.wallets import checksummed  # takes half a second to load: not before it is needed

        now = self._clock.now()
        org_id, key_id = key
        nonce = f"{org_id:x}g{token(_NONCE_BYTES).hex()}"
        ends = now + CHALLENGE_LIFE
        async with self._database.transaction() as tx:
            await store.forget_challenges(tx, org_id, now, _FORGOTTEN_AT_ONCE)
            await store.add_challenge(tx, org_id, nonce, Challenge(address.lower(), key_id, origin, chain_id, ends))
        return SignIn(
            domain=domain(origin),
            address=checksummed(address),
            statement=STATEMENT,
            uri=origin,
            chain_id=chain_id,
            nonce=nonce,
            issued_at=now,
            expires_at=ends,
        )

    async def origins(self, org_id: int) -> tuple[str, ...]:
        """Return the pages that may ask for an organization's messages."""
        async with self._database.transaction() as tx:
            return await store.list_origins(tx, org_id)

    async def begin(self, text: str, signature: str, origin: str | None, org_id: int | None) -> Session | None:
        """Return the session that a signed message begins, or None; the message can begin no other.

        `origin`, `org_id`: of the page and the key that came with it, where there were any.
        """
        from api.inapp.wallets import signer

        message, now = read(text), self._clock.now()
        nonce = None if message is None else _NONCE.fullmatch(message.nonce)
        if message is None or nonce is None or not message.holds(now):
            return None
        asked_org = int(nonce[1], 16)
        if org_id not in (None, asked_org) or message.scheme not in (None, message.uri.partition(":")[0]):
            return None
        if await asyncio.to_thread(signer, text, signature) != message.address.lower():
            return None
        async with self._database.transaction() as tx:
            asked = await store.take_challenge(tx, asked_org, message.nonce)
        if asked is None or not _answers(message, asked, now) or origin not in (None, asked.origin):
            return None
        return Session(asked_org, asked.key_id, asked.wallet, asked.origin, to_us(now), to_us(now + SESSION_LIFE))

    def renewed(self, session: Session) -> Session | None:
        """Return the session with more time, None when it has enough or its wallet has to sign again."""
        now_us = self._clock.now_us()
        if session.ends_us - now_us > _us(RENEWED_BEFORE):
            return None
        ends_us = min(now_us + _us(SESSION_LIFE), session.signed_us + _us(SIGNATURE_LIFE))
        return msgspec.structs.replace(session, ends_us=ends_us) if ends_us > session.ends_us else None

    def holds(self, session: Session) -> bool:
        """Return whether the session has not ended."""
        return self._clock.now_us() < session.ends_us

    def seal(self, session: Session) -> str:
        """Return the token of a session."""
        raw = msgspec.json.encode(session)
        return base64.urlsafe_b64encode(self._keyring.inapp_session_mac(raw) + raw).decode()

    def open(self, sealed: str) -> Session | None:
        """Return the session of a token, or None when it is not ours or has ended."""
        try:
            raw = base64.b64decode(sealed.encode(), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, content = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not self._keyring.is_inapp_session_mac(mac, content):
            return None
        session = msgspec.json.decode(content, type=Session)
        return session if self.holds(session) else None


def is_wallet(address: str) -> bool:
    """Return whether the text is an address of an account that can sign."""
    return _ADDRESS.fullmatch(address) is not None


def ends_at(session: Session) -> datetime:
    """Return the moment at which the session ends, and with it the sockets for which it was not renewed."""
    return from_us(session.ends_us)


def _us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def _answers(message: SignIn, asked: Challenge, now: datetime) -> bool:
    return now < asked.expires_at and (message.address.lower(), message.domain, message.uri, message.chain_id) == (
        asked.wallet,
        domain(asked.origin),
        asked.origin,
        asked.chain_id,
    )
