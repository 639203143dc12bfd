"""The SQL pre-selection of a backtest never leaves out an event that starts an automation."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.embedded import Server
from api.query.limits import check_functions
from tests.language.strategies import NOW, graph_of
from workbench.backtest.source import ContactSample, EventSelection, select
from workbench.backtest.starts import select_starts
from workbench.language.codec import decode, encode, normalize
from workbench.language.event import Identifiers
from workbench.language.filter import OPERATORS
from workbench.language.graph import Graph
from workbench.language.simulate import SimulatedAutomation
from workbench.language.starts import StartSource
from workbench.language.trigger import Trigger, fires, flat_context, read_trigger
from workbench.sql import statement

KEYS = ("a", "b", "a.b", "event", "email")
scalars = st.sampled_from([None, True, 1, 1.0, 1.10, "1", "x@y.co", "", 'it\'s "q"', [1, "1"], [], {}])
values = st.recursive(scalars, lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=2), max_leaves=4)
payloads = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)
paths = st.sampled_from([*KEYS, "a.a", "a.b.a", "event.a"])
filters = st.lists(
    st.one_of(
        st.builds(
            dict, path=paths, operator=st.sampled_from([name for name in OPERATORS if name != "in"]), value=values
        ),
        st.builds(dict, path=paths, operator=st.just("in"), value=st.lists(values, max_size=3)),
    ),
    min_size=1,
    max_size=2,
)


def trigger_with(filters: list[dict[str, Any]], where: str | None = None) -> Trigger:
    trigger = read_trigger(normalize({"type": "app_event", "event": "paid", "filters": filters, "where": where}))
    assert isinstance(trigger, Trigger), trigger
    return trigger


def passes(connection: psycopg.Connection[Any], selection: EventSelection, payload: bytes) -> bool:
    """Return whether Postgres selects an event of the first pattern."""
    conditions = selection.patterns[0].conditions if selection.patterns else ()
    sql = " AND ".join("(" + " OR ".join("%s::jsonb @> %s::jsonb" for _ in options) + ")" for options in conditions)
    names = [name for options in conditions for name in options]
    params = [text for name in names for text in (payload.decode(), encode(selection.params[name]).decode())]
    row = connection.execute(f"SELECT {sql or 'true'}", params).fetchone()
    return row == (True,)


@pytest.fixture(scope="module")
def connection(postgres: Server) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.dsn) as opened:
        yield opened


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(filters=filters, where=st.sampled_from([None, "a == 1", "b != '1' or a.b | length < 3"]), payload=payloads)
def test_no_event_that_starts_an_entry_is_left_out(
    connection: psycopg.Connection[Any], filters: list[dict[str, Any]], where: str | None, payload: Any
) -> None:
    trigger, raw = trigger_with(filters, where), encode(normalize(payload))
    context = flat_context("paid", "c", Identifiers("0xa", "x@y.co"), decode(raw))
    if fires(trigger, "paid", context, NOW):
        assert passes(connection, select([SimulatedAutomation(trigger, Graph())]), raw)


def test_filters_on_the_payload_are_sent() -> None:
    trigger = trigger_with(
        [{"path": "a", "operator": "in", "value": [1, 2]}, {"path": "a.b", "operator": "eq", "value": "x"}]
    )
    selection = select([SimulatedAutomation(trigger, Graph())])
    conditions = [[selection.params[name] for name in options] for options in selection.patterns[0].conditions]
    assert conditions == [[{"a": 1}, {"a": 2}], [{"a.b": "x"}, {"a": {"b": "x"}}]]
    assert not select(
        [SimulatedAutomation(trigger_with([{"path": "event", "operator": "eq", "value": "x"}]), Graph())]
    ).patterns


def test_awaited_events_and_goals_are_read_whatever_their_payload() -> None:
    graph = graph_of(
        {
            "nodes": [
                {"id": "t", "type": "app_event"},
                {"id": "w", "type": "wait_for_event", "data": {"event": "paid", "timeoutSeconds": 9}},
            ],
            "edges": [{"source": "t", "target": "w"}],
            "settings": {"goal": {"event": "sold"}},
        }
    )
    selection = select([SimulatedAutomation(trigger_with([{"path": "a", "operator": "eq", "value": 1}]), graph)])
    assert selection.params["names"] == ["paid", "sold"]
    assert [(selection.params[pattern.names], bool(pattern.conditions)) for pattern in selection.patterns] == [
        (["paid"], True),
        (["paid", "sold"], False),
    ]


def test_a_wildcard_reads_every_event() -> None:
    assert select([SimulatedAutomation(Trigger(), Graph())]) == EventSelection(addresses=False)


def test_addresses_are_decrypted_only_if_they_are_used() -> None:
    def decrypts(*nodes: dict[str, Any], path: str = "a", operator: str = "exists") -> bool:
        trigger = trigger_with([{"path": path, "operator": operator, "value": "a@b.co"}])
        return select([SimulatedAutomation(trigger, graph_of({"nodes": [*nodes], "edges": []}))]).addresses

    push = {"id": "m", "type": "send_inapp", "data": {"title": "{{ a }}", "body": "{{ contact.plan }}"}}
    assert not decrypts(push)
    assert decrypts(push | {"data": {"title": "{{ contact.email }}", "body": "x"}})
    assert decrypts(push | {"data": {"title": "{{ email | default('') }}", "body": "x"}})
    assert decrypts({"id": "e", "type": "send_email", "data": {"subject": "a", "body": "b"}})
    assert decrypts(path="email", operator="eq")
    assert not decrypts(path="email")


@pytest.mark.parametrize("sample", [ContactSample(), ContactSample(0.5, "whales")])
def test_the_queries_use_only_functions_that_servers_allow(sample: ContactSample) -> None:
    filter_ = {"path": "a.b", "operator": "eq", "value": 1}
    sources = [
        StartSource("segment_left", "vip"),
        StartSource("schedule", cron="0 9 * * *"),
        StartSource("schedule", "vip", cron="0 9 * * *"),
        StartSource("broadcast"),
    ]
    starts = select_starts(sources, NOW, NOW + timedelta(days=2), None, own=True)
    for selection in (
        EventSelection(),
        select([SimulatedAutomation(trigger_with([filter_]), Graph())]),
        EventSelection().with_starts(starts, "a"),
    ):
        names = ("begin", "merges", "hours", "events", "contacts", "changes", "entries", "moves", "past_entries")
        for name in (*names, "messages", "erased"):
            structure = {"own": True, "live": True, "merged": True, "began_before": NOW}
            text = statement(f"backtest_{name}", sample=sample, selection=selection, **structure)
            assert check_functions(text) is None
    assert check_functions(statement("backtest_segment")) is None
    for start in starts:
        for name in ("broadcasts", "presences"):
            assert check_functions(statement(f"backtest_{name}", sample=sample, start=start)) is None
