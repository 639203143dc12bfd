"""The whole texts of the problems of nodes, graphs, settings and triggers; the tests of each have their fields."""

from typing import Any

import pytest

from workbench.language.actions import InvalidAction, read_action
from workbench.language.graph import Graph, read_graph, read_settings
from workbench.language.trigger import Trigger, read_trigger


@pytest.mark.parametrize(
    ("kind", "data", "problems"),
    [
        ("teleport", {},
         "n.type: unknown node kind 'teleport'; the kinds are app_event, onchain_event, segment_entered, "
         "segment_left, broadcast, schedule, send_inapp, send_email, send_webhook, send_via, add_tag, remove_tag, "
         "update_contact, condition, delay, wait_for_event, wait_until, collect, split, exit"),
        ("send_email", {"subject": "s"}, "n.data.body: must be a non-empty text"),
        ("send_email", {"subject": "{{", "body": "{% do %}"},
         "n.data.subject: line 1: unexpected 'end of template'; n.data.body: line 1: Encountered unknown tag 'do'."),
        ("send_email", {"subject": "s", "body": "b", "onMissing": "stop"}, "n.data.onMissing: must be fail or skip"),
        ("send_email", {"subject": "s", "body": "b", "trackClicks": "yes"},
         "n.data.trackClicks: must be true or false"),
        ("send_webhook", {}, "n.data.url: must be a non-empty text"),
        ("send_webhook", {"url": "https://example.com/hook", "body": ""},
         "n.data.body: must not be empty; leave it out to send the event"),
        ("send_webhook", {"url": "https://example.com/hook", "body": {"a": ["{{ x"]}},
         "n.data.body: line 1: unexpected end of template, expected 'end of the expression'."),
        ("send_via", {},
         "n.data.connection: must have 1 to 64 characters of a-z, 0-9, _ and -; n.data.fields: must be an object "
         "of at most 50 fields"),
        ("send_via", {"connection": "Chat", "fields": {"a b": 1}},
         "n.data.connection: must have 1 to 64 characters of a-z, 0-9, _ and -; n.data.fields.a b: the name of a "
         "field has 1 to 64 characters of a-z, A-Z, 0-9 and _, and begins with a letter"),
        ("send_via", {"connection": "chat", "fields": {}, "locales": {"de": {}}},
         "n.data.locales.de: must have a field; the name of a field has 1 to 64 characters of a-z, A-Z, 0-9 and "
         "_, and begins with a letter"),
        ("send_via", {"connection": "chat", "fields": {}, "locales": {"de": {"a": 1}}},
         "n.data.locales.de.a: must be a non-empty text"),
        ("send_via", {"connection": "chat", "fields": {"a": ["{{ x"]}},
         "n.data.fields.a: line 1: unexpected end of template, expected 'end of the expression'."),
        ("remove_tag", {"tag": "x" * 65}, "n.data.tag: must be 1 to 64 characters"),
        ("update_contact", {}, "n.data.attributes: must be an object of 1 to 50 attributes"),
        ("update_contact", {"attributes": {"a": None}}, "n.data.attributes.a: must be a string, number or boolean"),
        ("update_contact", {"attributes": {"a": "x" * 1025}}, "n.data.attributes.a: must be at most 1024 bytes"),
        ("update_contact", {"attributes": {"a" * 129: 1}},
         "n.data.attributes: keys must be 1 to 128 characters, without U+0000"),
        ("update_contact", {"attributes": {"a": "{{ x"}},
         "n.data.attributes: line 1: unexpected end of template, expected 'end of the expression'."),
        ("delay", {}, "n.data.seconds: must be a whole number of seconds from 1 to 31,622,400 (366 days)"),
        ("wait_for_event", {"event": "a b", "timeoutSeconds": 1},
         "n.data.event: must be the name of an event: 1 to 64 characters of a-z A-Z 0-9 _ . : -, or of a contract "
         "log: 0x…:Transfer"),
        ("wait_for_event", {"event": "a"},
         "n.data.timeoutSeconds: must be a whole number of seconds from 1 to 31,622,400 (366 days)"),
        ("wait_for_event", {"event": "a", "timeoutSeconds": 1, "filters": [5]},
         "n.data.filters[0]: must be an object with path, operator and value"),
        ("wait_until", {}, "n.data.time: is missing: write a time of day, or an attribute with a date"),
        ("wait_until", {"time": "9:00"}, "n.data.time: must be a time of day from 00:00 to 23:59, like 09:00"),
        ("wait_until", {"time": "24:00", "weekdays": [0]},
         "n.data.time: must be a time of day from 00:00 to 23:59, like 09:00; n.data.weekdays: must be an array "
         "of different weekdays from 1 (Monday) to 7 (Sunday)"),
        ("wait_until", {"time": "09:00", "offsetSeconds": 86400},
         "n.data.offsetSeconds: needs an attribute with a date"),
        ("wait_until", {"time": "09:00", "attribute": "a", "offsetSeconds": 3600},
         "n.data.offsetSeconds: must be whole days (86,400 seconds each) if there is a time of day"),
        ("wait_until", {"attribute": "a", "offsetSeconds": 31708800},
         "n.data.offsetSeconds: must be a whole number of seconds, not 0, up to 31,622,400 (366 days) either way"),
        ("wait_until", {"attribute": "a,b"}, "n.data.attribute: must be a name of 1 to 128 characters without commas"),
        ("wait_until", {"attribute": 5, "timezoneAttribute": ""},
         "n.data.attribute: must be a name of 1 to 128 characters without commas; n.data.timezoneAttribute: must "
         "be a name of 1 to 128 characters without commas"),
        ("split", {}, "n.data.branches: must be an array of 2 to 100 branches"),
        ("split", {"branches": [{"handle": "0", "percent": 50}, {"handle": "1", "percent": 51}]},
         "n.data.branches: the percentages sum to 101, not to 100"),
        ("split", {"branches": [{"handle": "0", "percent": 50}, {"handle": "1", "percent": "50"}]},
         "n.data.branches[1].percent: must be a whole number from 0 to 100"),
        ("split", {"branches": [{"handle": "a", "percent": 50}, {"handle": "a", "percent": 50}]},
         "n.data.branches: two branches have the same handle"),
        ("split", {"branches": [{"handle": "a", "percent": 50}, {"percent": 50}]},
         "n.data.branches[1].handle: must be 1 to 128 characters"),
        ("send_inapp", {"body": "b"}, "n.data.title: must be a non-empty text"),
        ("send_inapp", {"title": "{{ x", "body": "b"},
         "n.data.title: line 1: unexpected end of template, expected 'end of the expression'."),
        ("send_inapp", {"title": "t", "body": "{% import 'x' as x %}"},
         "n.data.body: line 1: import is not allowed here"),
        ("send_inapp", {"title": "t", "body": "b", "recipientMode": "all"},
         "n.data.recipientMode: must be triggering_profile"),
        ("send_inapp", {"title": "t", "body": "b", "data": [1]}, "n.data.data: must be an object"),
        ("add_tag", {}, "n.data.tag: must be 1 to 64 characters"),
        ("condition", {"filters": [{"path": "a"}]}, "n.data.filters[0].operator: must be a non-empty string"),
        ("condition", {"filters": "x"}, "n.data.filters: must be an array of filters"),
    ],
)  # fmt: skip
def test_invalid_node_data_lists_every_problem(kind: str, data: Any, problems: str) -> None:
    action = read_action(kind, data, "n")
    assert isinstance(action, InvalidAction)
    assert "; ".join(map(str, action.problems)) == problems


