"""From its request to the commit, a batch is given to few functions of few modules (docs/architecture.md)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from types import FrameType
from typing import Any

from tests.ingest.conftest import Org, event

SIZE = 7  # of the batch; nothing else in the walk has as many elements


async def test_a_batch_is_given_to_few_functions(acme: Org) -> None:
    await acme.automate("deposit")
    sent = [event(f"{turn}-{n}", external_id=f"u{n}", attributes={"n": n}) for turn in range(2) for n in range(SIZE)]
    await acme.send(*sent[:SIZE])
    with calls_with_the_batch() as calls:
        await acme.send(*sent[SIZE:])
    stops = calls[: calls.index(("api.ingest.pipeline", "_answer"))]  # answered after the commit
    visits = [module for module, _ in groupby(stops, itemgetter(0))]
    assert stops[-1] == ("api.ingest.store", "_writes")
    assert len(stops) <= 12
    assert len(set(visits)) <= 4
    assert len(visits) - len(set(visits)) <= 4  # returns to a module


@contextmanager
def calls_with_the_batch() -> Iterator[list[tuple[str, str]]]:
    """Collect module and name of the functions of `api` that get the batch as an argument, in order of their calls."""
    calls: list[tuple[str, str]] = []
    frames: list[FrameType] = []  # kept, because a coroutine that continues is reported as a call of the same frame

    def note(frame: FrameType, what: str, _: Any) -> None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if what != "call" or not module.startswith("api.") or code.co_name.startswith("<"):
            return
        if any(frame is earlier for earlier in frames):
            return
        if any(is_batch(frame.f_locals.get(name)) for name in code.co_varnames[: code.co_argcount]):
            frames.append(frame)
            calls.append((module, code.co_name))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def is_batch(value: Any) -> bool:
    """Return whether a value is the list of all texts or events, a request with them, or the list of this request."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    value = getattr(value, "events", value)
    elements = value if isinstance(value, list) and len(value) == SIZE else []
    return bool(elements) and all(isinstance(element, bytes) or hasattr(element, "event_id") for element in elements)
