"""Provides strategies for random automations, contacts and events, as JSON and as values."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from tests.inapp.wallet import evm_wallet
from workbench.language.check import check, errors
from workbench.language.codec import encode, normalize
from workbench.language.contact import ContactState
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.filter import OPERATORS
from workbench.language.graph import Graph, read_graph
from workbench.language.simulate import ScheduledEvent, read_contact
from workbench.language.trigger import Trigger

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
SIX_DAYS_AGO = (datetime.now(UTC) - timedelta(days=6)).isoformat()
# Dates around both clocks: NOW, and the real one, at which engines are tested
DATES = (
    SIX_DAYS_AGO,
    "yesterday",
    *((at + timedelta(days=days, hours=5)).isoformat() for at in (NOW, datetime.now(UTC)) for days in (0, 2, 9)),
    *(f"{at + timedelta(days=1):%Y-%m-%d}" for at in (NOW, datetime.now(UTC))),
)
EVENTS = ("paid", "bought", "sold")
PATHS = ("plan", "size", "payload.size", "contact.plan", "contact.tags", "email", "nope")
VALUES = st.sampled_from([None, True, 0, 1, 2.5, "pro", "1", [1, "pro"]])
SINCE = st.sampled_from([{"since": date} for date in DATES])
TEXTS = st.sampled_from(
    (
        "Hi",
        "Hello",
        "{{ event }}",
        "{{ size | default(0) }}",
        "{{ contact.plan | default('?') }}",
        "{{ payload }} {{ contact }}",
        "<b>{{ size }}</b>",
        "{{ nope }}",
        "a\nb",
        "{{ events | length }} {% for e in events %}{{ e.event }} {{ e.plan | default('-') }} {% endfor %}",
    )
)
SNIPPETS = {
    "sign": {"version": 3, "body": "{{ contact.plan | default('?') }} {{ plan | default('-') }}"},
    "layout": {"version": 1, "body": '<i>{% include "sign" %}</i>{% if size %}{{ size }}{% endif %}'},
}
MESSAGE_TEXTS = TEXTS | st.sampled_from(
    ('{% include "sign" %}', 'Hi {%- include "layout" %}', "{% include 'layout' %}")
)
TOPICS = st.sampled_from(["news", "news", "deals"])
DECLINED = ("deals",)  # which needs a confirmation
LOCALES = st.sampled_from(["de", "de_at", "FR-ca", "{{ plan }}"])
TAGS = st.sampled_from(["a", "b", "vip"])
CLOCKS = st.sampled_from(["00:00", "02:30", "09:00", "23:59"])
WEEKDAYS = st.sampled_from([[1], [6, 7], [1, 2, 3, 4, 5]])
SECONDS = st.sampled_from([1, 60, 3_600, 86_400, 5 * 86_400])


def _data(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(fields)


def _message(
    optional: dict[str, st.SearchStrategy[Any]] | None = None, **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    missing = st.sampled_from(["fail", "skip", "skip"])
    return st.fixed_dictionaries(fields, optional={"onMissing": missing, "topic": TOPICS} | (optional or {}))


def _localized(
    optional: dict[str, st.SearchStrategy[Any]] | None = None, **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    locales = st.dictionaries(st.sampled_from(["de", "de-AT", "fr_ca"]), _data(**fields), min_size=1, max_size=2)
    return _message({"locales": locales} | (optional or {}), **fields)


filters = st.lists(
    _data(
        path=st.sampled_from(PATHS),
        operator=st.sampled_from([*OPERATORS, "gt"]),
        value=VALUES,
    ),
    max_size=2,
)  # fmt: skip
WHERES = st.sampled_from(
    (
        "size > 1",
        "size >= 1 and plan != 'pro'",
        "contact.plan in ['pro', 'free'] or not size < 2.5",
        "payload.size * 2 == 5",
        "nope == 1 or plan | length > 2",
        "'pro' in plan",
        "'vip' not in contact.tags",
        "since | days_since >= 7 or size > 2",
        "since | date < '2026-11-25' and (size | default(3)) > 2",
        "email is defined",
        "plan",
        "events | length > 1 and events[0].size == 1",
    )
)
splits = st.sampled_from([(50, 50), (100, 0), (33, 33, 34), (1, 99)]).map(
    lambda percents: [{"handle": f"way{index}", "percent": percent} for index, percent in enumerate(percents)]
)


def _filtering(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({**fields, "filters": filters}, optional={"where": WHERES})


STEPS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "send_inapp": _localized(title=MESSAGE_TEXTS, body=MESSAGE_TEXTS),
    "send_email": _localized(
        {"trackClicks": st.booleans()}, subject=MESSAGE_TEXTS, body=MESSAGE_TEXTS | st.just("{{ preferences_url }}")
    )
    | _message(subject=MESSAGE_TEXTS, body=st.just("{{ confirm_url }}"), confirms=TOPICS),
    "send_webhook": _message(
        url=st.sampled_from(["https://a.co", "https://a.co/{{ plan }}"]),
        body=st.none() | MESSAGE_TEXTS | _data(zz=MESSAGE_TEXTS, a=MESSAGE_TEXTS, n=st.just(Decimal("1E+1"))),
    ),
    "send_via": _message(
        {"locales": st.dictionaries(st.sampled_from(["de", "fr_ca"]), _data(text=MESSAGE_TEXTS), min_size=1)},
        connection=st.just("chat"),
        fields=st.dictionaries(st.sampled_from(["text", "to"]), MESSAGE_TEXTS | st.just(1), max_size=2),
    ),
    "add_tag": _data(tag=TAGS),
    "remove_tag": _data(tag=TAGS),
    "update_contact": _data(
        attributes=st.dictionaries(st.sampled_from(["plan", "size"]), TEXTS | st.integers(0, 2), min_size=1)
        | _data(since=st.sampled_from(DATES))
        | _data(locale=LOCALES)
    ),
    "condition": _filtering(),
    "delay": _data(seconds=SECONDS),
    "wait_for_event": _filtering(event=st.sampled_from(EVENTS), timeoutSeconds=SECONDS),
    "wait_until": st.fixed_dictionaries({"time": CLOCKS}, optional={"weekdays": WEEKDAYS})
    | st.fixed_dictionaries(
        {"attribute": st.sampled_from(["since", "contact.plan", "payload.since"])},
        optional={
            "time": CLOCKS,
            "offsetSeconds": st.sampled_from([-3 * 86_400, 86_400]),
            "weekdays": WEEKDAYS,
            "timezoneAttribute": st.just("plan"),
        },
    ),
    "collect": st.fixed_dictionaries(
        {}, optional={"key": st.sampled_from(["plan", "payload.size"]), "max": st.sampled_from([2, 3])}
    ).flatmap(
        lambda data: st.sampled_from([{"seconds": 3_600}, {"seconds": 100_000}, {"until": "09:00"}]).map(data.__or__)
    ),
    "split": _data(branches=splits),
    "exit": st.just({}),
}  # fmt: skip
nodes = st.sampled_from(list(STEPS)).flatmap(lambda kind: STEPS[kind].map(lambda data: {"type": kind, "data": data}))
settings = st.fixed_dictionaries(
    {},
    optional={
        "reentry": st.sampled_from(
            [{"policy": "once"}, {"policy": "once_per", "days": 2}, {"policy": "not_while_running"}]
        ),
        "goal": _filtering(event=st.sampled_from(EVENTS)),
        "quietHours": st.sampled_from([{"from": "22:00", "to": "08:00"}, {"from": "09:30", "to": "10:30"}]),
        "frequencyCap": _data(messages=st.integers(1, 2), seconds=SECONDS)
        | st.sampled_from([{"messages": 1, "per": "day"}, {"messages": 2, "per": "day", "timezoneAttribute": "plan"}]),
        "timezone": st.sampled_from(["Europe/Zurich", "America/New_York"]),
        "holdout": st.sampled_from([30, 50]),
        "localeAttribute": st.sampled_from(["locale", "plan"]),
        "defaultLocale": st.sampled_from(["en", "de-AT"]),
    },
)  # fmt: skip


def ways_of(node: dict[str, Any]) -> list[str | None]:
    """Return the handles of a node that is given as JSON."""
    match node["type"]:
        case "condition":
            return ["true", "false"]
        case "wait_for_event":
            return ["matched", "timeout"]
        case "wait_until":
            return ["reached", "missed"] if "attribute" in node["data"] else [None]
        case "split":
            return [branch["handle"] for branch in node["data"]["branches"]]
        case "exit":
            return []
        case _:
            return [None]


@st.composite
def sound_graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Return a graph that can be published: a trigger, no cycles, every node reachable."""
    steps = draw(st.lists(nodes, min_size=1, max_size=7))
    first = draw(st.sampled_from(["app_event", "app_event", "app_event", "teleport"]))  # the last starts entries, too
    written = [{"id": "0", "type": first}, *(step | {"id": str(number)} for number, step in enumerate(steps, 1))]
    edges: list[dict[str, Any]] = []
    free = [("0", None)]
    for node in written[1:]:
        if not free:
            break
        taken = draw(st.lists(st.sampled_from(free), min_size=1, max_size=2, unique=True)) if edges else free
        edges += [{"source": source, "sourceHandle": handle, "target": node["id"]} for source, handle in taken]
        free = [end for end in free if end not in taken] + [(node["id"], way) for way in ways_of(node)]
    reached = {"0"} | {edge["target"] for edge in edges}
    leaving = {edge["source"] for edge in edges}
    kept_nodes = [node for node in written if node["id"] in reached]
    kept_nodes = [{"id": node["id"], "type": "exit"} if _has_no_edges(node, leaving) else node for node in kept_nodes]
    for _ in range(draw(st.integers(0, 2))):  # several edges from one handle, if that can be published
        moved, fork = draw(st.sampled_from(edges)), draw(st.sampled_from(edges))
        ends = {key: fork[key] for key in ("source", "sourceHandle")}
        forked = [*(edge for edge in edges if edge is not moved), moved | ends]
        if not errors(check(Trigger(), graph_of({"nodes": kept_nodes, "edges": forked, "snippets": SNIPPETS}))):
            edges = forked
    return {"nodes": kept_nodes, "edges": edges, "settings": draw(settings), "snippets": SNIPPETS}


