"""From its request to the commit, a single event passes through few modules (docs/architecture.md)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec

from tests.routes.conftest import Org
from tests.routes.test_fast_path import event, post

MARKED = "marked"  # in the external id and the payload of the event
HELPERS = {"api.crypto", "workbench.language.codec"}  # functions of a value, which keep nothing


async def test_a_single_event_passes_through_few_modules(acme: Org) -> None:
    trigger = {"type": "app_event", "event": "deposit", "filters": [{"path": "k", "operator": "eq", "value": MARKED}]}
    graph = {"nodes": [{"id": "t", "type": "trigger", "data": {}}], "edges": []}
    automation = {"name": "A", "triggerSpec": trigger, "graph": graph, "active": True}
    assert (await acme.call("POST", "/automations", automation, kind="workbench")).status_code == 201
    sent = [await post(acme, event(f"{n}", contact={"externalId": MARKED}, payload={"k": MARKED})) for n in range(3)]
    for request in sent[:2]:  # the first one verifies the key and creates the contact
        await acme.service.exchange(request)
    with modules_with_the_event() as modules:
        assert b"202 Accepted" in await acme.service.exchange(sent[2])
    assert (await acme.traces())["entries"] == 3
    assert len(modules - HELPERS) <= 12


@contextmanager
def modules_with_the_event() -> Iterator[set[str]]:
    """Collect the modules whose functions get or return text of the event, also inside lists, dicts and structs."""
    modules: set[str] = set()

    def note(frame: FrameType, what: str, returned: Any) -> None:
        module, code = frame.f_globals.get("__name__", ""), frame.f_code
        if module.startswith(("api.", "workbench.")):
            arguments = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
            if is_marked(arguments if what == "call" else returned if what == "return" else None):
                modules.add(module)

    sys.setprofile(note)
    try:
        yield modules
    finally:
        sys.setprofile(None)


def is_marked(value: Any, depth: int = 0) -> bool:
    match value:
        case str():
            return MARKED in value
        case bytes() | bytearray():
            return MARKED.encode() in value
        case dict():
            elements = [*value, *value.values()]
        case list() | tuple() | set() | frozenset():
            elements = list(value)
        case msgspec.Struct():
            elements = [getattr(value, name, None) for name in value.__struct_fields__]
        case _:
            return False
    return depth < 5 and any(is_marked(element, depth + 1) for element in elements)
