"""The table of transitions equals the one in SQL."""

import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from workbench.language.run import TERMINAL, TRANSITIONS, IllegalTransitionError, Run, State, Step, message_id

SQL = Path(__file__).parents[2] / "sql"
NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)


@pytest.fixture(params=["schema.sql", "migrations"])
def schema(request: pytest.FixtureRequest) -> str:
    """Return `sql/schema.sql`, or all migrations as one text, without comments."""
    path = SQL / request.param
    files = [path] if path.is_file() else sorted(path.glob("*.sql"))
    return "\n".join(re.sub(r"--[^\n]*", "", file.read_text()) for file in files)


def check_after(schema: str, table: str, start: str) -> str:
    """Return the text of the CHECK that begins at `start` in the definition of a table."""
    definition = schema[schema.index(f"CREATE TABLE workbench.{table} ") :]
    text = definition[definition.index(start) :]
    return text[: text.index(")))" if "((" in text[:40] else "))") + 2]


def test_the_database_has_the_same_states(schema: str) -> None:
    check = check_after(schema, "entries", "state ")
    assert set(re.findall(r"'(\w+)'", check)) == {state.value for state in State}


def test_the_database_has_the_same_transitions(schema: str) -> None:
    check = check_after(schema, "entry_transitions", "CONSTRAINT known_move")
    pairs = re.findall(r"\('(\w+)', *'(\w+)'\)", check)
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {(old.value, new.value) for old, new in TRANSITIONS}


@pytest.mark.parametrize("new", list(State))
@pytest.mark.parametrize("old", list(State))
def test_only_transitions_of_the_table_are_possible(old: State, new: State) -> None:
    run = Run("e", "a", old)
    if (old, new) in TRANSITIONS:
        assert run.to(new).state is new
    else:
        with pytest.raises(IllegalTransitionError):
            run.to(new)


def test_only_a_replay_or_a_returned_log_leaves_a_terminal_state() -> None:
    left = {(State.DEAD, State.PENDING), (State.CANCELLED, State.PENDING)}
    assert {(old, new) for old, new in TRANSITIONS if old in TERMINAL} == left


def test_every_state_can_be_reached_from_pending_and_end() -> None:
    reached = {State.PENDING}
    for _ in State:
        reached |= {new for old, new in TRANSITIONS if old in reached}
    assert reached == set(State)
    assert {old for old, _ in TRANSITIONS} >= set(State) - TERMINAL


def test_a_claim_counts_as_an_attempt() -> None:
    run = Run("e", "a", State.RETRYING, "n", step=2, attempt=1, due_at=NOW)
    assert run.claimed() == Run("e", "a", State.RUNNING, "n", step=2, attempt=2)


@pytest.mark.parametrize(
    ("state", "node_id", "resumed"),
    [(State.PENDING, "n", True), (State.PENDING, None, False), (State.WAITING, "n", False)],
)
def test_a_claim_after_a_pause_says_so_once(state: State, node_id: str | None, resumed: bool) -> None:
    run = Run("e", "a", state, node_id, resumed=not resumed)
    assert run.claimed() == Run("e", "a", State.RUNNING, node_id, attempt=1, resumed=resumed)


def test_the_next_node_starts_at_attempt_one() -> None:
    run = Run("e", "a", State.RUNNING, "n", step=2, attempt=3, error="x")
    assert run.at("m") == Run("e", "a", State.RUNNING, "m", step=3, attempt=1)


def test_a_message_id_never_changes() -> None:
    assert message_id("5e6f", "welcome") == "e58d412d-3b2d-8d6f-8b64-37c67ba28cc7"
    assert [message_id(entry_id, "n") for entry_id in ("e1", "e2", "e4", "e6")] == [  # with each variant of RFC 9562
        "c7215cb6-38ae-8789-8b4a-218007fe4095",
        "bc5b70de-910f-8c46-b402-cae34c2f6234",
        "acb385cd-ab0b-8249-984b-f1d89f548a52",
        "b4e924f0-392d-890e-a7c7-82e13f4c7f9b",
    ]


def test_message_ids_are_uuids_of_version_8_and_differ() -> None:
    ids = [message_id(entry, node, visit) for entry in ("e", "f") for node in ("a", "a/1", "ä") for visit in (1, 2, 11)]
    assert len(set(ids)) == len(ids)
    assert {(uuid.UUID(message).version, uuid.UUID(message).variant) for message in ids} == {(8, uuid.RFC_4122)}
    assert all(str(uuid.UUID(message)) == message for message in ids)


def test_a_step_is_encoded_without_empty_fields() -> None:
    step = Step("n", "exit", NOW + timedelta(0), "exited")
    assert (step.attempt, step.handle, step.detail) == (1, None, {})