def _has_no_edges(node: dict[str, Any], leaving: set[str]) -> bool:
    return len(ways_of(node)) > 1 and node["id"] not in leaving


@st.composite
def any_graphs(draw: st.DrawFn) -> dict[str, Any]:
    """Return an invalid graph: loops, duplicate ids, missing ends, unknown kinds, invalid templates and settings."""
    ids = [str(number) for number in range(draw(st.integers(0, 6)))]
    odd = st.sampled_from(
        [{"type": "teleport"}, {"type": "add_tag", "data": {}}, {"type": "split", "data": {"branches": [1]}}]
    )
    kinds = (
        nodes
        | odd
        | st.just({"type": "app_event"})
        | STEPS["send_inapp"].map(lambda data: {"type": "send_inapp", "data": data | {"title": "{{"}})
    )
    written = [draw(kinds) | {"id": draw(st.sampled_from([node_id, node_id, node_id, ids[0]]))} for node_id in ids]
    ends = st.sampled_from([*ids, "?"])
    handles = st.sampled_from([None, "true", "false", "matched", "timeout", "reached", "missed", "way0", "way1"])
    edges = draw(st.lists(_data(source=ends, target=ends, sourceHandle=handles), max_size=10)) if ids else []
    return {"nodes": written, "edges": edges, "settings": draw(settings | st.just({"goal": 5}))}


