"""Dead letters, grouped by automation, cause and node."""

from typing import Any

from api.automations import automations, entries
from api.automations.automations import Refusal
from workbench.language.responses import DeadLetterView


async def dead(tenant: Any, automation_id: str | None = None) -> list[DeadLetterView]:
    letters = await entries.count_dead_letters(tenant.database, tenant.org_id, automation_id)
    assert not isinstance(letters, Refusal), letters
    return letters


async def a_death(tenant: Any, automation_id: str, cause: str, node_id: str = "m1", attempts: int = 3) -> str:
    """Store a dead entry; return its id."""
    entry_id: str = await tenant.add_entry(automation_id, "dead", cause)
    await tenant.rows(
        "UPDATE entries SET node_id = %s, attempts = %s, last_error = %s WHERE id = %s",
        *(node_id, attempts, f"{cause}: {entry_id}", entry_id),
    )
    return entry_id


async def test_dead_entries_are_counted_by_automation_cause_and_node(tenant: Any) -> None:
    row, other = await tenant.publish(), await tenant.publish(name="other")
    await a_death(tenant, row.id, "no_wallet", attempts=6)
    last = await a_death(tenant, row.id, "no_wallet", attempts=1)
    await a_death(tenant, row.id, "no_wallet", node_id="m2")
    await a_death(tenant, other.id, "template_error")
    await tenant.add_entry(row.id, "completed", "completed")
    letters = await dead(tenant)
    assert [
        (letter.automation, letter.cause, letter.node_id, letter.entries, letter.attempts) for letter in letters
    ] == [
        ("other", "template_error", "m1", 1, 3),
        ("greeting", "no_wallet", "m2", 1, 3),
        ("greeting", "no_wallet", "m1", 2, 6),
    ]
    assert letters[2].last_error == f"no_wallet: {last}"
    assert letters[2].first_at < letters[2].last_at < letters[1].first_at
    assert await dead(tenant, row.id) == letters[1:]


async def test_they_show_whether_their_automation_is_active(tenant: Any) -> None:
    row = await tenant.publish()
    await a_death(tenant, row.id, "no_wallet")
    await automations.deactivate(tenant.database, tenant.author, row.id)
    assert [letter.active for letter in await dead(tenant)] == [False]


async def test_a_replayed_entry_is_not_dead(tenant: Any) -> None:
    row = await tenant.publish()
    for cause in ("no_wallet", "no_wallet", "template_error"):
        await a_death(tenant, row.id, cause)
    assert await entries.replay_everywhere(tenant.database, tenant.author, "no_wallet") == 2
    assert [letter.cause for letter in await dead(tenant)] == ["template_error"]


async def test_another_organization_has_no_dead_letters(tenant: Any, other_tenant: Any) -> None:
    row = await tenant.publish()
    await a_death(tenant, row.id, "no_wallet")
    assert await dead(other_tenant) == []
    refusal = await entries.count_dead_letters(other_tenant.database, other_tenant.org_id, row.id)
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "unknown"
