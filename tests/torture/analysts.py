"""Analysts query everything that an organization may read, in every format, and try ids of other organizations.

They also send what is refused, and queries that would not end or would take all memory.
"""

import asyncio
import contextlib
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from api.store.analyst import private_bytes
from tests.torture.callers import Caller
from tests.torture.leaks import OBEYED
from tests.torture.log import BOMB, Bomb, now_us

SEGMENT = "pros"  # of every organization
IN_SEGMENT = ("plan", "pro")  # the attribute that puts a contact into it

_SEGMENT_SQL = "SELECT id AS contact_id FROM contacts WHERE metadata ->> 'plan' = 'pro'"
_PAUSES_S = (0.02, 0.2)  # seconds
_BOMB_PAUSES_S = (30.0, 120.0)
_FORMS = ("application/json", "text/csv", "application/vnd.apache.arrow.stream")
_QUERIES = (
    "SELECT * FROM app_events ORDER BY created_at DESC LIMIT 200",
    "SELECT payload ->> 'canary' AS word, event, count(*) FROM app_events GROUP BY 1, 2",
    "SELECT * FROM contacts ORDER BY updated_at DESC LIMIT 200",
    "SELECT e.payload, c.* FROM app_events e JOIN contacts c ON c.id = e.contact_id LIMIT 100",
    "SELECT * FROM messages ORDER BY created_at DESC LIMIT 200",
    "SELECT * FROM automation_entries ORDER BY created_at DESC LIMIT 200",
    "SELECT * FROM segment_members LIMIT 200",
)
_ATTACKS = (
    "SELECT * FROM workbench.events LIMIT 10",
    "SELECT set_config('workbench.org', '*', false) FROM contacts",
    "WITH s AS (SELECT set_config('workbench.org', '*', true)) SELECT payload FROM app_events, s",
    "SELECT query FROM pg_stat_activity",
    "SELECT * FROM torture.events",
    "RESET ROLE",
)
_ROLES = "SELECT r FROM (SELECT g::text, g::oid::regrole::text AS r FROM generate_series(16384, 40000) g) WHERE r <> g"
_BOMBS = {
    "endless": "SELECT count(*) FROM generate_series(1, 1000000000000) n",
    "repeat": "SELECT sum(length(repeat('x', 100000000 + n))) FROM generate_series(1, 100000) n",
    # 3 GB at most, also if the process that watches it is killed or frozen.
    "aggregate": "SELECT cardinality(array_agg(repeat('x', 1000) || n)) FROM generate_series(1, 3000000) n",
}
_STOPPED = (400, 408, 429)  # by its memory, by its time, or before it began: three queries of an organization run
_GRAPH = {"nodes": [{"id": "t", "type": "app_event", "data": {}}], "edges": []}
_REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "/segments",
        {"name": "typed", "sql": "SELECT id AS contact_id FROM contacts WHERE email = 'person7@example.com'"},
    ),
    ("/segments", {"name": OBEYED[0], "sql": "SELECT id AS contact_id FROM contacts"}),
    *(
        ("/automations", {"name": name, "triggerSpec": {"type": "app_event", "event": "signup"}, "graph": _GRAPH})
        for name in OBEYED
    ),
)
_PAGES = (
    "/segments/%1b%5d0%3bowned%07",
    "/entries",
    "/events/catalog",
    "/events/catalog/deposit",
    "/events/recent",
    "/entries",
    "/dead-letters",
    "/automations",
    "/segments",
    f"/segments/{SEGMENT}",
    "/usage",
    "/audit",
)
_ID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_ID_PATTERNS = {
    "contact": rf'"contactId":"({_ID})"',
    "entry": rf'"id":"({_ID})","automationId"',
    "automation": rf'"automationId":"({_ID})"',
}
_OBJECT_PATHS = {
    "contact": ("/contacts/{}", "/contacts/{}/timeline", "/contacts/{}/export"),
    "entry": ("/entries/{}",),
    "automation": ("/automations/{}", "/automations/{}/entries", "/automations/{}/versions"),
}
_MAX_KNOWN = 200
_TRIES = 12  # of each kind of request for an object by id


class KnownIds:
    """Ids of contacts, entries and automations by organization.

    Every analyst can look up the ids of every organization.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], list[str]] = defaultdict(list)

    def add_ids_in(self, org: str, text: str) -> None:
        """Collect the ids in a JSON response."""
        for kind, pattern in _ID_PATTERNS.items():
            ids = self._known[org, kind]
            ids += re.findall(pattern, text)
            del ids[:-_MAX_KNOWN]

    def any(self, caller: Caller, kind: str, *, own: bool) -> str | None:
        """Return a random id of the caller's organization, or of another one."""
        ids_of_kind = [
            id_ for (org, of), ids in self._known.items() if of == kind and (org == caller.org) is own for id_ in ids
        ]
        return caller.chance.choice(ids_of_kind) if ids_of_kind else None


async def define_segment(caller: Caller) -> None:
    """Define the organization's segment."""
    body = {"name": SEGMENT, "sql": _SEGMENT_SQL, "everySeconds": 60}
    assert await caller.request("POST", "/segments", "segments", good=(201,), json=body) is not None


