"""The figures we promise, each beside a reference measured in the same run. `make bench` prints the table.

A machine that others share is never equally fast for two minutes, so nothing here is an absolute number first: what is
measured and what it is compared with take turns in slices of a second or two, each pair gives one ratio, and the table
shows the median of the rounds with the lowest and the highest.

A part is a module with `measure(effort) -> Measured`, named in `__main__.PARTS`; it starts what it needs (`site`),
sends load (`load`, orders of `traffic`), and returns rows (`table`) with the slices they come from. Those are kept
(`record`), and the pictures in `docs/bench` are drawn from them (`plots`).
"""
