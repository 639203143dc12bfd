"""Backtests: what an automation would have done with the stored events of a period.

The events are read once, in the order of the database, and written to disk in buckets by a hash of their contact
(`buckets`). So the server sorts nothing, and a bucket contains all events of its contacts and fits into memory,
however many events there are. Worker processes (`worker`) simulate one bucket at a time with the interpreter of the
engine (`simulate_bucket`) and write the results as parquet files, from which `tables` and `result` compute what is
shown.

    source   selects the events and reads them           buckets          rows on disk, by contact
    worker   processes that simulate buckets             simulate_bucket  one bucket: rows in, rows out
    run      the whole backtest, with its progress       agreement        the comparison with the engine's entries
    starts   segments, schedules and broadcasts          tables, result   what is shown of it

Importing polars takes 0.3 s, so modules outside of this package import it only when a backtest starts.
"""
