"""The shares of one organization's segments: query slots, connections and rows."""

import msgspec
import pytest

from api.query.limits import ConcurrencyLimits, QuerySlots
from api.segments import segments
from api.segments.candidates import SegmentServices, load_candidates
from api.segments.definition import PreviewRequest, SegmentQuery
from api.store.analyst import ResultTooLargeError, TooManyQueriesError
from tests.segments.conftest import Team

ALL = PreviewRequest(SegmentQuery("SELECT id AS contact_id FROM contacts"), None)
NONE = PreviewRequest(SegmentQuery("SELECT NULL::uuid AS contact_id FROM generate_series(1, 20)"), None)


def with_few_slots(team: Team) -> SegmentServices:
    """Return services with two slots, one per organization, and a short wait."""
    slots = QuerySlots(ConcurrencyLimits(per_organization=1, total=2, wait_seconds=0.05))
    return msgspec.structs.replace(team.desk, slots=slots)


async def test_an_organization_without_a_free_slot_delays_only_itself(acme: Team, globex: Team) -> None:
    desk = with_few_slots(acme)
    async with desk.slots.acquire(acme.id):  # as long as a large frame, or a slow query, takes
        with pytest.raises(TooManyQueriesError):
            await segments.preview(desk, acme.id, ALL)
        with pytest.raises(TooManyQueriesError):
            async with load_candidates(desk, acme.id, []):
                pass
        assert (await segments.preview(desk, globex.id, ALL)).counts.size == 0
    assert (await segments.preview(desk, acme.id, ALL)).counts.size == 0


async def test_a_query_that_never_stops_returning_rows_is_refused(acme: Team) -> None:
    desk = msgspec.structs.replace(acme.desk, max_rows=19)
    problem = "the query returns more than 19 rows; SELECT DISTINCT contact_id returns each contact once"
    with pytest.raises(ResultTooLargeError, match=problem):
        await segments.preview(desk, acme.id, NONE)
    enough = msgspec.structs.replace(acme.desk, max_rows=20)
    assert (await segments.preview(enough, acme.id, NONE)).counts.nulls == 20
