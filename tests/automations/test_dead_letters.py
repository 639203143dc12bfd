"""What failed for good, by automation, cause and node."""

from typing import Any

from api.automations import automations, entries
from api.automations.automations import Refusal
from api.automations.views import DeadLetterView


async def dead(desk: Any, automation_id: str | None = None) -> list[DeadLetterView]:
    found = await entries.count_dead_letters(desk.database, desk.org_id, automation_id)
    assert not isinstance(found, Refusal), found
    return found


async def a_death(desk: Any, automation_id: str, cause: str, node_id: str = "m1", attempts: int = 3) -> str:
    """Store a dead entry that says its number."""
    entry_id: str = await desk.add_entry(automation_id, "dead", cause)
    await desk.rows(
        "UPDATE entries SET node_id = %s, attempts = %s, last_error = %s WHERE id = %s",
        *(node_id, attempts, f"{cause}: {entry_id}", entry_id),
    )
    return entry_id


async def test_dead_entries_stand_together_by_automation_cause_and_node(desk: Any) -> None:
    row, other = await desk.publish(), await desk.publish(name="other")
    await a_death(desk, row.id, "no_wallet", attempts=6)
    last = await a_death(desk, row.id, "no_wallet", attempts=1)
    await a_death(desk, row.id, "no_wallet", node_id="m2")
    await a_death(desk, other.id, "template_error")
    await desk.add_entry(row.id, "completed", "completed")
    found = await dead(desk)
    assert [(each.automation, each.cause, each.node_id, each.entries, each.attempts) for each in found] == [
        ("other", "template_error", "m1", 1, 3),
        ("greeting", "no_wallet", "m2", 1, 3),
        ("greeting", "no_wallet", "m1", 2, 6),
    ]
    assert found[2].last_error == f"no_wallet: {last}"
    assert found[2].first_at < found[2].last_at < found[1].first_at
    assert await dead(desk, row.id) == found[1:]


async def test_they_say_whether_their_automation_is_on(desk: Any) -> None:
    row = await desk.publish()
    await a_death(desk, row.id, "no_wallet")
    await automations.deactivate(desk.database, desk.author, row.id)
    assert [each.active for each in await dead(desk)] == [False]


async def test_what_is_replayed_is_dead_no_more(desk: Any) -> None:
    row = await desk.publish()
    for cause in ("no_wallet", "no_wallet", "template_error"):
        await a_death(desk, row.id, cause)
    assert await entries.replay_everywhere(desk.database, desk.author, "no_wallet") == 2
    assert [each.cause for each in await dead(desk)] == ["template_error"]


async def test_another_organization_has_none(desk: Any, stranger: Any) -> None:
    row = await desk.publish()
    await a_death(desk, row.id, "no_wallet")
    assert await dead(stranger) == []
    refusal = await entries.count_dead_letters(stranger.database, stranger.org_id, row.id)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "unknown"
