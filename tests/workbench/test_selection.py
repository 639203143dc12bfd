"""What SQL pre-selects for a backtest: never too few events, whatever a trigger asks for."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.embedded import Server
from api.query.limits import check_functions
from tests.language.strategies import graph_of
from workbench.backtest.source import ContactSample, EventSelection, select
from workbench.language.codec import decode, encode, normalise
from workbench.language.event import Identifiers
from workbench.language.graph import Graph
from workbench.language.simulate import SimulatedAutomation
from workbench.language.trigger import Trigger, fires, flat_context, read_trigger
from workbench.sql import statement

KEYS = ("a", "b", "a.b", "event", "email")
scalars = st.sampled_from([None, True, 1, 1.0, 1.10, "1", "x@y.co", "", 'it\'s "q"', [1, "1"], [], {}])
values = st.recursive(scalars, lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=2), max_leaves=4)
payloads = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)
paths = st.sampled_from([*KEYS, "a.a", "a.b.a", "event.a"])
filters = st.lists(
    st.one_of(
        st.builds(dict, path=paths, operator=st.sampled_from(["eq", "neq", "contains", "exists"]), value=values),
        st.builds(dict, path=paths, operator=st.just("in"), value=st.lists(values, max_size=3)),
    ),
    min_size=1,
    max_size=2,
)


def triggered(written: list[dict[str, Any]]) -> Trigger:
    trigger = read_trigger(normalise({"type": "app_event", "event": "paid", "filters": written}))
    assert isinstance(trigger, Trigger), trigger
    return trigger


def passes(connection: psycopg.Connection[Any], selection: EventSelection, payload: bytes) -> bool:
    """Return whether Postgres lets an event of the first way through."""
    asked = selection.ways[0].asked if selection.ways else ()
    written = " AND ".join("(" + " OR ".join("%s::jsonb @> %s::jsonb" for _ in each) + ")" for each in asked)
    bound = [
        text for each in asked for name in each for text in (payload.decode(), encode(selection.params[name]).decode())
    ]
    row = connection.execute(f"SELECT {written or 'true'}", bound).fetchone()
    return row == (True,)


@pytest.fixture(scope="module")
def connection(postgres: Server) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.dsn) as opened:
        yield opened


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(written=filters, payload=payloads)
def test_no_event_that_fires_is_left_out(
    connection: psycopg.Connection[Any], written: list[dict[str, Any]], payload: Any
) -> None:
    trigger, raw = triggered(written), encode(normalise(payload))
    context = flat_context("paid", "c", Identifiers("0xa", "x@y.co"), decode(raw))
    if fires(trigger, "paid", context):
        assert passes(connection, select([SimulatedAutomation(trigger, Graph())]), raw)


def test_values_of_the_payload_go_along() -> None:
    trigger = triggered(
        [{"path": "a", "operator": "in", "value": [1, 2]}, {"path": "a.b", "operator": "eq", "value": "x"}]
    )
    selection = select([SimulatedAutomation(trigger, Graph())])
    asked = [[selection.params[name] for name in each] for each in selection.ways[0].asked]
    assert asked == [[{"a": 1}, {"a": 2}], [{"a.b": "x"}, {"a": {"b": "x"}}]]
    assert not select(
        [SimulatedAutomation(triggered([{"path": "event", "operator": "eq", "value": "x"}]), Graph())]
    ).ways


def test_what_waits_and_goals_look_for_is_read_whatever_its_values() -> None:
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
    selection = select([SimulatedAutomation(triggered([{"path": "a", "operator": "eq", "value": 1}]), graph)])
    assert selection.params["names"] == ["paid", "sold"]
    assert [(selection.params[way.names], bool(way.asked)) for way in selection.ways] == [
        (["paid"], True),
        (["paid", "sold"], False),
    ]


def test_a_wildcard_reads_every_event() -> None:
    assert select([SimulatedAutomation(Trigger(), Graph())]) == EventSelection(addresses=False)


def test_addresses_are_opened_only_for_those_who_look() -> None:
    def looks(*nodes: dict[str, Any], asks: str = "a", operator: str = "exists") -> bool:
        trigger = triggered([{"path": asks, "operator": operator, "value": "a@b.co"}])
        return select([SimulatedAutomation(trigger, graph_of({"nodes": [*nodes], "edges": []}))]).addresses

    push = {"id": "m", "type": "send_inapp", "data": {"title": "{{ a }}", "body": "{{ contact.plan }}"}}
    assert not looks(push)
    assert looks(push | {"data": {"title": "{{ contact.email }}", "body": "x"}})
    assert looks(push | {"data": {"title": "{{ email | default('') }}", "body": "x"}})
    assert looks({"id": "e", "type": "send_email", "data": {"subject": "a", "body": "b"}})
    assert looks(asks="email", operator="eq")
    assert not looks(asks="email")


@pytest.mark.parametrize("whom", [ContactSample(), ContactSample(0.5, "whales")])
def test_a_server_that_lists_its_functions_takes_every_question(whom: ContactSample) -> None:
    asked = {"path": "a.b", "operator": "eq", "value": 1}
    for selection in (EventSelection(), select([SimulatedAutomation(triggered([asked]), Graph())])):
        for name in ("begin", "days", "events", "contacts", "messages"):
            assert check_functions(statement(f"backtest_{name}", whom=whom, selection=selection, own=True)) is None
