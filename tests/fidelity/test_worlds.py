"""Worlds for which the interpreters once differed, and planted defects in each interpreter."""

from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from api.automations import trial
from api.contacts import explain
from api.engine import facts as engine_facts
from api.ingest import store as ingest
from api.segments import broadcasts
from api.segments.broadcasts import preview
from tests.conftest import clone
from tests.engine.killing import Kill
from tests.fidelity.compare import DifferenceError, check
from tests.fidelity.machine import open_stage, parts_of, seed_of
from tests.fidelity.stage import Stage
from tests.fidelity.worlds import (
    AWAITED_LOG,
    IDENTIFIERS,
    LOGS,
    Action,
    Automation,
    Change,
    Contact,
    Erasure,
    Import,
    Merge,
    MoveBack,
    Pause,
    Publication,
    Report,
    Resume,
    SegmentMove,
    SentBroadcast,
    SentEvent,
    Transfer,
    Undo,
    World,
)
from workbench.backtest import run as notebook
from workbench.backtest import simulate_bucket
from workbench.language.channel import DEFAULT_POLICY
from workbench.language.facts import ContactHistory
from workbench.language.live import LiveChange, live_changes
from workbench.language.timeline import Timeline

ANN, BOB = IDENTIFIERS
WALLET, EMAIL = {"walletAddress": ANN["walletAddress"]}, {"email": BOB["email"]}
HI = {"type": "send_inapp", "data": {"title": "Hi", "body": "{{ size | default(0) }}"}}
HOOK = {"type": "send_webhook", "data": {"url": "https://a.co"}}
MAIL = {"type": "send_email", "data": {"subject": "Hi", "body": "there"}}
NEWS = {"type": "send_inapp", "data": {"title": "Hi", "body": "there", "topic": "news"}}
WAIT = {"type": "wait_for_event", "data": {"event": "paid", "timeoutSeconds": 86_400}}
COLLECT = {"type": "collect", "data": {"seconds": 3_600}}
DELAY = {"type": "delay", "data": {"seconds": 3_600}}
NOT_WHILE_RUNNING = {"policy": "not_while_running"}
DAY = {"type": "delay", "data": {"seconds": 86_400}}


HANDLES = {
    "wait_for_event": ("matched", "timeout"),
    "condition": ("true", "false"),
    "wait_until": ("reached", "missed"),
}


@pytest.fixture(scope="module")
async def stage(postgres: Any, template: str) -> AsyncIterator[Stage]:
    with clone(postgres, template) as dsn:
        async with open_stage(dsn) as opened:
            yield opened


def path(*steps: dict[str, Any], trigger: dict[str, Any] | None = None, **settings: Any) -> Automation:
    """Return an automation with these steps one after the other; all handles of a step lead to the same one."""
    nodes = [{"id": "t", "type": "app_event"}, *(step | {"id": f"n{number}"} for number, step in enumerate(steps))]
    edges = []
    for source, target in pairwise(nodes):
        handles = HANDLES.get(source["type"], (None,))
        edges += [{"source": source["id"], "sourceHandle": handle, "target": target["id"]} for handle in handles]
    return Automation(
        trigger or {"type": "app_event", "event": "deposit"}, {"nodes": nodes, "edges": edges, "settings": settings}
    )


def deposit(at: int, sent: dict[str, str] = ANN, event: str = "deposit", **payload: Any) -> SentEvent:
    return SentEvent(at, event, sent, payload)


def world(*played: Action | Automation, contacts: tuple[Contact, ...] = (Contact(ANN),), **more: Any) -> World:
    automations = tuple(item for item in played if isinstance(item, Automation))
    actions = tuple(item for item in played if not isinstance(item, Automation))
    return World("2026-03-24T09:30:00+00:00", automations, contacts, actions, **more)


