"""Backtests: what an automation would have done with the stored events of a period. Theory of operation.

The events are read once, as they lie in the database, and put down on disk in buckets by a hash of their contact (`spool`): the
server sorts nothing, and a bucket has all of its contacts and fits into memory, however many events there are. Buckets are then
lived through one by one, in processes beside this one (`crew`, `worker`), each by the interpreter of the engine (`lives`); what
came of it goes into parquet files, from which the result (`result`) counts what it shows.

    selection  which events SQL gives        spool   rows in buckets on disk
    lives      one bucket: rows in, rows out crew    processes that live through buckets
    run        the whole, with its progress  result  what is shown of it

polars takes 0.3 s to load: only `spool`, `lives`, `run` and `result` import it, and nobody imports them before they are needed.
"""
