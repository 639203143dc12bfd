"""What was live is made of versions, activations and the current state."""

from datetime import UTC, datetime, timedelta

from workbench.language.graph import Graph
from workbench.language.live import ActivationChange, LiveChange, PublishedVersion, live_changes
from workbench.language.trigger import Trigger

BEGIN, HOUR = datetime(2026, 11, 20, tzinfo=UTC), timedelta(hours=1)
FIRST, SECOND = (PublishedVersion(BEGIN + hour * HOUR, hour, Trigger(), Graph()) for hour in (1, 3))


def test_versions_have_the_state_of_their_moment() -> None:
    on = ActivationChange(BEGIN + 2 * HOUR, "live")
    paused, off = ActivationChange(BEGIN + 4 * HOUR, "paused"), ActivationChange(BEGIN + 5 * HOUR, "off", True)
    assert live_changes([FIRST, SECOND], [on, paused, off], "off") == (
        LiveChange(FIRST.at, FIRST, "off"),
        LiveChange(on.at, FIRST, "live"),
        LiveChange(SECOND.at, SECOND, "live"),
        LiveChange(paused.at, SECOND, "paused"),
        LiveChange(off.at, SECOND, "off", True),
    )


def test_before_the_first_change_it_was_the_opposite_and_without_one_what_it_is() -> None:
    off = ActivationChange(BEGIN, "off")
    assert live_changes([FIRST], [ActivationChange(BEGIN + 2 * HOUR, "off")], "off")[0].state == "live"
    assert live_changes([FIRST], [], "paused") == (LiveChange(FIRST.at, FIRST, "paused"),)
    assert live_changes([], [off], "off") == (LiveChange(BEGIN, None, "off"),)
    assert [ActivationChange(BEGIN, state).active for state in ("live", "paused")] == [True, False]
