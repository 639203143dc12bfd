"""A notebook moves waiting entries to the version that it publishes, says what they do next, and moves them back."""

from typing import Any

import pytest

from tests.installation import until
from tests.running import Running
from workbench import Automation, InvalidArgumentError, InvalidRequestError, NotFoundError, PublishError, Workbench
from workbench.draft import from_json


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def start_waiting(wb: Workbench, name: str, entries: int = 2) -> Automation:
    automation = wb.automation(name).on(f"{name}:event").delay(days=3, node="pause").add_tag("old").publish()
    for number in range(entries):
        wb.events.send(f"{name}:event", external_id=f"{name}-{number}")
    until(lambda: len(automation.entries(state="waiting")) == entries, "they wait")
    return automation


def next_version(wb: Workbench, name: str, days: int = 3, node: str = "pause") -> Automation:
    """Return the automation with another tag, and with this delay."""
    opened = wb.automation(name)
    changed = wb.automation("draft").on(f"{name}:event").delay(days=days, node=node).add_tag("new").to_json()
    return opened._with(from_json(changed | {"name": name}))


def test_a_safe_move_is_previewed_published_and_undone(wb: Workbench) -> None:
    start_waiting(wb, "moves-safe")
    draft = next_version(wb, "moves-safe")
    previewed = draft.preview_move()
    assert previewed.headline() == "2 of 2 entries of earlier versions would be moved to version 2"
    assert wb.automation("moves-safe").moves is None
    published = draft.publish(move="safe")
    assert published.moves is not None
    assert published.moves.headline() == "2 of 2 entries of earlier versions moved to version 2"
    assert published.moves.sample == previewed.sample
    for shown in (repr(published.moves), published.moves._repr_html_(), repr(published), published._repr_html_()):
        assert "add_tag_new" in shown
        assert "pause (version 1)" in shown
    entry = published.entries().latest.refresh()
    for shown in (repr(entry), entry._repr_html_()):
        assert "moved from version 1 to version 2 on " in shown
    assert "It was moved to version 2." in repr(wb.contact(external_id="moves-safe-0").explain(published))
    undone = published.move_back()
    assert undone.headline() == "2 of 2 moved entries moved back from version 2"
    assert "moved back on" in repr(entry.refresh())


def test_entries_without_a_next_step_stay_and_say_why(wb: Workbench) -> None:
    start_waiting(wb, "moves-refused")
    published = next_version(wb, "moves-refused", days=5).publish(move="safe")
    assert published.moves is not None
    assert published.moves.reasons == {"the step 'pause' differs in version 2": 2}
    assert "the step 'pause' differs in version 2" in repr(published.moves)
    entry = published.entries().latest.refresh()
    assert "stayed on version 1 when version 2 was published: the step 'pause' differs in version 2" in repr(entry)
    again = published.publish(move={"pause": "pause"})
    assert again.moves is not None
    assert again.moves.moved == 2


def test_a_mapping_with_an_unknown_step_is_refused_and_nothing_is_published(wb: Workbench) -> None:
    start_waiting(wb, "moves-wrong", 1)
    draft = next_version(wb, "moves-wrong", node="longer")
    with pytest.raises(PublishError, match="pause: the new version has no step 'nope'"):
        draft.publish(move={"pause": "nope"})
    with pytest.raises(InvalidRequestError, match="no earlier version with entries has this step"):
        draft.preview_move({"nope": "longer"})
    wrong: Any = "all"
    with pytest.raises(InvalidArgumentError, match='write move="safe"'):
        draft.publish(move=wrong)
    assert [version.version for version in wb.automation("moves-wrong").versions()] == [1]


def test_without_a_move_there_is_nothing_to_undo(wb: Workbench) -> None:
    automation = wb.automation("moves-none").on("moves-none").add_tag("x").publish()
    assert automation.moves is None
    with pytest.raises(NotFoundError, match="no entries of this automation were moved"):
        automation.move_back()
