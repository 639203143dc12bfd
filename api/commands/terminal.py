"""What commands say: results on stdout, everything else on stderr."""

import sys


def say(text: str = "") -> None:
    """Write a line of result to stdout at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a line about progress or trouble to stderr at once."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
