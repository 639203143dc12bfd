"""Why an automation took an event, or did not."""

from datetime import UTC, datetime, timedelta

import pytest

from api.language.described import contact_of
from api.language.event import Event, Identifiers
from api.language.facts import Past
from api.language.filter import Filter
from api.language.graph import read_graph
from api.language.simulate import Automation, Given, simulate
from api.language.trigger import Trigger
from api.language.why import Came, Change, Entered, Standing, active_at, why_imagined, why_stored

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
LARGE = Trigger(frozenset({"deposit"}), (Filter("amount", "eq", 100),))
ON = Standing()


def reasons(
    standing: Standing = ON, name: str = "deposit", *, amount: object = 100, dry: bool = False, removed: bool = False
) -> tuple[str, ...]:
    came = Came(LARGE.names_event(name), {"amount": amount}, dry, removed)
    return why_stored(LARGE, standing, came, None).reasons


def test_every_reason_is_named() -> None:
    assert reasons(name="trade", amount="100") == ("other_event", "filters")
    assert reasons(Standing(active=False)) == ("inactive",)
    assert reasons(Standing(active=False, archived=True)) == ("archived",)
    assert reasons(Standing(exists=False), amount=1) == ("not_there_yet", "filters")
    assert reasons(dry=True) == ("dry_run",)
    assert reasons(removed=True) == ("dropped",)
    assert reasons() == ("no_entry",)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("completed", ()),
        (None, ()),
        ("no_published_version", ("unpublished",)),
        ("reentry", ("reentry",)),
        ("chain_reorg", ("dropped",)),
    ],
)
def test_an_entry_speaks_for_itself(outcome: str | None, expected: tuple[str, ...]) -> None:
    entry = Entered("e", "completed", outcome, "once")
    why = why_stored(LARGE, Standing(active=False), Came(True, {"amount": 1}), entry)
    assert (why.matched, why.reasons, why.cause) == (True, expected, "once")


def test_the_verdicts_tell_what_was_found() -> None:
    (verdict,) = why_stored(LARGE, ON, Came(True, {"amount": "100"}), None).verdicts
    assert (verdict.passed, verdict.present, verdict.actual) == (False, True, "100")


def test_whether_it_was_on_is_told_by_its_switches() -> None:
    hour = timedelta(hours=1)
    switches = [Change(NOON, True), Change(NOON + hour, False), Change(NOON + 2 * hour, True)]
    asked = [NOON - hour, NOON, NOON + 1.5 * hour, NOON + 3 * hour]
    assert [active_at(switches, at, now=True) for at in asked] == [False, True, False, True]
    assert active_at([], NOON, now=False) is False


def test_what_has_not_happened_is_simulated_with_what_did() -> None:
    nodes = [{"id": "t", "type": "app_event", "data": {}}, {"id": "x", "type": "add_tag", "data": {"tag": "vip"}}]
    edges = [{"source": "t", "target": "x"}]
    graph = read_graph({"nodes": nodes, "edges": edges, "settings": {"reentry": {"policy": "once"}}})
    assert not isinstance(graph, tuple)
    event = Event("deposit", Identifiers(external_id="u"), payload=b'{"amount": 100}')

    def imagined(standing: Standing, past: Past) -> tuple[bool, tuple[str, ...], str | None]:
        trace = simulate(Automation(LARGE, graph), event, contact_of(None), NOON, Given(past))
        why = why_imagined(standing, trace)
        return why.matched, why.reasons, why.cause

    assert imagined(ON, Past()) == (True, (), None)
    assert imagined(ON, Past(entered_at=NOON)) == (True, ("reentry",), "once")
    assert imagined(Standing(active=False), Past(entered_at=NOON))[:2] == (False, ("inactive",))
