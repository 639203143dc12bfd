"""Time is the database's, whatever the clock of a host does (trust.md B20, B21)."""

from datetime import timedelta

from api.clock import Clock, from_us, monotonic_ns


def at(clock: Clock, off: timedelta) -> None:
    """Tell a clock that the database's is so far from what it takes for now."""
    now = monotonic_ns()
    clock.calibrate(clock.now() + off, now, now)


def test_b20_a_host_ten_minutes_off_counts_as_the_database_does() -> None:
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
