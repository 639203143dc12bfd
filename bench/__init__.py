"""The figures we promise, each a ratio against a reference measured in the same run. `make bench` prints the table."""
