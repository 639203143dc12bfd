"""Strategies for random worlds: automations, contacts with pasts, and what happens to them for nine days.

The repr of a world is the Python expression that makes it, so a failure can be pasted into a test.
"""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from hypothesis import strategies as st

from tests.chain.scripted import CONTRACT
from tests.engine.killing import KILLS, MAX_KILLS, RETRIES, Kill
from tests.engine.test_as_predicted import next_versions, waiting_paths
from tests.inapp.wallet import evm_wallet
from tests.language.strategies import EVENTS, STEPS, TAGS, WHERES, graph_of, sound_graphs, ways_of
from tests.language.strategies import filters as filter_lists
from workbench.language.moves import MoveMode

PERIOD = timedelta(days=9)
# Clocks are set forward on 29 March in Europe and on 8 March in America.
STARTS = ("2026-03-24T09:30:00+00:00", "2026-03-05T23:58:00+00:00", "2026-02-10T04:00:00+00:00")
# No sum of delays equals a difference of these, so two entries are rarely due at the same time.
OFFSETS = (0, 20, 33, 75, 3_690, 90_045, 261_007, 500_025)
UNDO_OFFSETS = (41, 4_507, 95_203, 300_011)
PAUSE_OFFSETS = (47, 4_999, 92_003, 280_001)
MERGE_OFFSETS = (27, 61, 3_711, 91_009)
TRANSFER_OFFSETS = (59, 3_807, 92_501, 262_003)
REPORT_OFFSETS = (53, 4_021, 93_007, 270_013)
NAMES = ("deposit", "deposit", "deposit", *EVENTS)
SEGMENT = "vip"


class Contact(msgspec.Struct, frozen=True):
    """A contact, by the identifiers that its own backend knows.

    `past`: the attributes of an event two days before the world begins; None: it is first seen in the world. `topics`:
    what it chose (True: wanted). `member`: of the segment.
    """

    identifiers: dict[str, str]
    past: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    opted_out: tuple[str, ...] = ()
    topics: dict[str, bool] = {}
    member: bool = False


class SentEvent(msgspec.Struct, frozen=True):
    """An event `at` so many seconds after the world begins. `sent`: its identifiers."""

    at: int
    event: str
    sent: dict[str, str]
    payload: dict[str, Any]
    attributes: dict[str, Any] = {}

    @property
    def body(self) -> dict[str, Any]:
        return {"event": self.event, "contact": self.sent, "payload": self.payload, "attributes": self.attributes}


class Change(msgspec.Struct, frozen=True):
    """A person changes tags and consents of a contact, by its position in the world."""

    at: int
    contact: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    topics: dict[str, bool] = {}
    channels: dict[str, bool] = {}


class Import(msgspec.Struct, frozen=True):
    """A file of history is imported that has an event with attributes of a contact at this moment."""

    at: int
    contact: int
    attributes: dict[str, Any]


class Merge(msgspec.Struct, frozen=True):
    """A person merges two contacts, if both exist."""

    at: int
    keep: int
    absorbed: int


class Undo(msgspec.Struct, frozen=True):
    """A person undoes the latest merge that stands."""

    at: int


class Erasure(msgspec.Struct, frozen=True):
    """A person erases a contact."""

    at: int
    contact: int


class Publication(msgspec.Struct, frozen=True):
    """A person publishes another version of an automation; `mode`: how waiting entries are moved to it."""

    at: int
    automation: int
    graph: dict[str, Any]
    mode: MoveMode


class MoveBack(msgspec.Struct, frozen=True):
    """A person moves the entries of the latest move of an automation back."""

    at: int
    automation: int


class Pause(msgspec.Struct, frozen=True):
    """A person pauses an automation."""

    at: int
    automation: int


class Resume(msgspec.Struct, frozen=True):
    """A person resumes an automation; `cancel_overdue`: without the entries that came due in the meantime."""

    at: int
    automation: int
    cancel_overdue: bool


class Report(msgspec.Struct, frozen=True):
    """A mail server reports the latest email to a contact, or its address: it bounced, or its recipient complained.

    `delayed`: a bounce that says nothing about the address.
    """

    at: int
    contact: int
    kind: Literal["bounced", "delayed", "complained"]


class Transfer(msgspec.Struct, frozen=True):
    """A contract logs that a contact received tokens: as many as there are actions up to this one."""

    at: int
    contact: int


class SegmentMove(msgspec.Struct, frozen=True):
    """A refresh of the segment finds that a contact entered or left it."""

    at: int
    contact: int
    enters: bool


