"""A process that lives through buckets: `python -m workbench.backtest.worker`.

The order is the first line it reads; each line after it is a bucket, answered by a line when it is done. It ends with its input.
"""

import signal
import sys

from workbench.backtest.lives import Lives
from workbench.backtest.order import read_order


def main() -> None:
    """Work until there is no more to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the interrupt button is for the notebook, which then ends us
    lines, answers = sys.stdin.buffer, sys.stdout.buffer
    lives = Lives(read_order(lines.readline()))
    for line in lines:
        answers.write(lives.live(int(line)).line())
        answers.flush()


if __name__ == "__main__":
    main()