# Keys and numbers that jsonb writes in another way
ODD = {"plan": "pro", "amount": Decimal("1E+2"), "usd": Decimal("-0.0"), "nested": {"bb": 1, "a": [Decimal("2E+1")]}}
ODD_ATTRIBUTES = {"level": Decimal("1E+1"), "tier": Decimal("-0.00"), "é": True, "az": 1}
ALL_VALUES = "{{ payload }} {% for name in payload %}{{ name }} {% endfor %}{{ usd }} {{ contact }} {{ nested }}"
PRINT = {"type": "send_inapp", "data": {"title": "x", "body": ALL_VALUES}}
UPDATE = {"type": "update_contact", "data": {"attributes": {"zz": "{{ amount }}", "b": 1}}}
CONDITION = {"type": "condition", "data": {"filters": [{"path": "contact.plan", "operator": "eq", "value": "pro"}]}}
PRINTING = path(PRINT, HOOK, UPDATE, PRINT, WAIT, PRINT)
PLAN_MAIL = {"type": "send_email", "data": {"subject": "Hi", "body": "{{ contact.plan }}"}}
TAG = {"type": "add_tag", "data": {"tag": "a"}}
LOG_WAIT = {"type": "wait_for_event", "data": {"event": AWAITED_LOG, "timeoutSeconds": 86_400}}
PRINT_LOG = {"type": "send_inapp", "data": {"title": "{{ event }}", "body": "{{ payload }} {{ walletAddress }}"}}
HOURLY = {"messages": 1, "seconds": 3_600}
EVERY = {"type": "app_event", "eventNames": []}
REFUSED = ("refused",) * 9
KEYS = {"url": "https://a.co", "body": {"zz": "{{ size }}", "a": "x", "n": 1}}
MEMBERS = (Contact(ANN, {}, member=True), Contact(BOB, {}, member=True))
DAY_OR_WAIT = Automation(
    {"type": "app_event", "event": "deposit"},
    {
        "nodes": [
            {"id": "t", "type": "app_event"},
            {"id": "c", "type": "condition", "data": {"filters": [{"path": "size", "operator": "eq", "value": 1}]}},
            *(DAY | {"id": "d"}, WAIT | {"id": "w"}, HI | {"id": "m"}),
        ],
        "edges": [
            {"source": source, "sourceHandle": handle, "target": target}
            for source, handle, target in (
                *(("t", None, "c"), ("c", "true", "d"), ("c", "false", "w")),
                *(("d", None, "m"), ("w", "matched", "m")),
            )
        ],
        "settings": {"frequencyCap": {"messages": 1, "seconds": 3_600}},
    },
)


