"""The time comes from the database, independent of the clock of a host (docs/trust.md B20, B21), and ids contain it."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from api.clock import Clock, from_us, monotonic_ns, us_of, uuid7, uuid7_from


def at(clock: Clock, off: timedelta) -> None:
    """Calibrate a clock as if the database's time were `off` from its own."""
    now = monotonic_ns()
    clock.calibrate(clock.now() + off, now, now)


def test_b20_a_host_whose_clock_is_ten_minutes_off_uses_the_time_of_the_database() -> None:
    right, wrong = Clock(), Clock()
    at(wrong, timedelta(minutes=10))
    now = monotonic_ns()
    truth = from_us(right.now_us())
    for clock in (right, wrong):
        clock.calibrate(truth, now, now)
    assert abs(wrong.now_us() - right.now_us()) < 100_000


def test_b21_moments_stay_different_when_the_clock_steps_back() -> None:
    clock = Clock()
    before = [clock.unique_now_us() for _ in range(100)]
    at(clock, timedelta(seconds=-5))
    after = [clock.unique_now_us() for _ in range(100)]
    moments = before + after
    assert moments == sorted(set(moments))


@given(st.integers(0, 253_402_300_799_999_999))
def test_an_id_begins_with_its_moment(at_us: int) -> None:
    text = uuid7(at_us)
    assert text[:18] == uuid7_from(at_us, bytes(8))[:18]
    assert us_of(text) == at_us - at_us % 1_000
    assert text[19] in "89ab"
