"""Ids are made one by one or many at a time, alike."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from api.clock import us_of, uuid7_from, uuid7s


@given(st.lists(st.integers(0, 253_402_300_799_999_999), max_size=5))
def test_ids_of_many_moments_are_what_each_would_have_been(ats_us: list[int]) -> None:
    texts = [str(UUID(bytes=each)) for each in uuid7s(ats_us)]
    assert [text[:18] for text in texts] == [uuid7_from(at_us, bytes(8))[:18] for at_us in ats_us]
    assert [us_of(text) for text in texts] == [at_us - at_us % 1_000 for at_us in ats_us]
    assert all(text[19] in "89ab" for text in texts)
    assert len(set(texts)) == len(ats_us)