@pytest.mark.parametrize(
    ("graph", "problems"),
    [
        (None, "graph: must be an object with nodes and edges"),
        ({"nodes": {}}, "graph.nodes: must be an array"),
        ({"edges": 5}, "graph.edges: must be an array"),
        ({"nodes": [5]}, "graph.nodes[0].id: must be 1 to 128 characters"),
        ({"nodes": [{"id": "a"}]}, "graph.nodes[0].type: must be a string"),
        ({"nodes": [{"id": "a", "type": "exit", "data": []}]}, "graph.nodes[0].data: must be an object"),
        ({"edges": [5]}, "graph.edges[0]: must be an object"),
        ({"edges": [{"source": "a"}]}, "graph.edges[0].target: must be the id of a node, 1 to 128 characters"),
        ({"edges": [{"source": [], "target": "a"}]},
         "graph.edges[0].source: must be the id of a node, 1 to 128 characters"),
        ({"edges": [{"source": "a", "target": "b", "sourceHandle": 5}]},
         "graph.edges[0].sourceHandle: must be a string of at most 128 characters"),
        ({"edges": [{"source": "a", "target": "b", "id": {}}]},
         "graph.edges[0].id: must be a string of at most 128 characters"),
        ({"nodes": [{"id": "a\x00", "type": "exit"}]}, "graph: contains U+0000 or an unpaired surrogate"),
    ],
)  # fmt: skip
def test_an_invalid_graph_lists_every_problem(graph: Any, problems: str) -> None:
    read = read_graph(graph)
    assert not isinstance(read, Graph)
    assert "; ".join(map(str, read)) == problems


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ([], "s: must be an object"),
        ({"quiet_hours": {}},
         "s.quiet_hours: unknown setting; the settings are reentry, goal, quietHours, timezone, frequencyCap, "
         "holdout, localeAttribute, defaultLocale"),
        ({"goal": "paid"}, "s.goal: must be an object"),
        ({"goal": {}},
         "s.goal.event: must be the name of an event: 1 to 64 characters of a-z A-Z 0-9 _ . : -, or of a contract "
         "log: 0x…:Transfer"),
        ({"goal": {"event": "a b", "filters": {}}},
         "s.goal.event: must be the name of an event: 1 to 64 characters of a-z A-Z 0-9 _ . : -, or of a contract "
         "log: 0x…:Transfer; s.goal.filters: must be an array of filters"),
        ({"reentry": {}}, "s.reentry.policy: must be one of always, once, once_per, not_while_running"),
        ({"reentry": {"policy": "once_per"}}, "s.reentry.days: must be a whole number from 1 to 3,650"),
        ({"quietHours": {"from": "24:00", "to": "8:00"}},
         "s.quietHours.from: must be a time of day from 00:00 to 23:59, like 22:00; s.quietHours.to: must be a "
         "time of day from 00:00 to 23:59, like 22:00"),
        ({"quietHours": {"from": "22:00", "to": "22:00"}},
         "s.quietHours.to: must differ from `from`, otherwise every hour would be quiet"),
        ({"quietHours": {"from": "22:00", "to": "08:00", "timezoneAttribute": 1}},
         "s.quietHours.timezoneAttribute: must be the name of an attribute of the contact"),
        ({"timezone": "Europe/Nowhere"}, "s.timezone: must be the name of a time zone, like Europe/Zurich"),
        ({"frequencyCap": {}},
         "s.frequencyCap.messages: must be a whole number from 1 to 1,000; s.frequencyCap.seconds: must be a "
         "whole number from 1 to 31,622,400"),
        ({"frequencyCap": {"messages": 1, "per": "week"}},
         "s.frequencyCap.per: must be day; any other period is written as `seconds`"),
        ({"frequencyCap": {"messages": 1, "per": "day", "seconds": 60}},
         "s.frequencyCap.seconds: has no effect with `per`: leave out one of them"),
        ({"frequencyCap": {"messages": 1, "per": "day", "timezoneAttribute": 1}},
         "s.frequencyCap.timezoneAttribute: must be the name of an attribute of the contact"),
    ],
)  # fmt: skip
def test_invalid_settings_list_every_problem(settings: Any, problems: str) -> None:
    assert "; ".join(map(str, read_settings(settings, "s").problems)) == problems