class SentBroadcast(msgspec.Struct, frozen=True):
    """A broadcast to the segment, or to all contacts."""

    at: int
    to_segment: bool


Action: TypeAlias = (
    SentEvent
    | Change
    | Import
    | Merge
    | Undo
    | Erasure
    | Publication
    | MoveBack
    | Pause
    | Resume
    | Report
    | Transfer
    | SegmentMove
    | SentBroadcast
)


Answer: TypeAlias = Literal["sent", "refused", "later", "no_answer", "gone"]
"""The answer to a delivery: refused for now; refused until an hour later; none, so it may have arrived; for ever."""


LOGS = {
    "type": "onchain_event",
    "chainId": 5,
    "contract": CONTRACT,
    "signature": "Transfer(address indexed from, address indexed to, uint256 value)",
    "walletArg": "to",
}


class Automation(msgspec.Struct, frozen=True):
    """An automation: its trigger spec, and its graph without the pins of publication."""

    trigger: dict[str, Any]
    graph: dict[str, Any]


class World(msgspec.Struct, frozen=True):
    """A world. `actions`: in order of time; events of one moment are a batch. `zone`: of the organization.

    `late`: engines run only at the end of the period. `kills`: how engines are killed. `in_notebook`: backtests are
    compared too, as a notebook makes them, which takes as long as all the rest. `answers`: those to the first
    deliveries to each contact; later ones are accepted.
    """

    start: str
    automations: tuple[Automation, ...]
    contacts: tuple[Contact, ...]
    actions: tuple[Action, ...]
    zone: str | None = None
    late: bool = False
    kills: tuple[Kill, ...] = ()
    in_notebook: bool = True
    answers: tuple[Answer, ...] = ()

    @property
    def begin(self) -> datetime:
        return datetime.fromisoformat(self.start)

    @property
    def lags(self) -> bool:
        """Whether engines may be late, so that what follows the real time differs from the simulation's clock."""
        return self.late or bool(self.kills)


class Engines(NamedTuple):
    """What happens to the engines of a world. `plain`: it has one contact, which nothing changes but its entries."""

    late: bool = False
    killed: bool = False
    plain: bool = False


class Failures(NamedTuple):
    """Whether the deliveries of a world have answers, and whether mail servers report."""

    answered: bool = False
    reported: bool = False


ENGINES = (
    *[Engines()] * 9,
    *[Engines(killed=True)] * 3,
    *[Engines(late=True, plain=True)] * 2,
    Engines(killed=True, plain=True),
    Engines(late=True, killed=True, plain=True),
)
FAILURES = (
    *[Failures()] * 5,
    *[Failures(answered=True)] * 2,
    Failures(reported=True),
    Failures(answered=True, reported=True),
)
# The last ones use up all attempts of a message.
ANSWERS = st.lists(st.sampled_from([*get_args(Answer), "refused"]), min_size=1, max_size=4).map(tuple) | st.just(
    ("refused",) * (len(RETRIES.delays_s or ()) + 1)
)
IDENTIFIERS = (
    {"walletAddress": evm_wallet("a"), "email": "ann@b.co", "externalId": "ann"},
    {"walletAddress": evm_wallet("b"), "email": "bob@b.co", "externalId": "bob"},
)
_DATE = "2026-03-{}T09:00:00Z"
SINCE = st.sampled_from([_DATE.format(day) for day in ("01", "26", "27")] + ["2026-03-26", "yesterday"])
ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "plan": st.sampled_from(["pro", "free", 1, "de-at", "Asia/Tokyo"]),
        "size": st.sampled_from([1, 2.5, Decimal("1E+1")]),
        "locale": st.sampled_from(["de", "de_AT", "fr"]),
        "since": SINCE,
        "timezone": st.sampled_from(["Asia/Tokyo", "America/New_York", "nowhere"]),
        "é": st.just(True),
    },
)
PAYLOADS = st.fixed_dictionaries(
    {},
    optional={
        "plan": st.sampled_from(["pro", 1, 2.5, None]),
        "size": st.sampled_from(["pro", 1, 2.5, Decimal("1E+2"), Decimal("-0.0"), None]),
        "é": st.sampled_from([{"bb": 1, "a": [Decimal("2E+1")]}, "x"]),
        "since": SINCE,
        "events": st.just(3),
    },
)
EVENT_TRIGGERS = st.one_of(
    st.just({"type": "app_event", "event": "deposit"}),
    st.just({"type": "app_event", "event": "deposit"}),
    st.just({"type": "app_event", "eventNames": ["deposit", "paid"]}),
    st.just({"type": "app_event", "eventNames": []}),  # every event
    st.fixed_dictionaries(
        {"type": st.just("app_event"), "event": st.just("deposit")},
        optional={"where": st.none() | WHERES, "filters": filter_lists},
    ),
    st.fixed_dictionaries(
        {"type": st.just("app_event"), "eventNames": st.just(["paid", "deposit"])}, optional={"where": WHERES}
    ),
    st.fixed_dictionaries({"type": st.just("app_event"), "eventNames": st.just([])}, optional={"where": WHERES}),
)
START_TRIGGERS = st.sampled_from(
    [
        {"type": "segment_entered", "segment": SEGMENT},
        {"type": "segment_left", "segment": SEGMENT},
        {"type": "broadcast"},
        {"type": "segment_entered", "segment": SEGMENT, "where": "contact.plan == 'pro' or email is defined"},
        {"type": "schedule", "cron": "17 5,19 */3 * *", "timezone": "Europe/Zurich"},
        {"type": "schedule", "cron": "41 */16 * * *", "segment": SEGMENT},
    ]
)
LOG_TRIGGERS = st.sampled_from(
    [LOGS, LOGS, LOGS | {"where": "value | number > 3"}, LOGS | {"where": "contact.plan == 'pro' or email is defined"}]
)
AWAITED_LOG = f"{CONTRACT}:Transfer"
SHARED_SETTINGS = st.sampled_from(  # settings by which the entries of a contact affect each other
    (
        {},
        {},
        {"reentry": {"policy": "not_while_running"}},
        {"reentry": {"policy": "once_per", "days": 1}},
        {"frequencyCap": {"messages": 1, "seconds": 5 * 86_400}},
        {"frequencyCap": {"messages": 1, "per": "day"}},
    )
)
HI = {
    "nodes": [
        {"id": "t", "type": "app_event", "data": {}},
        {"id": "m", "type": "send_inapp", "data": {"title": "Hi", "body": "there"}},
    ],
    "edges": [{"source": "t", "sourceHandle": None, "target": "m"}],
    "settings": {},
}