def graph_of(written: dict[str, Any]) -> Graph:
    """Return the graph that is read from JSON."""
    graph = read_graph(normalize(written))
    assert isinstance(graph, Graph), graph
    return graph


contacts = st.tuples(
    st.sampled_from(["c1", "c2", "c3"]),
    st.sampled_from([Identifiers(evm_wallet("a"), "ann@b.co")] * 4 + [Identifiers(evm_wallet("a")), Identifiers()]),
    st.dictionaries(
        st.sampled_from(["plan", "size", "locale"]), st.sampled_from(["pro", 1, "de_AT"]), max_size=2
    ).flatmap(
        lambda attributes: st.sampled_from(
            [attributes, attributes | {"timezone": "Asia/Tokyo"}, attributes | {"since": DATES[3]}]
        )
    ),
    st.lists(TAGS, max_size=2, unique=True).map(tuple),
).map(lambda parts: ContactState(*parts))  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Return a valid event of some contact."""
    payload = draw(
        st.dictionaries(
            st.sampled_from(["plan", "size", "since"]),
            st.sampled_from(["pro", 1, 2.5, None, ["pro"], "2026-11-14T09:00:00Z"]),
        )
    )
    named = st.dictionaries(st.sampled_from(["plan", "locale"]), st.sampled_from(["pro", "free", "de-at"]))
    attributes = draw(named | SINCE)
    body = {
        "event": draw(st.sampled_from(EVENTS)),
        "contact": {"externalId": "u"},
        "payload": payload,
        "attributes": attributes,
    }
    event = read_event(encode(body), 0)
    assert isinstance(event, Event), event
    return event


offsets = st.sampled_from([1, 59, 60, 3_600, 90_000, 500_000]).map(lambda seconds: timedelta(seconds=seconds))
later = st.lists(st.tuples(offsets, events()).map(lambda parts: ScheduledEvent(*parts)), max_size=4)


def contact_from(value: Mapping[str, Any] | None) -> ContactState:
    """Return a described contact; raise ValueError with its problems."""
    contact = read_contact(value)
    if isinstance(contact, ContactState):
        return contact
    raise ValueError("; ".join(map(str, contact)))