@pytest.mark.parametrize(
    "played",
    [
        world(path(HI | {"data": HI["data"] | {"topic": "deals"}}), deposit(0)),  # a new contact has not confirmed it
        world(path({"type": "send_webhook", "data": KEYS}), deposit(0, size=1)),  # keys in the order of jsonb
        world(
            PRINTING,
            SentEvent(0, "deposit", ANN, ODD, ODD_ATTRIBUTES),
            SentEvent(20, "paid", ANN, ODD, {"c": Decimal("3E+1")}),
        ),
        world(path(HOOK), deposit(0), deposit(20), deposit(90_045)),  # the loop guard
        world(path(WAIT, HI), deposit(0), deposit(0, event="paid"), deposit(0)),  # a batch
        world(  # the steps of an event see what the other events of its batch changed
            path(CONDITION, HI),
            SentEvent(0, "deposit", ANN, {}, {"plan": "free"}),
            SentEvent(0, "paid", ANN, {}, {"plan": "pro"}),
        ),
        world(  # the events of a batch that ends a wait are no events of the automation
            path({"type": "wait_until", "data": {"attribute": "since"}}, HI),
            SentEvent(0, "deposit", ANN, {}, {"since": "2026-03-26T09:00:00Z", "plan": "free"}),
            SentEvent(33, "bought", ANN, {}, {"plan": "pro"}),
            SentEvent(33, "sold", ANN, {}, {"since": "2026-03-01T09:00:00Z"}),
        ),
        world(path(WAIT, HI), deposit(0), deposit(86_400, event="paid")),  # at the end of the wait
        world(
            path(WAIT, HI),
            *(deposit(0, WALLET), deposit(20, {"email": ANN["email"]}), Merge(33, 0, 1), deposit(75, ANN, "paid")),
            contacts=(Contact(WALLET), Contact({"email": ANN["email"]})),
        ),
        world(path(HI, DELAY, COLLECT, HI), deposit(0), deposit(33), deposit(90_045)),  # the second joins after a wait
        world(  # the merge wakes no entry in quiet hours, and collected events of both become one message
            path(HI, COLLECT, HI, quietHours={"from": "09:00", "to": "10:30"}),
            *(deposit(0, WALLET), deposit(20, {"email": ANN["email"]}), Merge(33, 0, 1), deposit(3_690, ANN)),
            contacts=(Contact(WALLET), Contact({"email": ANN["email"]})),
        ),
        world(path(DELAY, MAIL), deposit(0), Change(20, 0, channels={"email": False}), deposit(33)),
        world(
            path(HI, trigger={"type": "segment_entered", "segment": "vip"}),
            path(DELAY, HI, trigger={"type": "broadcast"}),
            *(SegmentMove(0, 0, enters=False), SegmentMove(20, 0, enters=True), SentBroadcast(33, to_segment=True)),
            contacts=MEMBERS,
        ),
        world(path({"type": "collect", "data": {"until": "09:00"}}, HI), deposit(0), deposit(75), zone="Europe/Zurich"),
        world(path(DELAY, HI, quietHours={"from": "10:00", "to": "18:00"}), deposit(0), zone="America/New_York"),
        world(  # entries of both wait; the kept contact gets an event before the undo, the other one after it
            path(WAIT, PRINT, HI, reentry=NOT_WHILE_RUNNING),
            *(deposit(0, WALLET), deposit(20, EMAIL), Merge(33, 0, 1), deposit(75, EMAIL, event="paid"), Undo(4_507)),
            *(deposit(90_045, WALLET), deposit(90_061, EMAIL), deposit(95_203, EMAIL, event="paid")),
            contacts=(Contact(WALLET, {"plan": "pro"}, ("a",)), Contact(EMAIL, {"size": 2}, ("vip",), ("inapp",))),
        ),
        world(  # topics and closed channels of both count until the undo
            path(DELAY, NEWS, MAIL),
            *(deposit(0, WALLET), Merge(33, 1, 0), deposit(41, EMAIL), Undo(4_507), deposit(90_045, WALLET)),
            contacts=(Contact(WALLET, {}, topics={"news": False}), Contact(EMAIL, {}, topics={"news": True})),
        ),
        world(  # moved while it waits, and moved back in time for the step of its first version
            path(DELAY, HI),
            *(deposit(0), Publication(20, 0, path(DELAY, MAIL).graph, "safe"), deposit(33), MoveBack(75, 0)),
        ),
        world(
            path(WAIT, HI),
            *(deposit(0), deposit(20, WALLET), Publication(33, 0, path(DELAY, MAIL).graph, {"n1": "n1"})),
            *(deposit(75, event="paid"), Erasure(4_507, 0), deposit(90_045)),
        ),
        world(  # the wait of the first run ends with the second one, which may then enter
            path(
                DAY, HI, trigger={"type": "schedule", "cron": "17 5 28,29 * *"}, reentry={"policy": "not_while_running"}
            ),
            contacts=(Contact(ANN, {}),),
        ),
        world(  # a trial of the run knows the event that comes next
            path(DAY, trigger={"type": "schedule", "cron": "17 5 25 * *"}, goal={"event": "paid", "filters": []}),
            deposit(90_045, event="paid"),
            contacts=(Contact(ANN, {}),),
        ),
        world(  # woken in the first pause and due in the second one, which cancels it
            path(DELAY, WAIT, HI, HOOK),
            *(deposit(0), Pause(47, 0), deposit(75), Resume(4_999, 0, cancel_overdue=False), deposit(90_045)),
            *(Pause(92_003, 0), deposit(95_203, event="paid"), Resume(280_001, 0, cancel_overdue=True)),
        ),
        world(  # an imported event started nothing
            path(HI, trigger={"type": "app_event", "eventNames": []}),
            *(deposit(0), Import(20, 0, {"zz": 2}), Pause(47, 0), Resume(4_999, 0, cancel_overdue=False)),
        ),
        world(path(DAY, HI, reentry=NOT_WHILE_RUNNING), deposit(0), deposit(86_400), deposit(90_045)),  # at the end
        world(  # the message for an event does not count for one that is due at its moment
            path(HI), path(DAY, HI, frequencyCap={"messages": 1, "seconds": 3_600}), deposit(0), deposit(86_400)
        ),
        world(  # one entry is due, a younger one is woken, and another one starts, all at the moment of a batch
            DAY_OR_WAIT, *(deposit(0, size=1), deposit(33), deposit(86_400), deposit(86_400, event="paid"))
        ),
        world(  # the erased contact was two
            path(HI),
            *(deposit(0, WALLET), deposit(20, EMAIL), Merge(27, 0, 1), Erasure(33, 0), deposit(75, WALLET)),
            contacts=(Contact(WALLET), Contact(EMAIL)),
        ),
        # Failed deliveries: a message counts from its first attempt, also while it is tried again, with its first text.
        world(path(MAIL, HI, frequencyCap=HOURLY), deposit(0), deposit(4), answers=("refused",)),
        world(path(MAIL, frequencyCap=HOURLY), deposit(0), deposit(3_605), answers=("refused",)),
        world(path(MAIL, frequencyCap=HOURLY), deposit(0), deposit(75), answers=REFUSED),
        world(path(MAIL, frequencyCap=HOURLY), deposit(0), deposit(90), answers=("no_answer", *REFUSED)),
        world(
            path(PLAN_MAIL, HI),
            *(SentEvent(at, name, ANN, {}, {"plan": name}) for at, name in ((0, "deposit"), (4, "paid"))),
            answers=("refused",),
        ),
        world(path(HOOK, HI), path(MAIL, HI), deposit(0), deposit(20), answers=("no_answer", "later", "refused")),
        world(path(HOOK, HI), deposit(0), answers=("refused",), late=True),  # it fails when the engine is back
        world(path(HOOK), deposit(0), deposit(75), answers=("gone",)),  # nothing more is sent to the URL
        # An address that a delivery closed is closed for the automations that come next, at the same event, too.
        world(path(MAIL, HI), path(MAIL, HI), deposit(0), deposit(20), answers=("gone",)),
        world(path(MAIL), deposit(0), Pause(5, 0), Resume(4_999, 0, cancel_overdue=False), answers=("refused",)),
        world(path(MAIL), deposit(0), Pause(5, 0), Resume(280_001, 0, cancel_overdue=True), answers=("refused",)),
        world(path(HI, HOOK, HI, frequencyCap=HOURLY), deposit(0), answers=("refused",)),  # no webhook counts
        world(  # reports of mail servers, which are events
            path(MAIL),
            path(HI, trigger=EVERY),
            *(deposit(0), Report(53, 0, "delayed"), deposit(75), Report(4_021, 0, "complained"), deposit(90_045)),
        ),
        world(path(MAIL), deposit(0), Report(53, 0, "bounced"), deposit(75)),
        world(  # the address in the event is that of a contact that wants no emails
            path(MAIL, HI),
            *(deposit(0, WALLET), deposit(33, WALLET | EMAIL)),
            contacts=(Contact(EMAIL, {}, opted_out=("email",)), Contact(WALLET)),
        ),
        world(  # an erased contact comes back, and still wants no emails
            path(MAIL, HI),
            *(deposit(0), Change(20, 0, channels={"email": False}), Erasure(33, 0), deposit(75), deposit(90_045)),
        ),
        # Logs of a chain start entries, end waits, and are goals.
        world(
            path(LOG_WAIT, PRINT_LOG, LOG_WAIT, PRINT_LOG, trigger=LOGS),
            path(LOG_WAIT, LOG_WAIT, PRINT_LOG),
            *(deposit(0), Transfer(59, 0), Transfer(3_807, 0), Transfer(92_501, 0)),
        ),
        world(
            path(DAY, PRINT_LOG, trigger=LOGS, goal={"event": AWAITED_LOG, "filters": []}),
            *(deposit(0), Transfer(59, 0), Transfer(3_807, 0), Transfer(92_501, 0)),
        ),
        world(  # a log that steps wait for is no custom event
            path(LOG_WAIT, trigger=EVERY),
            *(deposit(0), Publication(41, 0, path(HI, trigger=EVERY).graph, "safe"), Transfer(59, 0), deposit(75)),
        ),
        # An engine is killed while the contact is merged, and while its automation is moved or paused.
        world(
            path(TAG, WAIT, HI),
            *(deposit(0, WALLET), Merge(5, 0, 1), deposit(20, WALLET, "paid")),
            contacts=(Contact(WALLET), Contact(EMAIL, {}, ("b",))),
            kills=(Kill(9, answered=False),),
        ),
        world(
            path(DELAY, HOOK, HI),
            *(deposit(0), Publication(5, 0, path(DELAY, MAIL, HI).graph, "safe"), Pause(47, 0)),
            Resume(4_999, 0, cancel_overdue=False),
            kills=(Kill(9, answered=True), Kill(12, answered=False)),
        ),
        world(
            path(DELAY, UPDATE, HI), deposit(0, amount=1), Import(20, 0, {"zz": 2, "size": 3}), deposit(33, amount=4)
        ),
        world(
            path(DELAY, HI, trigger={"type": "schedule", "cron": "17 5 */3 * *", "segment": "vip"}),
            *(SegmentMove(20, 0, enters=False), SegmentMove(261_007, 1, enters=False)),
            contacts=MEMBERS,
        ),
        world(  # the address of the first contact was opened again: only its entries are left out of the backtest
            path(MAIL, HI),
            *(deposit(0), deposit(20, BOB), Change(33, 0, channels={"email": True}), deposit(75), deposit(90_045, BOB)),
            contacts=(Contact(ANN), Contact(BOB)),
            answers=("gone",),
        ),
        # Deliveries that fail after an engine was killed
        world(path(HOOK, HI), deposit(0), answers=("refused", "no_answer"), kills=(Kill(9, answered=False),)),
        world(
            path(MAIL, HI), deposit(0), answers=("refused",), kills=(Kill(12, answered=True), Kill(20, answered=True))
        ),
    ],
)
async def test_the_interpreters_agree_on_these_worlds(stage: Stage, played: World) -> None:
    counts = await check(stage, played)
    assert counts["entries"]
    assert any(counts[f"trial{part}"] for part in ("", " of one moment", " before a failure"))


