import asyncio

from bench.sockets import Arrivals


async def test_arrivals_are_waited_for_and_counted_once() -> None:
    arrivals = Arrivals()
    for title in ("1", "1"):
        arrivals.note(title)
    first = arrivals.at["1"]
    asyncio.get_running_loop().call_soon(arrivals.note, "2")
    await arrivals.until(2)
    assert arrivals.at.keys() == {"1", "2"}
    assert arrivals.at["1"] == first
