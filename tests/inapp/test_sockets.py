"""Messages over real sockets: at once, in order, once per socket, again until acknowledged, to their wallet only."""

import asyncio

import pytest

from tests.inapp.conftest import Person
from tests.routes.conftest import serving


async def test_a_message_is_pushed_at_once(ann: Person) -> None:
    async with ann.socket() as line:
        (message_id,) = await ann.receive("hello", body="<b>you</b>")
        frame = await line.receive_frame()
    assert frame.pop("createdAt").endswith("Z")
    assert frame == {"type": "PUSH", "id": message_id, "title": "hello", "body": "<b>you</b>", "data": None}


async def test_earlier_messages_are_replayed_in_order(ann: Person) -> None:
    await ann.receive("1", "2", "3")
    async with ann.socket() as line:
        assert await line.titles(3) == ["1", "2", "3"]


async def test_an_acknowledged_message_is_not_delivered_again(ann: Person) -> None:
    await ann.receive("1", "2")
    async with ann.socket() as line:
        assert await line.acknowledge(1) == ["1"]
        assert await line.titles(1) == ["2"]
        await ann.receive("3")
        assert await line.titles(1) == ["3"]
    async with ann.socket() as line:
        assert await line.acknowledge(2) == ["2", "3"]
        await ann.receive("4")
        assert await line.acknowledge(1) == ["4"]
    await delivered(ann, ["1", "2", "3", "4"])


async def test_a_socket_gets_a_message_once(ann: Person) -> None:
    async with ann.socket() as line:
        for title in ("1", "2", "3"):
            await ann.receive(title)
            assert await line.titles(1) == [title]


async def test_an_acknowledgement_counts_on_a_later_socket(ann: Person) -> None:
    (message_id,) = await ann.receive("1")
    async with ann.socket() as line:
        await line.titles(1)
    async with ann.socket() as line:
        await line.send_frame(type="ACK", id=message_id)
        await delivered(ann, ["1"])


async def test_every_socket_of_a_wallet_gets_a_message(ann: Person) -> None:
    async with ann.socket() as one, ann.socket() as other:
        await ann.receive("1")
        assert [await one.titles(1), await other.titles(1)] == [["1"], ["1"]]


async def test_a_wallet_gets_its_own_messages_only(ann: Person, bob: Person, eve: Person) -> None:
    same_wallet = Person(eve.org, ann.wallet)  # the same wallet with another organization
    async with ann.socket() as line, bob.socket() as other, same_wallet.socket() as third:
        for person, title in ((ann, "for ann"), (bob, "for bob"), (same_wallet, "of another organization")):
            await person.receive(title)
        assert [await socket.titles(1) for socket in (line, other, third)] == [
            ["for ann"],
            ["for bob"],
            ["of another organization"],
        ]


async def test_an_acknowledgement_counts_only_for_the_own_wallet(ann: Person, bob: Person) -> None:
    (message_id,) = await ann.receive("1")
    await bob.receive("2")
    async with bob.socket() as line:
        await line.send_frame(type="ACK", id=message_id)
        assert await line.acknowledge(1) == ["2"]
        await delivered(bob, ["2"])
    assert await ann.delivered() == []


async def test_a_long_replay_continues_where_it_was_cut_off(ann: Person) -> None:
    titles = [str(number) for number in range(300)]  # 38 reads
    await ann.receive(*titles)
    async with ann.socket() as line:
        assert await line.acknowledge(100) == titles[:100]
        await delivered(ann, titles[:100])
    async with ann.socket() as line:
        assert await line.acknowledge(200) == titles[100:]
    await delivered(ann, titles)


async def test_a_client_that_acknowledges_nothing_gets_a_thousand_messages(ann: Person) -> None:
    await ann.receive(*(str(number) for number in range(1_010)))
    async with ann.socket() as line:
        frames = [await line.receive_frame() for _ in range(1_000)]
        await line.send_frame(type="ACK", id=frames[0]["id"])
        assert await line.titles(1) == ["1000"]


async def test_a_message_arrives_without_a_notification(ann: Person) -> None:
    async with ann.socket() as line:
        await ann.receive("first")
        await line.acknowledge(1)
        await ann.org.service.rows(
            "INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status,"
            " wallet_address, subject, body, created_at)"
            " SELECT org_id, gen_random_uuid(), contact_id, automation_id, entry_id, 'other', visit, channel, 'sent',"
            " wallet_address, 'second', body, created_at FROM messages WHERE org_id = %s RETURNING 1",
            ann.org.id,
        )
        assert await line.titles(1) == ["second"]


async def test_messages_continue_after_a_lost_database_connection(ann: Person) -> None:
    async with ann.socket() as line:
        await ann.receive("1")
        await line.acknowledge(1)
        await ann.org.service.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND usename = current_user AND pid <> pg_backend_pid()"
        )
        async with asyncio.timeout(10):
            while True:
                try:
                    await ann.receive("2")
                    break
                except Exception:  # noqa: BLE001 - whatever a broken pool says
                    await asyncio.sleep(0.05)
        assert await line.titles(1) == ["2"]


async def test_any_process_can_serve_a_socket(ann: Person) -> None:
    async with serving(ann.org.service.dsn) as second:
        service, session = ann.org.service, await ann.token()
        ann.org.service = second
        async with ann.socket(session) as line:
            ann.org.service = service
            await ann.receive("through another process")
            assert await line.acknowledge(1) == ["through another process"]
            await delivered(ann, ["through another process"])


@pytest.mark.parametrize("size", [10, 100_000])
async def test_many_messages_of_any_size_arrive(ann: Person, size: int) -> None:
    await ann.receive(*(str(number) for number in range(20)), body="é" * size)
    async with ann.socket(max_size=2**20) as line:
        assert await line.acknowledge(20) == [str(number) for number in range(20)]


async def delivered(person: Person, titles: list[str]) -> None:
    """Wait until exactly these are acknowledged."""
    async with asyncio.timeout(5):
        while await person.delivered() != titles:
            await asyncio.sleep(0.02)
