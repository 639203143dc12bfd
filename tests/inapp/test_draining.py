"""A stopping API process closes its sockets, tells them when to reconnect, and loses no messages."""

import asyncio
import re

import msgspec
import pytest
from websockets.exceptions import InvalidStatus

from api.clock import token
from api.inapp.feed import INBOXES_PER_READ
from tests.inapp.conftest import PAGE, Person, SocketClient
from tests.inapp.wallet import Wallet
from tests.routes.conftest import serving

REASON = re.compile(r"the server restarts; retry-after=(\d+\.\d)")


async def retry_after(line: SocketClient) -> float:
    """Wait until the server closes a socket; return the seconds after which to reconnect."""
    assert await line.code() == 1012
    match = REASON.fullmatch(line.connection.close_reason or "")
    assert match is not None
    return float(match[1])


async def test_unacknowledged_messages_are_pushed_by_another_process(ann: Person) -> None:
    lasting = ann.org.service
    async with serving(lasting.dsn) as stopping:
        ann.org.service = stopping
        session = await ann.token()
        async with ann.socket(session) as line:
            await ann.receive("1", "2")
            assert await line.acknowledge(1) == ["1"]
            stopping.services.feed.sockets.drain()
            assert await retry_after(line) == 1.0
        with pytest.raises(InvalidStatus) as refused:
            await ann.dial(PAGE)
        assert refused.value.response.status_code == 503
    ann.org.service = lasting
    async with ann.socket(session) as line:
        titles = await line.acknowledge(1)
        assert titles in (["1"], ["2"])  # the acknowledgement may have arrived too late


async def test_clients_of_a_stopped_process_reconnect_one_after_the_other(ann: Person) -> None:
    async with serving(ann.org.service.dsn) as ann.org.service:
        lines = await asyncio.gather(*(ann.dial(PAGE) for _ in range(120)))
        ann.org.service.services.feed.sockets.drain()
        assert sorted({await retry_after(line) for line in lines}) == [1.0, 1.1, 1.2]


async def test_clients_that_reconnect_at_once_get_all_waiting_messages(ann: Person) -> None:
    sessions = ann.org.service.services.sessions
    session = sessions.open(await ann.token())
    assert session is not None
    people = [Person(ann.org, Wallet(token(32))) for _ in range(INBOXES_PER_READ + 10)]
    for person in people:
        await person.receive(person.wallet.address)

    async def reconnect(person: Person) -> list[str]:
        mine = msgspec.structs.replace(session, wallet=person.wallet.address)
        async with person.socket(sessions.seal(mine)) as line:
            return await line.acknowledge(1)

    assert await asyncio.gather(*map(reconnect, people)) == [[person.wallet.address] for person in people]
