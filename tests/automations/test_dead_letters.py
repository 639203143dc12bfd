"""Dead letters, grouped by automation, cause and node."""

from typing import Any

from api.automations import automations, entries
from api.automations.automations import Refusal
from api.automations.views import DeadLetterView


async def dead(desk: Any, automation_id: str | None = None) -> list[DeadLetterView]:
    letters = await entries.count_dead_letters(desk.database, desk.org_id, automation_id)
    assert not isinstance(letters, Refusal), letters
    return letters


async def a_death(desk: Any, automation_id: str, cause: str, node_id: str = "m1", attempts: int = 3) -> str:
    """Store a dead entry; return its id."""
    entry_id: str = await desk.add_entry(automation_id, "dead", cause)
    await desk.rows(
        "UPDATE entries SET node_id = %s, attempts = %s, last_error = %s WHERE id = %s",
        *(node_id, attempts, f"{cause}: {entry_id}", entry_id),
    )
    return entry_id


async def test_dead_entries_are_counted_by_automation_cause_and_node(desk: Any) -> None:
    row, other = await desk.publish(), await desk.publish(name="other")
    await a_death(desk, row.id, "no_wallet", attempts=6)
    last = await a_death(desk, row.id, "no_wallet", attempts=1)
    await a_death(desk, row.id, "no_wallet", node_id="m2")
    await a_death(desk, other.id, "template_error")
    await desk.add_entry(row.id, "completed", "completed")
    letters = await dead(desk)
    assert [
        (letter.automation, letter.cause, letter.node_id, letter.entries, letter.attempts) for letter in letters
    ] == [
        ("other", "template_error", "m1", 1, 3),
        ("greeting", "no_wallet", "m2", 1, 3),
        ("greeting", "no_wallet", "m1", 2, 6),
    ]
    assert letters[2].last_error == f"no_wallet: {last}"
    assert letters[2].first_at < letters[2].last_at < letters[1].first_at
    assert await dead(desk, row.id) == letters[1:]


async def test_they_say_whether_their_automation_is_on(desk: Any) -> None:
    row = await desk.publish()
    await a_death(desk, row.id, "no_wallet")
    await automations.deactivate(desk.database, desk.author, row.id)
    assert [letter.active for letter in await dead(desk)] == [False]


async def test_a_replayed_entry_is_not_dead(desk: Any) -> None:
    row = await desk.publish()
    for cause in ("no_wallet", "no_wallet", "template_error"):
        await a_death(desk, row.id, cause)
    assert await entries.replay_everywhere(desk.database, desk.author, "no_wallet") == 2
    assert [letter.cause for letter in await dead(desk)] == ["template_error"]


async def test_another_organization_has_no_dead_letters(desk: Any, other_desk: Any) -> None:
    row = await desk.publish()
    await a_death(desk, row.id, "no_wallet")
    assert await dead(other_desk) == []
    refusal = await entries.count_dead_letters(other_desk.database, other_desk.org_id, row.id)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "unknown"