@st.composite
def automations(draw: st.DrawFn) -> Automation:
    drawn = draw(sound_graphs() | sound_graphs() | waiting_paths())
    can_start = not graph_of(drawn).collects
    # Publication adds the snippets.
    graph = {"nodes": drawn["nodes"], "edges": drawn["edges"], "settings": drawn["settings"] | draw(SHARED_SETTINGS)}
    # Not of a union, in which each of the many kinds of events would count as much as all starts.
    triggers = draw(st.sampled_from([EVENT_TRIGGERS, EVENT_TRIGGERS, START_TRIGGERS])) if can_start else EVENT_TRIGGERS
    trigger = draw(triggers)
    return Automation(trigger, graph)


@st.composite
def contacts(draw: st.DrawFn, number: int) -> Contact:
    known = IDENTIFIERS[number]
    names = draw(
        st.sampled_from([tuple(known), ("walletAddress", "email"), ("walletAddress",), ("email",), ("externalId",)])
    )
    identifiers = {name: known[name] for name in names}
    if draw(st.booleans()):
        return Contact(identifiers)
    return Contact(
        identifiers,
        draw(ATTRIBUTES),
        draw(st.sampled_from([(), (), ("a",), ("vip", "b")])),
        draw(st.sampled_from([(), (), (), ("email",), ("inapp",), ("webhook", "email")])),
        draw(st.sampled_from([{}, {}, {"news": False}, {"deals": True}])),
        draw(st.booleans()),
    )


