import asyncio

from bench.sockets import Arrivals


async def test_a_repeated_message_is_counted_once() -> None:
    arrivals = Arrivals()
    for title in ("1", "1"):
        arrivals.note(title)
    first = arrivals.at["1"]
    asyncio.get_running_loop().call_soon(arrivals.note, "2")
    await arrivals.until(2)
    assert arrivals.at.keys() == {"1", "2"}
    assert arrivals.at["1"] == first
