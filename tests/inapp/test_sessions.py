"""Sessions are renewed over the open socket until the wallet has to sign again."""

from datetime import timedelta
from typing import Any

from api.clock import to_us
from api.inapp.sessions import RENEWAL_LEAD, SESSION_LIFETIME, SIGNATURE_LIFETIME, InappSession
from tests.inapp.conftest import PAGE, Person

SOON = timedelta(seconds=2)


async def sealed(person: Person, left: timedelta, since: timedelta = timedelta(hours=1)) -> str:
    """Return the token of a session that ends after `left`; the wallet signed it `since` ago."""
    parts = person.org.service.services
    session = parts.sessions.open(await person.token())
    assert session is not None
    now = parts.clock.now()
    ends = InappSession(session.org_id, session.key_id, session.wallet, PAGE, to_us(now - since), to_us(now + left))
    return parts.sessions.seal(ends)


def session_of(person: Person, frame: dict[str, Any]) -> InappSession:
    """Return the session of the token in a frame."""
    session = person.org.service.services.sessions.open(frame["token"])
    assert frame.keys() == {"type", "token", "expiresAt"}
    assert session is not None
    return session


async def test_a_session_that_is_about_to_end_is_renewed_over_its_socket(ann: Person) -> None:
    async with ann.socket(await sealed(ann, RENEWAL_LEAD - SOON)) as line:
        frame = await line.receive_frame()
    assert frame["type"] == "SESSION"
    async with ann.socket(frame["token"]) as line:
        await ann.receive("1")
        assert await line.acknowledge(1) == ["1"]  # no SESSION frame before it: the session is not due for renewal
    left = session_of(ann, frame).ends_us - ann.org.service.services.clock.now_us()
    assert SESSION_LIFETIME - timedelta(minutes=1) < timedelta(microseconds=left) <= SESSION_LIFETIME


async def test_a_week_after_the_signature_the_wallet_signs_again(ann: Person) -> None:
    async with ann.socket(await sealed(ann, SOON, SIGNATURE_LIFETIME - 2 * SOON)) as line:
        last = session_of(ann, await line.receive_frame())
        assert last.ends_us - last.signed_us == SIGNATURE_LIFETIME // timedelta(microseconds=1)
        assert await line.code() == 4401


async def test_a_session_that_has_ended_opens_no_socket(ann: Person) -> None:
    async with ann.socket(await sealed(ann, -SOON)) as line:
        assert await line.code() == 4401