@st.composite
def actions(draw: st.DrawFn, own: tuple[Contact, ...], at: int, number: int, plain: bool) -> Action:
    """`plain`: the first contact sends an event that changes nothing."""
    others = ("change", "import", "merge", "enter", "leave", "broadcast", "erase")
    kind = "event" if plain else draw(st.sampled_from(("event",) * 8 + others))
    contact = 0 if plain else draw(st.integers(0, len(own) - 1))
    match kind:
        case "change":
            tags = st.lists(TAGS, max_size=1).map(tuple)
            topics = st.sampled_from([{}, {"news": False}, {"deals": True}, {"news": True}])
            channels = st.sampled_from([{}, {"inapp": False}, {"email": True}, {"email": False}])
            return Change(at, contact, draw(tags), draw(tags), draw(topics), draw(channels))
        case "import":
            return Import(at, contact, draw(ATTRIBUTES))
        case "merge" if len(own) > 1:
            return Merge(at, contact, 1 - contact)
        case "erase" if number > 1:
            return Erasure(at, contact)
        case "enter" | "leave":
            return SegmentMove(at, contact, kind == "enter")
        case "broadcast":
            return SentBroadcast(at, draw(st.booleans()))
    sent = own[contact].identifiers
    if not plain:
        way = draw(st.sampled_from(["own", "own", "own", "one", "all", "both"]))
        if way == "one":
            name = draw(st.sampled_from([*sent]))
            sent = {name: sent[name]}
        elif way == "all":  # the contact gets further identifiers
            sent = IDENTIFIERS[contact]
        elif way == "both":  # an identifier of another contact
            name = draw(st.sampled_from([*IDENTIFIERS[0]]))
            sent = sent | {name: IDENTIFIERS[1 - contact][name]}
    name = "deposit" if number == 0 else draw(st.sampled_from(NAMES))
    attributes = {} if plain else draw(st.just({}) | ATTRIBUTES)
    return SentEvent(at, name, sent, draw(PAYLOADS), attributes)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    # While engines are late or killed, caps, quiet hours and retries follow the real time (limits.py).
    late, kills, plain = draw(st.sampled_from(ENGINES))
    on_chain = not plain and draw(st.integers(0, 7)) == 7
    one = plain or on_chain  # which contact had a wallet at the moment of a log is not stored
    own = tuple(draw(contacts(number)) for number in range(1 if one else draw(st.sampled_from([1, 2, 2]))))
    if on_chain:
        own = (msgspec.structs.replace(own[0], identifiers=IDENTIFIERS[0] | own[0].identifiers),)
    if plain:
        own = (msgspec.structs.replace(own[0], identifiers=IDENTIFIERS[0], opted_out=()),)
    drawn = [draw(automations())]
    other = draw(st.sampled_from(["", "", "older", "younger", "two"]))
    if other == "two":
        drawn.append(draw(automations()))
    elif other:
        drawn.insert(0 if other == "older" else 1, Automation({"type": "app_event", "event": "deposit"}, HI))
    # Only the first may start by a schedule, and only one by a broadcast: a trial names the kind of a start only.
    drawn = [
        msgspec.structs.replace(item, trigger={"type": "app_event", "event": "deposit"})
        if (item.trigger["type"] == "schedule" and (plain or number))
        or (number and item.trigger["type"] == drawn[0].trigger["type"] == "broadcast")
        else item
        for number, item in enumerate(drawn)
    ]
    if on_chain:
        drawn = [draw(reading_logs(item)) for item in drawn]
    answered, reported = draw(st.sampled_from(FAILURES))
    if answered or reported:
        drawn[0] = draw(sending(drawn[0]))
    if plain:
        drawn = [
            msgspec.structs.replace(item, graph=without(item.graph, "frequencyCap", "quietHours")) for item in drawn
        ]
    times = [0, *sorted(draw(st.sets(st.sampled_from(OFFSETS[1:]), min_size=draw(st.integers(0, 3)), max_size=4)))]
    played = [draw(actions(own, at, number, plain)) for number, at in enumerate(times)]
    batched = draw(st.sampled_from([0, 0, 0, *times]))
    if batched:
        changes = st.just({}) if plain else st.just({}) | ATTRIBUTES
        batch = [
            SentEvent(batched, draw(st.sampled_from(NAMES)), own[0].identifiers, draw(PAYLOADS), draw(changes))
            for _ in range(2)
        ]
        others = [action for action in played if action.at != batched]
        played = sorted([*others, *batch], key=lambda action: action.at)
    if any(item.trigger.get("eventNames") == [] for item in drawn):  # in a backtest imported events start entries, too
        played = [action for action in played if not isinstance(action, Import)]
    if not plain:
        more = [*draw(undone(tuple(drawn), tuple(played), len(own))), *draw(pauses(tuple(drawn)))]
        if reported:
            kind = draw(st.sampled_from(["bounced", "delayed", "complained"]))
            more.append(Report(draw(st.sampled_from(REPORT_OFFSETS)), draw(st.integers(0, len(own) - 1)), kind))
        if on_chain:
            moments = draw(st.lists(st.sampled_from(TRANSFER_OFFSETS), min_size=1, max_size=3, unique=True))
            more += [Transfer(at, 0) for at in moments]
        played = sorted([*played, *more], key=lambda action: action.at)
    return World(
        draw(st.sampled_from(STARTS)),
        tuple(drawn),
        own,
        tuple(played),
        draw(st.sampled_from([None, None, "Europe/Zurich", "America/New_York"])),
        late,
        tuple(draw(KILLS))[: MAX_KILLS if plain else 3] if kills else (),
        # A backtest takes as long as all other comparisons.
        draw(st.integers(0, 9))
        >= (6 if answered or any(isinstance(action, Undo | Publication | Pause | Report) for action in played) else 9),
        draw(ANSWERS) if answered else (),
    )


