"""Topics of messages: who gets them, what the check says, and the links of emails."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.language.strategies import contact_from, graph_of
from tests.language.test_advance_opt_outs import ANN, CHANNELS, sent_to
from workbench.language.actions import InvalidAction, read_action
from workbench.language.check import CatalogFacts, check, check_against
from workbench.language.event import Event
from workbench.language.graph import Graph
from workbench.language.simulate import SimulatedAutomation, simulate
from workbench.language.trigger import Trigger

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
TRIGGER = Trigger(frozenset({"deposit"}))


def with_step(kind: str, **data: Any) -> Graph:
    nodes = [{"id": "t", "type": "app_event", "data": {}}, {"id": "m", "type": kind, "data": data}]
    return graph_of({"nodes": nodes, "edges": [{"source": "t", "target": "m"}]})


def messages(graph: Graph, **contact: Any) -> list[Any]:
    state = contact_from({"email": "ann@b.co"} | contact)
    trace = simulate(SimulatedAutomation(TRIGGER, graph), Event("deposit", state.identifiers), state, NOW)
    return [*trace.messages] or [trace.steps[-1].detail]


@pytest.mark.parametrize("channel", CHANNELS)
def test_j12_a_contact_that_declined_the_topic_does_not_get_the_message(channel: str) -> None:
    action = msgspec.structs.replace(CHANNELS[channel], topic="news")
    declined = msgspec.structs.replace(ANN, declined=("offers", "news"))
    assert sent_to(declined, action) == ("skipped", {"cause": "declined_topic", "topic": "news"}, 0)
    assert sent_to(declined, CHANNELS[channel])[::2] == ("sent", 1)
    assert sent_to(ANN, action)[::2] == ("sent", 1)


def test_an_email_has_the_links_of_its_contact_and_other_messages_have_none() -> None:
    text = "{{ preferences_url }} {{ confirm_url }}"
    (email,) = messages(with_step("send_email", subject="s", body=text, confirms="news"))
    assert email.body == "https://preferences.invalid/ https://confirm.invalid/news"
    (missing,) = messages(with_step("send_webhook", url="https://a.example", body=text, onMissing="skip"))
    assert missing["cause"] == "missing_value"


@pytest.mark.parametrize("name", ["", "News", "a b", 1, None, "x" * 65])
def test_a_topic_is_a_name(name: object) -> None:
    action = read_action("send_email", {"subject": "s", "body": "b", "topic": name}, "n")
    assert isinstance(action, InvalidAction)
    assert action.problems[0].field == "n.data.topic"


def test_an_email_that_confirms_has_a_link_in_each_locale() -> None:
    link, lacking = "{{ confirm_url }}", {"subject": "s", "body": "ohne"}
    graph = with_step("send_email", subject="s", body=link, confirms="news", locales={"de": lacking})
    (error,) = [item for item in check(TRIGGER, graph) if item.level == "error"]
    message = "must have the link {{ confirm_url }}, which confirms the topic 'news'"
    assert (error.node_id, error.field, error.message) == ("m", "locales.de.body", message)


def test_an_unknown_topic_is_an_error_and_the_links_are_no_values_of_events() -> None:
    text = "{{ preferences_url }} {{ confirm_url }}"
    graph = with_step("send_email", subject="s", body=text, topic="newz", confirms="deals")
    facts = CatalogFacts(("deposit",), {"deposit": frozenset({"size"})}, topics=("news", "deals"))
    assert [(item.level, item.message, item.field) for item in check_against(facts, TRIGGER, graph)] == [
        ("error", "unknown topic 'newz'; did you mean 'news'?", "topic")
    ]
    assert graph.topics == {"newz"}
    assert graph.named_topics == {"newz", "deals"}
    without = with_step("send_email", subject="s", body=text)
    assert [item.message for item in check_against(facts, TRIGGER, without)] == [
        "'confirm_url' was never seen in deposit; wb.catalog[\"deposit\"] shows its properties"
    ]
