"""Sessions: a challenge to sign, valid once within five minutes, and a token for the sockets of the next hour.

A token carries its session and a MAC, so any process can read it without asking the database; whether its key is still
valid is checked for every socket every two seconds (`feed`). The session of an open socket is renewed before it ends,
for up to a week after the wallet signed.
"""

import asyncio
import base64
import binascii
import re
from datetime import datetime, timedelta

import msgspec

from api.clock import Clock, from_us, to_us, token
from api.crypto import Keyring
from api.inapp.sign_in import SignIn, domain_of, parse_message, recover_signer
from api.store import messages as store
from api.store.database import Database
from api.store.messages import Challenge, InboxKey, KeyRef
from workbench.language.abi import checksum_address

CHALLENGE_LIFETIME = timedelta(minutes=5)
SESSION_LIFETIME = timedelta(hours=1)
RENEWAL_LEAD = timedelta(minutes=15)  # a session with less time left is renewed
SIGNATURE_LIFETIME = timedelta(days=7)  # until the wallet has to sign again
STATEMENT = "Sign in to receive messages. This costs nothing and gives no access to your funds."
EXPIRED_CHALLENGES_PER_SIGN_IN = 100  # each sign-in deletes at most this many

_NONCE = re.compile(r"([0-9a-f]{1,15})g[0-9a-f]{24}", re.ASCII)  # organization, random bytes
_NONCE_BYTES = 12
_MAC_BYTES = 32


class InappSession(msgspec.Struct, frozen=True, array_like=True):
    """A signed-in wallet; `key_id` is the publishable key of the sign-in. Times are in microseconds since the epoch."""

    org_id: int
    key_id: str
    wallet: str
    origin: str
    signed_us: int
    ends_us: int

    @property
    def inbox(self) -> InboxKey:
        return self.org_id, self.wallet

    @property
    def key(self) -> KeyRef:
        """The publishable key; the session ends with it."""
        return self.org_id, self.key_id

    @property
    def ends_at(self) -> datetime:
        """The end of the session, and of its sockets unless the session is renewed."""
        return from_us(self.ends_us)


class Sessions:
    def __init__(self, database: Database, keyring: Keyring, clock: Clock) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock

    async def challenge(self, key: KeyRef, address: str, origin: str, chain_id: int) -> SignIn:
        """Return a new message for a wallet to sign on a page of this origin."""
        now = self._clock.now()
        org_id, key_id = key
        nonce = f"{org_id:x}g{token(_NONCE_BYTES).hex()}"
        expires_at = now + CHALLENGE_LIFETIME
        async with self._database.transaction() as tx:
            await store.delete_expired_challenges(tx, org_id, now, EXPIRED_CHALLENGES_PER_SIGN_IN)
            challenge = Challenge(address.lower(), key_id, origin, chain_id, expires_at)
            await store.add_challenge(tx, org_id, nonce, challenge)
        return SignIn(
            domain=domain_of(origin),
            address=checksum_address(address),
            statement=STATEMENT,
            uri=origin,
            chain_id=chain_id,
            nonce=nonce,
            issued_at=now,
            expires_at=expires_at,
        )

    async def origins(self, org_id: int) -> tuple[str, ...]:
        """Return the origins of the pages that may show an organization's messages."""
        async with self._database.transaction() as tx:
            return await store.list_origins(tx, org_id)

    async def create(self, text: str, signature: str, origin: str | None, org_id: int | None) -> InappSession | None:
        """Return the session for a signed message, or None if it is not valid. A challenge creates one session at most.

        `origin`: of the calling page, `org_id`: of the key of the request. If given, they must match the challenge.
        """
        now = self._clock.now()
        message = parse_message(text)
        nonce = None if message is None else _NONCE.fullmatch(message.nonce)
        if message is None or nonce is None or not message.is_valid_at(now):
            return None
        challenge_org_id = int(nonce[1], 16)
        if org_id not in (None, challenge_org_id) or message.scheme not in (None, message.uri.partition(":")[0]):
            return None
        # Verified before the challenge is read, so that guesses do not load the database. Verified in a thread, because
        # it takes 40 ms without coincurve.
        if await asyncio.to_thread(recover_signer, text, signature) != message.address.lower():
            return None
        async with self._database.transaction() as tx:
            challenge = await store.take_challenge(tx, challenge_org_id, message.nonce)
        if challenge is None or now >= challenge.expires_at or origin not in (None, challenge.origin):
            return None
        signed = (message.address.lower(), message.domain, message.uri, message.chain_id)
        if signed != (challenge.wallet, domain_of(challenge.origin), challenge.origin, challenge.chain_id):
            return None
        ends_us = to_us(now + SESSION_LIFETIME)
        return InappSession(challenge_org_id, challenge.key_id, challenge.wallet, challenge.origin, to_us(now), ends_us)

    def renew(self, session: InappSession) -> InappSession | None:
        """Return the renewed session, or None if it is not due for renewal or the wallet has to sign again."""
        now_us = self._clock.now_us()
        if session.ends_us - now_us > _us(RENEWAL_LEAD):
            return None
        ends_us = min(now_us + _us(SESSION_LIFETIME), session.signed_us + _us(SIGNATURE_LIFETIME))
        return msgspec.structs.replace(session, ends_us=ends_us) if ends_us > session.ends_us else None

    def is_valid(self, session: InappSession) -> bool:
        return self._clock.now_us() < session.ends_us

    def seal(self, session: InappSession) -> str:
        raw = msgspec.json.encode(session)
        return base64.urlsafe_b64encode(self._keyring.inapp_session_mac(raw) + raw).decode()

    def open(self, sealed: str) -> InappSession | None:
        """Return the session of a token, or None if the token is not valid or the session has ended."""
        try:
            raw = base64.b64decode(sealed.encode(), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        mac, content = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not self._keyring.is_inapp_session_mac(mac, content):
            return None
        session = msgspec.json.decode(content, type=InappSession)
        return session if self.is_valid(session) else None


def _us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
