"""The oracle applies events in commit order; only an event that changes nothing may have read an older state."""

from datetime import UTC, datetime

from tests.torture.oracle import CLOCK_ERROR_US, Conflict, IdentityModel, Traits
from tests.torture.rows import ErasureRow, EventRow

SECOND = 1_000_000
NOTHING: set[Conflict] = set()


def event(contact_id: str, wallet: str | None, email: str | None, *, received: int, committed: int) -> EventRow:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return EventRow(
        "acme", f"e{committed}", contact_id, "x", at, {}, "k", wallet, email, None, received, committed, committed
    )


def people_after_a_move(at: int) -> IdentityModel:
    """Return two contacts; the email of the first has moved to the second, which had another email."""
    people = IdentityModel()
    assert people.apply_event(event("c1", "w1", "a@x.io", received=1, committed=1), NOTHING) is None
    assert people.apply_event(event("c2", "w2", "b@x.io", received=2, committed=2), NOTHING) is None
    moved = event("c2", "w2", "a@x.io", received=at, committed=at)
    assert people.apply_event(moved, {("email", "moved"), ("email", "replaced")}) is None
    assert people.identifiers == {"c1": {"wallet": "w1"}, "c2": {"wallet": "w2", "email": "a@x.io"}}
    return people


def test_after_a_move_an_email_means_its_new_contact() -> None:
    moment = 60 * SECOND
    people = people_after_a_move(moment)
    late = moment + CLOCK_ERROR_US + 1
    assert people.apply_event(event("c2", None, "a@x.io", received=late, committed=late + 1), NOTHING) is None
    assert people.apply_event(event("c1", None, "a@x.io", received=late, committed=late + 2), NOTHING) is not None


def test_an_event_that_ran_during_a_move_may_have_seen_the_email_where_it_was() -> None:
    moment = 60 * SECOND
    people = people_after_a_move(moment)
    assert people.apply_event(event("c1", None, "a@x.io", received=moment - 1, committed=moment + 1), NOTHING) is None
    assert people.apply_event(event("c1", "w1", "a@x.io", received=moment - 1, committed=moment + 2), NOTHING) is None
    assert people.owners["email", "a@x.io"] == "c2"


def test_an_email_that_returns_is_stored_again_but_an_event_during_its_absence_may_not_have_seen_it() -> None:
    people, moment, replaced = IdentityModel(), 60 * SECOND, {("email", "replaced")}
    assert people.apply_event(event("c1", "w1", "a@x.io", received=1, committed=1), NOTHING) is None
    assert people.apply_event(event("c1", "w1", "b@x.io", received=moment, committed=moment), replaced) is None
    assert people.apply_event(event("c1", "w1", "a@x.io", received=moment - 1, committed=moment + 1), NOTHING) is None
    assert people.identifiers["c1"]["email"] == "b@x.io"
    assert people.apply_event(event("c1", "w1", "a@x.io", received=moment, committed=moment + 2), replaced) is None
    assert people.identifiers["c1"]["email"] == "a@x.io"


def test_an_event_that_may_have_seen_its_email_in_place_need_not_have_stored_it_again() -> None:
    for conflicts, is_right in (({("email", "replaced")}, True), (NOTHING, True), ({("email", "moved")}, False)):
        people, moment = IdentityModel(), 60 * SECOND
        for contact, email in (("c1", "a@x.io"), ("c2", "b@x.io")):
            assert people.apply_event(event(contact, contact, email, received=1, committed=1), NOTHING) is None
        replaced, moved = {("email", "moved"), ("email", "replaced")}, {("email", "moved")}
        taken = event("c1", "c1", "b@x.io", received=moment, committed=moment)
        assert people.apply_event(taken, replaced) is None
        back = event("c2", "c2", "b@x.io", received=moment, committed=moment)
        assert people.apply_event(back, moved) is None
        assert people.apply_event(event("c1", None, "a@x.io", received=1, committed=moment + 1), NOTHING) is None
        assert people.doubtful == {"c1"}
        late = moment + CLOCK_ERROR_US + 2
        last = event("c1", "c1", "c@x.io", received=late, committed=late)
        assert (people.apply_event(last, conflicts) is None) is is_right


def test_a_third_contact_and_an_unrecorded_conflict_are_violations() -> None:
    moment = 60 * SECOND
    people = people_after_a_move(moment)
    assert (
        people.apply_event(event("c3", None, "a@x.io", received=moment - 1, committed=moment + 1), NOTHING) is not None
    )
    assert (
        people.apply_event(event("c1", "w1", "b@x.io", received=moment - 1, committed=moment + 2), NOTHING) is not None
    )


def test_an_event_after_an_erasure_creates_a_new_contact() -> None:
    people, moment = IdentityModel(), 60 * SECOND
    assert people.apply_event(event("c1", "w1", "a@x.io", received=1, committed=1), NOTHING) is None
    people.apply_erasure(ErasureRow("acme", "c1", moment, moment))
    assert (people.owners, people.identifiers) == ({}, {"c1": {}})
    late = moment + CLOCK_ERROR_US + 1
    assert people.apply_event(event("c1", "w1", None, received=late, committed=late), NOTHING) is not None
    assert people.apply_event(event("c2", None, "a@x.io", received=late, committed=late + 1), NOTHING) is None


def test_an_event_that_ran_during_an_erasure_may_have_been_recognised() -> None:
    people, moment = IdentityModel(), 60 * SECOND
    assert people.apply_event(event("c1", "w1", "a@x.io", received=1, committed=1), NOTHING) is None
    people.apply_erasure(ErasureRow("acme", "c1", moment, moment))
    assert people.apply_event(event("c1", "w1", None, received=moment - 1, committed=moment + 1), NOTHING) is None
    assert (
        people.apply_event(event("c1", "w1", "b@x.io", received=moment - 1, committed=moment + 2), NOTHING) is not None
    )


def test_attributes_that_were_in_place_need_not_be_written() -> None:
    moment = 60 * SECOND
    traits = Traits()
    traits.merge(event("c1", "w1", None, received=1, committed=1), {"plan": "free", "n": 1})
    traits.merge(event("c1", "w1", None, received=moment, committed=moment), {"plan": "pro"})
    traits.merge(event("c1", "w1", None, received=moment, committed=moment + 1), {"plan": "free", "n": 1})
    assert [traits.allow({"plan": plan, "n": 1}) for plan in ("free", "pro", "none")] == [True, True, False]
    late = moment + CLOCK_ERROR_US + 2
    traits.merge(event("c1", "w1", None, received=late, committed=late), {"plan": "free", "n": 2})
    assert [traits.allow({"plan": plan, "n": 2}) for plan in ("free", "pro")] == [True, False]
