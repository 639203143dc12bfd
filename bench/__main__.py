"""Measure the figures we promise, and print them in one table.

Without a PART all are measured, in about a quarter of an hour. With ten million stored events, `growth` alone takes as
long, and 15 GB of disk: `python -m bench growth --millions 10`. The same is true of `catalog --millions 10`
and `segments --millions 10`. Records go
to build/bench, pictures to docs/bench.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable

from bench import (
    backtest,
    batches,
    broadcast,
    building,
    catalog,
    chain,
    client,
    columnar,
    engine,
    growth,
    history,
    importing,
    inapp,
    latency,
    moving,
    plots,
    record,
    reports,
    scale,
    segments,
    singles,
    sql,
    startup,
)
from bench.effort import Effort, Measurement
from bench.table import HEADER, circumstances, line

PARTS: dict[str, Callable[[Effort], Measurement]] = {
    "singles": singles.measure,
    "latency": latency.measure,
    "batches": batches.measure,
    "client": client.measure,
    "growth": growth.measure,
    "history": history.measure,
    "catalog": catalog.measure,
    "engine": engine.measure,
    "broadcast": broadcast.measure,
    "moving": moving.measure,
    "scale": scale.measure,
    "startup": startup.measure,
    "inapp": inapp.measure,
    "reports": reports.measure,
    "columnar": columnar.measure,
    "building": building.measure,
    "sql": sql.measure,
    "segments": segments.measure,
    "importing": importing.measure,
    "backtest": backtest.measure,
    "chain": chain.measure,
}


GROWING = ("growth", "catalog", "segments", "backtest")


def main() -> None:
    args = _arguments()
    os.environ["PGOPTIONS"] = (
        "-c workbench.org=*"  # row-level security lets the benches' own queries see all organizations
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that child processes are stopped
    rounds, seconds = (5, 1.0) if args.quick else (7, 1.5)
    effort = Effort(rounds, seconds, args.new_every, args.millions)
    print(f"{record.machine()}, load before {os.getloadavg()[0]:.1f}; medians of {rounds} rounds\n\n{HEADER}")
    failed = []
    for part in args.parts or PARTS:
        try:
            measured = PARTS[part](effort)
        except Exception as error:  # noqa: BLE001  one part that fails must not cost the figures of the others
            print(f"  ({part} failed: {type(error).__name__}: {error})", flush=True)
            failed.append(part)
            continue
        for row in measured.rows:
            print(line(row), flush=True)
        if note := circumstances([one for slices in measured.slices.values() for one in slices]):
            print(f"  ({part}: {note})", flush=True)
        if not args.quick:
            record.keep(f"{part}-{effort.stored_millions}" if part in GROWING else part, measured)
    if not args.quick:
        plots.draw()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds; nothing is kept or drawn")
    parser.add_argument(
        "--new-every", type=int, default=100, help="one event in so many is a new contact's (%(default)s; 0: none)"
    )
    parser.add_argument(
        "--millions",
        type=int,
        default=1,
        help="stored events of growth, catalog, columnar, segments and backtest, read by sql (%(default)s)",
    )
    args = parser.parse_args()
    if unknown := [part for part in args.parts if part not in PARTS]:
        parser.error(f"Unknown part: {unknown[0]}. Parts: {', '.join(PARTS)}")
    return args


if __name__ == "__main__":
    main()
