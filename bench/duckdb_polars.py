"""Questions to parts that DuckDB and polars answer: `python -m bench.duckdb_polars ENGINE QUESTION FOLDER`.

Each question is asked in a process of its own, as a report is, and answers with one number that the report has as well.
Neither engine makes use of the order of the files. DuckDB is no requirement: `pip install duckdb`.
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl

from bench.parts import EVENTS

_WITHIN_US = 7 * 86_400 * 1_000_000
_WEEK_US, _MONDAY_US = 7 * 86_400 * 1_000_000, 4 * 86_400 * 1_000_000  # 1970 began on a Thursday
_DAY_US = 86_400 * 1_000_000
_NUMBER = {name: number for number, name in enumerate(EVENTS)}
_STEPS = [_NUMBER[name] for name in ("page.view", "add_to_cart", "checkout")]
_SIGNUP, _DEPOSIT = _NUMBER["signup"], _NUMBER["deposit"]
_WEEK = f"(occurred_at - {_MONDAY_US}) // {_WEEK_US}"

FUNNEL, RETENTION, ACTIVE_USERS, PATHS, REVENUE = (
    "funnel of frequent events", "retention", "active users", "paths", "revenue by week and country",
)  # fmt: skip

DUCKDB = {
    # The latest earlier row of the step before: an ASOF join carries its begin along.
    FUNNEL: f"""
        WITH step_1 AS (SELECT contact, occurred_at, occurred_at AS begun FROM events WHERE event = {_STEPS[0]}),
        step_2 AS (SELECT e.contact, e.occurred_at, s.begun FROM events e
                   ASOF JOIN step_1 s ON s.contact = e.contact AND e.occurred_at > s.occurred_at
                   WHERE e.event = {_STEPS[1]} AND e.occurred_at - s.begun <= {_WITHIN_US}),
        step_3 AS (SELECT e.contact FROM events e
                   ASOF JOIN step_2 s ON s.contact = e.contact AND e.occurred_at > s.occurred_at
                   WHERE e.event = {_STEPS[2]} AND e.occurred_at - s.begun <= {_WITHIN_US})
        SELECT count(DISTINCT contact) FROM step_3""",
    RETENTION: f"""
        WITH began AS (SELECT contact, min(occurred_at) AS at FROM events WHERE event = {_SIGNUP} GROUP BY contact),
        returned AS (SELECT DISTINCT e.contact, {_WEEK} AS week
                     FROM events e JOIN began b ON b.contact = e.contact AND e.occurred_at >= b.at)
        SELECT count(*) FROM returned""",
    ACTIVE_USERS: f"SELECT count(*) FROM (SELECT DISTINCT contact, occurred_at // {_DAY_US} FROM events)",
    PATHS: f"""
        WITH began AS (SELECT contact, min(occurred_at) AS at FROM events WHERE event = {_SIGNUP} GROUP BY contact),
        taken AS (SELECT e.contact, list(e.event ORDER BY e.occurred_at) AS events
                  FROM events e JOIN began b
                      ON b.contact = e.contact AND e.occurred_at BETWEEN b.at AND b.at + {_WITHIN_US}
                  GROUP BY e.contact),
        paths AS (SELECT list_filter(events, lambda event, place: place = 1 OR event <> events[place - 1])[1:4] AS path
                  FROM taken)
        SELECT max(contacts) FROM (SELECT count(*) AS contacts FROM paths GROUP BY path)""",
    REVENUE: f"""
        SELECT sum(total)::bigint FROM (
            SELECT sum("number:amount") AS total, median("number:amount"), count(DISTINCT contact) FROM events
            WHERE event = {_DEPOSIT} GROUP BY {_WEEK}, "json:country")""",
}


def _polars_retention(events: pl.LazyFrame) -> pl.LazyFrame:
    began = (
        events.filter(pl.col("event") == _SIGNUP).group_by("contact").agg(pl.col("occurred_at").min().alias("began"))
    )
    returned = events.join(began, on="contact").filter(pl.col("occurred_at") >= pl.col("began"))
    return returned.select("contact", (pl.col("occurred_at") - _MONDAY_US) // _WEEK_US).unique().select(pl.len())


def _polars_active_users(events: pl.LazyFrame) -> pl.LazyFrame:
    return events.select("contact", pl.col("occurred_at") // _DAY_US).unique().select(pl.len())


def _polars_revenue(events: pl.LazyFrame) -> pl.LazyFrame:
    amount, week = pl.col("number:amount"), ((pl.col("occurred_at") - _MONDAY_US) // _WEEK_US).alias("week")
    groups = events.filter(pl.col("event") == _DEPOSIT).group_by(week, "json:country")
    return groups.agg(
        amount.sum().alias("total"), amount.median().alias("median"), pl.col("contact").n_unique()
    ).select(pl.col("total").sum())


# Polars has no join that gives the latest earlier row of each contact without sorting all events by moment.
POLARS: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    RETENTION: _polars_retention,
    ACTIVE_USERS: _polars_active_users,
    REVENUE: _polars_revenue,
}


def ask(engine: str, question: str, paths: Iterable[Path]) -> int:
    """Return the answer of `duckdb` or `polars`."""
    if engine == "polars":
        answer = POLARS[question](pl.scan_parquet([*paths])).collect(engine="streaming")
        return int(answer.item())
    duckdb = importlib.import_module("duckdb")
    connection = duckdb.connect(config={"memory_limit": "4GB", "threads": 2})
    listed = ", ".join(f"'{path}'" for path in paths)
    connection.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet([{listed}])")
    return int(connection.execute(DUCKDB[question]).fetchone()[0])


if __name__ == "__main__":
    sys.stdout.write(f"{ask(sys.argv[1], sys.argv[2], sorted(Path(sys.argv[3]).glob('*.parquet')))}")