@pytest.mark.parametrize(
    ("trigger", "problems"),
    [
        ({"event": 5}, "triggerSpec.event: must be a string"),
        ({"eventNames": "paid"}, "triggerSpec.eventNames: must be an array of non-empty strings"),
        ({"filters": {}}, "triggerSpec.filters: must be an array of filters"),
        ({"filters": [5]}, "triggerSpec.filters[0]: must be an object with path, operator and value"),
        ({"filters": [{"operator": "eq", "value": 1}]}, "triggerSpec.filters[0].path: must be a non-empty string"),
        ({"filters": [{"path": "a", "operator": 5, "value": 1}]},
         "triggerSpec.filters[0].operator: must be a non-empty string"),
        ({"filters": [{"path": "a", "operator": "eq"}]}, "triggerSpec.filters[0].value: is required for eq"),
        ({"filters": [{"path": "a\x00", "operator": "exists"}]},
         "triggerSpec: contains U+0000 or an unpaired surrogate"),
        ([], "triggerSpec: must be an object"),
        ({"type": 5},
         "triggerSpec.type: must be one of app_event, onchain_event, segment_entered, segment_left, broadcast, "
         "schedule"),
        ({"type": "onchain_event", "filters": 5},
         "triggerSpec.chainId: must be a whole number from 1 to 9,007,199,254,740,991; triggerSpec.contract: must "
         "be an address: 0x and 40 hexadecimal digits; triggerSpec.signature: must be a text like "
         "Transfer(address,address,uint256); triggerSpec.filters: must be an array of filters"),
        ({"type": "broadcast", "segment": "vip"},
         "triggerSpec.segment: does not belong to a broadcast: its contacts are those of a segment"),
        ({"type": "segment_left", "segment": "VIP"}, "triggerSpec.segment: must be the name of a segment, like vip"),
        ({"type": "schedule", "cron": "0 9 * *"},
         "triggerSpec.cron: must have five fields (minute, hour, day of the month, month, day of the week), like "
         "0 9 * * mon"),
        ({"type": "schedule", "cron": "0 9 31 2 *"}, "triggerSpec.cron: never fires: no month has such a day"),
        ({"type": "schedule", "cron": "0 99 * * *"},
         "triggerSpec.cron: '99' is not valid as the hour: write * or numbers from 0 to 23, like 1,15 or 1-5 or "
         "*/2"),
        ({"type": "schedule", "cron": "0 9 * * *", "timezone": "x"},
         "triggerSpec.timezone: must be a time zone, like Europe/Zurich"),
        ({"type": "schedule", "cron": "0 9 * * *", "missed": "x", "overlap": 1},
         "triggerSpec.missed: must be once or skip"),
    ],
)  # fmt: skip
def test_an_invalid_trigger_lists_every_problem(trigger: Any, problems: str) -> None:
    read = read_trigger(trigger if isinstance(trigger, list) else {"type": "app_event"} | trigger)
    assert not isinstance(read, Trigger)
    assert "; ".join(map(str, read)) == problems