async def refresh_segment(caller: Caller) -> None:
    """Refresh the organization's segment now."""
    await caller.request("POST", f"/segments/{SEGMENT}/refresh", "segments")


async def analyse(caller: Caller, known_ids: KnownIds) -> None:
    """Send random queries until cancelled."""
    chance = caller.chance
    while True:
        (act,) = chance.choices(
            (_query, _attack, _page, _request_own, _request_others, _refresh, _list_roles, _send_refused),
            (30, 8, 22, 23, 15, 2, 1, 2),
        )
        await act(caller, known_ids)
        await asyncio.sleep(chance.uniform(*_PAUSES_S))


async def send_every_query(caller: Caller, known_ids: KnownIds) -> None:
    """Send every query once, without faults."""
    for query in _QUERIES:
        await _sql(caller, query, {}, (200,))
    for query in _ATTACKS:
        await _sql(caller, query, {}, (400,))
    for page in _PAGES:
        await _request_page(caller, known_ids, page)
    for path, body in _REFUSED:
        await caller.request("POST", path, "refused", good=(400,), json=body)
    await _list_roles(caller, known_ids)
    for _ in range(_TRIES):
        await _request_own(caller, known_ids)
        await _request_others(caller, known_ids)
    await refresh_segment(caller)


async def explode(caller: Caller, backends: Callable[[], list[int]]) -> None:
    """Send bombs from time to time until cancelled, and watch the memory of the backends meanwhile."""
    while True:
        await asyncio.sleep(caller.chance.uniform(*_BOMB_PAUSES_S))
        await _bomb(caller, caller.chance.choice(list(_BOMBS)), backends)


async def send_every_bomb(caller: Caller, backends: Callable[[], list[int]]) -> None:
    for name in _BOMBS:
        await _bomb(caller, name, backends)


async def _bomb(caller: Caller, name: str, backends: Callable[[], list[int]]) -> None:
    began, peak = now_us(), 0
    sending = asyncio.create_task(
        caller.request("POST", "/sql", BOMB, good=_STOPPED, json={"sql": _BOMBS[name]}, key="workbench")
    )
    try:
        while not sending.done():
            with contextlib.suppress(OSError):  # Postgres is down
                peak = max(peak, *(private_bytes(pid, "") for pid in backends()))
            await asyncio.wait([sending], timeout=0.1)
    finally:
        sending.cancel()
    answer = sending.result()
    caller.log.bombs.append(Bomb(caller.org, name, began, now_us(), answer.status_code if answer else 0, peak))


async def _list_roles(caller: Caller, known_ids: KnownIds) -> None:
    """List the roles of the server by casts, which are allowed: their names must show no organization."""
    answer = await _sql(caller, _ROLES, {}, (200,))
    if answer is not None:
        caller.log.leak_detector.check_names(caller.org, "roles", answer.text)


async def _send_refused(caller: Caller, known_ids: KnownIds) -> None:
    path, body = caller.chance.choice(_REFUSED)
    await caller.request("POST", path, "refused", good=(400,), json=body)


async def _query(caller: Caller, known_ids: KnownIds) -> None:
    form, headers = caller.chance.choice(_FORMS), {"accept-encoding": "identity"}
    await _sql(caller, caller.chance.choice(_QUERIES), headers | {"accept": form}, (200,))


async def _attack(caller: Caller, known_ids: KnownIds) -> None:
    await _sql(caller, caller.chance.choice(_ATTACKS), {}, (400,))


async def _sql(caller: Caller, text: str, headers: dict[str, str], good: tuple[int, ...]) -> Any:
    return await caller.request("POST", "/sql", "SQL", good=good, json={"sql": text}, headers=headers)


async def _page(caller: Caller, known_ids: KnownIds) -> None:
    await _request_page(caller, known_ids, caller.chance.choice(_PAGES))


async def _request_page(caller: Caller, known_ids: KnownIds, path: str) -> None:
    page = await caller.request("GET", path, "pages", good=(200, 404))  # 404: before the first deposit
    if page is not None:
        known_ids.add_ids_in(caller.org, page.text)


async def _refresh(caller: Caller, known_ids: KnownIds) -> None:
    await refresh_segment(caller)


async def _request_own(caller: Caller, known_ids: KnownIds) -> None:
    await _request_object(caller, known_ids, own=True, good=(200, 404))  # it may have been erased


async def _request_others(caller: Caller, known_ids: KnownIds) -> None:
    await _request_object(caller, known_ids, own=False, good=(404,))


async def _request_object(caller: Caller, known_ids: KnownIds, *, own: bool, good: tuple[int, ...]) -> None:
    kind = caller.chance.choice(sorted(_OBJECT_PATHS))
    object_id = known_ids.any(caller, kind, own=own)
    if object_id is not None:
        path = caller.chance.choice(_OBJECT_PATHS[kind]).format(object_id)
        await caller.request("GET", path, "objects", key="admin", good=good)
