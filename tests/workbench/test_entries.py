"""A notebook lists dead letters by cause, and replays them."""

import polars as pl
import pytest

from tests.installation import until
from tests.running import Running
from workbench import Automation, InvalidRequestError, NotFoundError, Workbench
from workbench.display import words
from workbench.entries import ReplayResult

WALLET = "0xAbCd000000000000000000000000000000001234"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def failing(wb: Workbench, name: str, how_many: int = 2) -> Automation:
    """Return an automation with entries that failed permanently, because their events lack a value of the template."""
    automation = wb.automation(name).on(f"{name}:event").send_inapp("Hi {{ who }}", "!", on_missing="fail").publish()
    for _ in range(how_many):
        wb.events.send(f"{name}:event", wallet_address=WALLET)
    until(lambda: len(automation.entries(state="dead")) == how_many, "they failed")
    return automation


def test_dead_letters_are_grouped_by_cause(wb: Workbench) -> None:
    letters = failing(wb, "failing").dead_letters()
    [letter] = letters
    assert (letter.cause, letter.node_id, letter.entries, letter.attempts) == ("template_error", "send_inapp", 2, 1)
    assert "who" in letter.error()
    for shown in (repr(letters), letters._repr_html_()):
        assert "template_error" in shown
        assert "automation" not in shown.splitlines()[0]
    assert "Failed permanently: 2 entries" in letters._repr_html_()
    frame = letters.frame()
    assert frame.select("cause", "entries", "attempts").rows() == [("template_error", 2, 1)]
    assert frame.schema["last_at"] == pl.Datetime("us", "UTC")


def test_dead_letters_of_all_automations_are_listed_together(wb: Workbench) -> None:
    failing(wb, "together", 1)
    letters = wb.dead_letters()
    assert "together" in [letter.automation for letter in letters]
    assert "together" in repr(letters)
    assert "Failed permanently" in letters._repr_html_()


def test_dead_letters_are_rows_in_sql(wb: Workbench) -> None:
    automation = failing(wb, "in-sql")
    frame = wb.sql("SELECT * FROM dead_letters WHERE automation = :name ORDER BY entry_id DESC", name="in-sql")
    assert frame["entry_id"].to_list() == [entry.id for entry in automation.entries()]
    assert (
        frame.select("cause", "node_id", "attempts", "automation_version").rows()
        == [("template_error", "send_inapp", 1, 1)] * 2
    )
    assert frame.schema["died_at"] == pl.Datetime("us", "UTC")
    assert [entry.attempts for entry in automation.entries()] == [1, 1]


def test_dead_letters_are_replayed_by_cause_or_all_at_once(wb: Workbench) -> None:
    automation = failing(wb, "again")
    letters = automation.dead_letters()
    replayed = letters.replay("template_error")
    assert repr(replayed) == "2 entries are tried again, from the step that failed."
    until(lambda: len(automation.entries(state="dead")) == 2, "they failed again")
    assert automation.dead_letters().replay() == ReplayResult(2)
    until(lambda: len(automation.entries(state="dead")) == 2, "they failed again")
    steps = [(step.node_id, step.outcome) for step in automation.entries().latest.refresh().steps]
    assert steps == [("trigger", "entered"), *[("send_inapp", "failed")] * 3]


def test_an_unknown_cause_is_refused_with_the_known_causes(wb: Workbench) -> None:
    letters = failing(wb, "which-cause", 1).dead_letters()
    with pytest.raises(NotFoundError, match="the cause 'no_wallet': the causes are template_error"):
        letters.replay("no_wallet")


def test_entries_of_inactive_automations_are_not_replayed(wb: Workbench) -> None:
    automation = failing(wb, "off-dead", 1).deactivate()
    letters = wb.dead_letters()
    assert "off-dead (off)" in repr(letters)
    assert "of automations that are off were not replayed" in repr(letters.replay())
    assert len(automation.entries(state="dead")) == 1
    with pytest.raises(InvalidRequestError, match="the automation is not active"):
        automation.dead_letters().replay()


def test_no_dead_letters_are_one_sentence(wb: Workbench) -> None:
    letters = wb.automation("sound").on("sound:event").add_tag("x").publish().dead_letters()
    assert (len(letters), repr(letters), letters.causes) == (0, "Nothing has failed permanently.", ())
    assert "Nothing has failed permanently." in letters._repr_html_()
    assert letters.frame().height == 0
    assert letters.replay() == ReplayResult(0)
    assert repr(ReplayResult(0)) == "Nothing was replayed."
    assert "nothing" in ReplayResult(0)._repr_html_()


def test_a_refused_message_and_a_refused_entry_have_different_texts() -> None:
    assert (words.entry_outcome("refused"), words.outcome("refused")) == ("rejected by the receiver", "did not enter")
