"""Files of history: from bytes on disk to events as JSON text in the shape of the contract, each with the number of its line.

`sources` finds the files and opens them, by their endings; `lines`, `csv_rows` and `parquet_rows` give rows; `columns` says what
the columns of a table mean, `segment` and `posthog` what the records of these two do. None of them judges an event.
"""
