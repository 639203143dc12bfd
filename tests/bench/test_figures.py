from bench.figures import Slice, Spread, cpu_us, paired, per_core, percentile, quantiles, rates, spread


def a_slice(accepted: int = 3_000, seconds: float = 1.5, **cpu: float) -> Slice:
    return Slice(accepted, accepted, 0, seconds, {"202": accepted}, [], cpu)


def test_a_spread_is_the_median_between_the_lowest_and_the_highest_round() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([4.0, 1.0]) == Spread(2.5, 1.0, 4.0)


def test_ratios_are_computed_per_round_so_that_a_slow_minute_cancels_out() -> None:
    assert paired([500.0, 50.0], [1_000.0, 100.0]) == [0.5, 0.5]


def test_percentiles_of_a_thousand_latencies() -> None:
    distribution = quantiles([float(latency) for latency in range(1_001)])
    assert [percentile(distribution, percent) for percent in (0, 50, 99, 99.5, 100)] == [0, 500, 990, 995, 1_000]


def test_percentiles_of_one_latency_are_that_latency() -> None:
    assert percentile(quantiles([7.0]), 99) == 7.0


def test_no_answers_have_no_distribution() -> None:
    assert quantiles([]) == []


def test_rates_and_cpu_are_per_accepted_event() -> None:
    slices = [a_slice(service=0.75, postgres=0.375)]
    assert rates(slices) == [2_000.0]
    assert per_core(slices, "service") == [4_000.0]
    assert cpu_us(slices, "service") == [250.0]
    assert cpu_us(slices, "postgres") == [125.0]
