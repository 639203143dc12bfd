"""The shares of one organization's segments: query slots, connections and rows."""

import msgspec
import pytest

from api.query.limits import ConcurrencyLimits, QuerySlots
from api.segments import segments
from api.segments.candidates import SegmentServices, load_candidates
from api.segments.definition import SegmentPreviewBody
from api.store.analyst import ResultTooLargeError, TooManyQueriesError
from tests.segments.conftest import Team

ALL = SegmentPreviewBody("SELECT id AS contact_id FROM contacts")
NONE = SegmentPreviewBody("SELECT NULL::uuid AS contact_id FROM generate_series(1, 20)")


def with_few_slots(team: Team) -> SegmentServices:
    """Return services with two slots, one per organization, and a short wait."""
    slots = QuerySlots(ConcurrencyLimits(per_organization=1, total=2, wait_seconds=0.05))
    return msgspec.structs.replace(team.services, slots=slots)


async def test_an_organization_without_a_free_slot_delays_only_itself(acme: Team, globex: Team) -> None:
    services = with_few_slots(acme)
    async with services.slots.acquire(acme.id):  # held, as during a large frame or a slow query
        with pytest.raises(TooManyQueriesError):
            await segments.preview(services, acme.id, ALL)
        with pytest.raises(TooManyQueriesError):
            async with load_candidates(services, acme.id, []):
                pass
        assert (await segments.preview(services, globex.id, ALL)).size == 0
    assert (await segments.preview(services, acme.id, ALL)).size == 0


async def test_a_query_that_never_stops_returning_rows_is_refused(acme: Team) -> None:
    services = msgspec.structs.replace(acme.services, max_rows=19)
    problem = "the query returns more than 19 rows; SELECT DISTINCT contact_id returns each contact once"
    with pytest.raises(ResultTooLargeError, match=problem):
        await segments.preview(services, acme.id, NONE)
    enough = msgspec.structs.replace(acme.services, max_rows=20)
    assert (await segments.preview(enough, acme.id, NONE)).nulls == 20