async def no_history(*_: Any) -> ContactHistory:
    return ContactHistory()


async def no_owners(*_: Any) -> dict[Any, Any]:
    return {}


async def one_more(*arguments: Any) -> Any:
    counted: Any = await preview(*arguments)
    return msgspec.structs.replace(counted, contacts=counted.contacts + 1)


def never_paused(versions: Any, _: Any, state: Any) -> tuple[LiveChange, ...]:
    return live_changes(versions, (), state)


def no_failures(_: Any) -> dict[str, Any]:
    return {}


BROADCAST = world(path(HI, trigger={"type": "broadcast"}), SentBroadcast(0, to_segment=True), contacts=MEMBERS)
REFUSED_ONCE = world(path(MAIL), deposit(0), answers=("refused",))
GIVEN_UP = world(
    path(MAIL, frequencyCap={"messages": 1, "seconds": 5 * 86_400}), deposit(0), deposit(90_045), answers=REFUSED
)
REENTRY = world(path(HI, reentry={"policy": "once"}), deposit(0), deposit(20))
PAUSED = world(path(HI), deposit(0), Pause(47, 0), deposit(75), Resume(4_999, 0, cancel_overdue=False))
CAPPED = world(path(HI), path(HI, frequencyCap={"messages": 1, "seconds": 60}), deposit(0))
NO_EMAIL = world(path(MAIL), deposit(0, WALLET), contacts=(Contact(WALLET),))
WITH_EMAIL = {"type": "app_event", "event": "deposit", "where": "email is defined"}
DEFECTS = [
    ("trial", trial, "past_of", no_history, REENTRY),
    ("explanation before", explain, "past_of", no_history, REENTRY),
    (
        "dry run",
        ingest,
        "find_all_owners",
        no_owners,
        world(path(HI, trigger=WITH_EMAIL), deposit(0), deposit(20, WALLET)),
    ),
    (
        "trial",
        engine_facts,
        "_later_events",
        lambda *_: (),
        world(path(WAIT, HI), deposit(0), deposit(20, event="paid")),
    ),
    ("backtest", Timeline, "_other_messages_at", lambda *_: (), CAPPED),
    ("backtest", notebook, "RetryPolicy", lambda _: DEFAULT_POLICY, NO_EMAIL),
    ("preview", broadcasts, "preview", one_more, BROADCAST),
    ("backtest: differences", simulate_bucket, "live_changes", never_paused, PAUSED),
    ("backtest: differences", simulate_bucket, "recorded_failures", no_failures, REFUSED_ONCE),
    ("backtest: differences", Timeline, "_give_up", lambda *_: None, GIVEN_UP),
]


@pytest.mark.parametrize(("interpreter", "owner", "name", "defect", "played"), DEFECTS)
async def test_a_planted_defect_is_found(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, interpreter: str, owner: Any, name: str, defect: Any, played: World
) -> None:
    await check(stage, played)
    monkeypatch.setattr(owner, name, defect)
    with pytest.raises(DifferenceError, match=f"^{interpreter}"):
        await check(stage, played)


def test_the_week_is_a_seed() -> None:
    assert seed_of("week", date(2026, 1, 1)) == seed_of("week", date(2025, 12, 29)) == 202601
    assert parts_of(7, 120) == [(7_000, 50), (7_001, 50), (7_002, 20)]
