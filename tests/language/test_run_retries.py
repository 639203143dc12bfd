"""Retries follow their schedule, with jitter."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.language.channel import CHANNELS, DEFAULT_POLICY, INAPP, RetryPolicy
from workbench.language.run import JITTER, delay_after


def test_in_app_messages_have_six_attempts_over_seven_hours() -> None:
    assert INAPP.delays_s == (10, 60, 600, 3_600, 21_600)
    assert DEFAULT_POLICY.max_attempts(INAPP) == 6


@pytest.mark.parametrize(("attempt", "left"), [(1, True), (4, True), (5, True), (6, False), (7, False), (1_000, False)])
def test_no_attempt_is_left_after_the_last_delay(attempt: int, left: bool) -> None:
    assert (delay_after(INAPP.delays_s, attempt, "e") is not None) is left


def test_no_delays_mean_one_attempt() -> None:
    assert delay_after((), 1, "e") is None
    assert RetryPolicy(()).max_attempts(INAPP) == 1


def test_one_schedule_can_be_used_for_every_channel() -> None:
    assert {RetryPolicy((1.5, 3)).delays(channel) for channel in (*CHANNELS.values(), None)} == {(1.5, 3)}


@given(st.integers(1, 5), st.text())
def test_jitter_stays_within_a_fifth_and_never_changes(attempt: int, jitter_key: str) -> None:
    jitter_key = jitter_key.encode(errors="ignore").decode()
    delay = delay_after(INAPP.delays_s, attempt, jitter_key)
    assert delay is not None
    plain = timedelta(seconds=INAPP.delays_s[attempt - 1])
    assert plain * (1 - JITTER) <= delay <= plain * (1 + JITTER)
    assert delay == delay_after(INAPP.delays_s, attempt, jitter_key)


def test_jitter_spreads_entries_evenly() -> None:
    seconds = [delay_after((100,), 1, f"entry-{number}").total_seconds() for number in range(1_000)]  # type: ignore[union-attr]
    by_tenth = [sum(1 for second in seconds if low <= second < low + 4) for low in range(80, 120, 4)]
    assert min(by_tenth) > 60
    assert max(by_tenth) < 140
