"""For each port on stdin, forks a process that serves the API on it, and prints its id.

The import of the API takes most of the time of a start, and only this process imports it.
"""

import os
import signal
import sys

import api.app  # noqa: F401
from api.__main__ import main

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a killed process leaves no zombie
for line in sys.stdin:
    if (process_id := os.fork()) == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        os._exit(main(["serve", "--port", line.strip()]))
    sys.stdout.write(f"{process_id}\n")
    sys.stdout.flush()
