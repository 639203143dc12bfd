"""The promised figures, each with a reference that is measured in the same run. `make bench` prints the table.

The speed of a shared machine changes from minute to minute, so the figures are ratios: the subject and its reference
alternate in slices of a second or two, each pair gives one ratio, and the table shows the median of the rounds with the
lowest and the highest.

A part is a module with `measure(effort) -> Measurement`, named in `__main__.PARTS`; it starts the processes it needs
(`site`), sends load (`load`, events of `traffic`), and returns rows (`table`) with the slices they are computed from.
Rows and slices are stored (`record`), and the pictures in `docs/bench` are drawn from them (`plots`).
"""