@st.composite
def undone(draw: st.DrawFn, drawn: tuple[Automation, ...], played: tuple[Action, ...], contacts: int) -> list[Action]:
    """Draw a merge and its undo, and the publication of another version, whose move may be undone."""
    free = sorted(draw(st.permutations(UNDO_OFFSETS))[:3])
    more: list[Action] = []
    merges = [action for action in played if isinstance(action, Merge)]
    merging = draw(st.sampled_from(["", "", "merge", "undo"])) if contacts > 1 else ""
    if merging and not merges:
        keep = draw(st.integers(0, 1))
        more.append(Merge(draw(st.sampled_from(MERGE_OFFSETS)), keep, 1 - keep))
    if merging == "undo":
        more.append(Undo(free.pop()))
    if draw(st.integers(0, 3)) < 3:
        return more
    number = draw(st.integers(0, len(drawn) - 1))
    graph = drawn[number].graph
    if graph is HI:
        return more
    changed = draw(next_versions(graph))
    steps = [node["id"] for node in changed["nodes"][1:]]
    former = [node["id"] for node in graph["nodes"][1:]]
    mappings = (
        st.dictionaries(st.sampled_from(former), st.sampled_from(steps), min_size=1) if former and steps else None
    )
    mode: MoveMode = draw(st.sampled_from(["none", "safe"]) if mappings is None else st.just("safe") | mappings)
    more.append(Publication(free[0], number, changed, mode))
    if draw(st.booleans()):
        more.append(MoveBack(free[1], number))
    return more


@st.composite
def pauses(draw: st.DrawFn, drawn: tuple[Automation, ...]) -> list[Action]:
    """Draw a pause of an automation. Not of one with starts: a broadcast needs one that is live."""
    by_events = [number for number, automation in enumerate(drawn) if automation.trigger["type"] == "app_event"]
    if not by_events or draw(st.integers(0, 5)) < 5:
        return []
    number = draw(st.sampled_from(by_events))
    paused_at, resumed_at = sorted(draw(st.permutations(PAUSE_OFFSETS))[:2])
    return [Pause(paused_at, number), Resume(resumed_at, number, draw(st.booleans()))]


@st.composite
def reading_logs(draw: st.DrawFn, automation: Automation) -> Automation:
    """Draw an automation that starts by logs, and one that waits for a log first, or has one as its goal."""
    trigger, graph = automation.trigger, automation.graph
    if trigger["type"] == "app_event" and not graph_of(graph).collects and draw(st.booleans()):
        trigger = draw(LOG_TRIGGERS)
    if draw(st.booleans()):
        wait = draw(STEPS["wait_for_event"]) | {"event": AWAITED_LOG}
        graph = beginning_with(graph, {"id": "log", "type": "wait_for_event", "data": wait})
    elif "goal" in graph["settings"]:
        goal = graph["settings"]["goal"] | {"event": AWAITED_LOG}
        graph = graph | {"settings": graph["settings"] | {"goal": goal}}
    return Automation(trigger, graph)


@st.composite
def sending(draw: st.DrawFn, automation: Automation) -> Automation:
    """Draw an automation whose first step is a delivery that may fail."""
    kind = draw(st.sampled_from(["send_email", "send_email", "send_webhook", "send_via"]))
    step = {"id": "send", "type": kind, "data": draw(STEPS[kind])}
    return msgspec.structs.replace(automation, graph=beginning_with(automation.graph, step))


def beginning_with(graph: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
    """Return the graph with another step before the first ones; all its handles lead to them."""
    first, *others = graph["nodes"]
    edges = [{"source": first["id"], "sourceHandle": None, "target": step["id"]}]
    for edge in graph["edges"]:
        is_first = edge["source"] == first["id"]
        edges += [edge | {"source": step["id"], "sourceHandle": way} for way in ways_of(step)] if is_first else [edge]
    return graph | {"nodes": [first, step, *others], "edges": edges}


def without(graph: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the graph without some settings."""
    return graph | {"settings": {name: value for name, value in graph["settings"].items() if name not in names}}
