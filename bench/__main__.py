"""`python -m bench [ingest] [startup]`: measure and print the table."""

import os
import platform
import sys
from typing import Any

from bench import ingest, startup

_PARTS = {"ingest": ingest.measure, "startup": startup.measure}


def main(wanted: list[str]) -> None:
    """Print a line per figure, with the ratio to its reference and what was promised."""
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, medians; load before: {os.getloadavg()[0]:.1f}\n"
    )
    for name in wanted or list(_PARTS):
        for each in _PARTS[name]():
            print(_line(each), flush=True)


def _line(each: dict[str, Any]) -> str:
    value = f"{each['value']:,.0f}" if each["value"] >= 100 else f"{each['value']:.2f}"
    text = f"{each['name']:<52}{value:>10} {each['unit']:<11}"
    if each["ratio"] is not None:
        text += f" ratio {each['ratio']:.2f}, wanted ≥ {each['wanted']:g}"
    elif each["wanted"] is not None:
        text += f" wanted ≤ {each['wanted']:g}"
    return text


if __name__ == "__main__":
    main(sys.argv[1:])
