"""What one organization's segments may take of what all share: places, connections, room for rows."""

import msgspec
import pytest

from api.query.run import BusyError, Places, TooLargeError, Turns
from api.segments import segments
from api.segments.definition import Asked, Trial
from api.segments.finding import Desk, given
from tests.segments.conftest import Team

ALL = Trial(Asked("SELECT id AS contact_id FROM contacts"), None)
NONE = Trial(Asked("SELECT NULL::uuid AS contact_id FROM generate_series(1, 20)"), None)


def crowded(team: Team) -> Desk:
    """Return a desk at which an organization has one place of two, and nobody waits for long."""
    turns = Turns(Places(of_organization=1, in_all=2, wait_seconds=0.05))
    return msgspec.structs.replace(team.desk, turns=turns)


async def test_an_organization_whose_places_are_taken_holds_up_itself_alone(acme: Team, globex: Team) -> None:
    desk = crowded(acme)
    async with desk.turns.of(acme.id):  # as long as a large frame, or a slow query, takes
        with pytest.raises(BusyError):
            await segments.preview(desk, acme.id, ALL)
        with pytest.raises(BusyError):
            async with given(desk, acme.id, []):
                pass
        assert (await segments.preview(desk, globex.id, ALL)).found.size == 0
    assert (await segments.preview(desk, acme.id, ALL)).found.size == 0


async def test_a_query_that_never_stops_returning_rows_is_refused(acme: Team) -> None:
    desk = msgspec.structs.replace(acme.desk, most_rows=19)
    said = "the query returns more than 19 rows; SELECT DISTINCT contact_id returns each contact once"
    with pytest.raises(TooLargeError, match=said):
        await segments.preview(desk, acme.id, NONE)
    enough = msgspec.structs.replace(acme.desk, most_rows=20)
    assert (await segments.preview(enough, acme.id, NONE)).found.nulls == 20
