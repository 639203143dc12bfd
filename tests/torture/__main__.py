"""`python -m tests.torture --seed N --minutes 10`: kill everything under load and prove that nothing is lost or done
twice.

Theory of operation. Clients send all kinds of events to several API processes and log every answer: also misspelt ones,
hostile texts, several about one contact within milliseconds, and some over half-closed connections. A request without
an answer is repeated with the same idempotency key until it gets one. Engines run the entries that the events start;
webhooks and emails arrive at receivers that record every copy and misbehave; wallets get pushes over sockets,
acknowledge some and disconnect; analysts query their own data, look at hostile texts, try to reach the data of others,
and send queries that would not end; operators run commands, also with wrong secrets. Meanwhile the nemesis kills and
freezes API processes, engines, Postgres and its backends by a plan that follows from the printed seed, and restarts
what it killed; a second installation, run by `workbench up`, loses its logs, its secret and its file descriptors.
Automations are switched, edited and archived, dead entries replayed, keys created and revoked, contacts erased. In an
organization of its own, a marketer sends broadcasts, collects digests, moves entries, and stops everything. Then the
faults end, the work drains, and every wallet collects its messages. The checker compares the database with the answers
and with what the receivers got: one function per invariant, and an invariant that had nothing to check fails. The seed
fixes the requests and the faults, not the interleaving, so a violation is kept with all its evidence: the next run may
not show it.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

import msgspec

from api.clock import token
from tests.torture.installation import installed
from tests.torture.invariants import Verdict, check
from tests.torture.log import now_us
from tests.torture.nemesis import RunSpec
from tests.torture.run import Run, torture
from tests.torture.summary import summary

_KEPT_IN = Path(__file__).parents[2] / "tmp" / "torture"


def main() -> int:
    """Run once. Returns 0 if every invariant holds."""
    args = _parser().parse_args()
    os.environ["PGOPTIONS"] = (
        "-c workbench.org=*"  # row-level security lets the checker's own queries see all organizations
    )
    folder = _KEPT_IN / f"{args.seed}-{now_us() // 1_000_000}"
    folder.mkdir(parents=True)
    say(
        f"seed {args.seed}: {args.engine_kills} kills of engines, {args.kills} others, "
        f"in {args.minutes:g} minutes; logs in {folder}"
    )
    spec = RunSpec(args.seed, args.kills, args.engine_kills, args.minutes * 60, args.clients, slack=args.slack)
    run = asyncio.run(_run(spec, folder, args.apis, args.engines))
    verdicts = check(run.evidence)
    text = summary(run, verdicts)
    (folder / "summary.txt").write_text(text + "\n")
    say(text)
    violated = any(verdict.violations for verdict in verdicts)
    if violated or args.keep:
        _keep(run, verdicts, folder)
        say(f"the evidence is in {folder}")
    return int(violated)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _run(spec: RunSpec, folder: Path, apis: int, engines: int) -> Run:
    async with installed(folder, spec.seed, apis, engines) as installation:
        return await torture(installation, spec, say)


def _keep(run: Run, verdicts: list[Verdict], folder: Path) -> None:
    """Write the evidence of the verdicts to files."""
    lines = [f"{verdict.name} {violation}" for verdict in verdicts for violation in verdict.violations]
    (folder / "violations.txt").write_text("\n".join(lines) + "\n")
    evidence = run.evidence
    kept = {
        "faults": run.faults,
        "sent": list(evidence.log.sent.values()),
        "attempts": evidence.log.attempts,
        "switched": evidence.log.switched,
        "published": evidence.log.published,
        "replies": evidence.log.replies,
        "visits": evidence.log.visits,
        "revoked": evidence.log.revoked,
        "erased": evidence.log.erased,
        "commands": evidence.log.commands,
        "attacks": evidence.log.attacks,
        "bombs": evidence.log.bombs,
        "lifted": evidence.log.lifted,
        "shown": evidence.log.shown,
        "arrivals": evidence.arrivals,
        **{f"stored-{name}": rows for name, rows in msgspec.structs.asdict(evidence.stored).items()},
        "searched": evidence.searched,
    }
    if evidence.journeys is not None:
        journeys = msgspec.structs.asdict(evidence.journeys)
        kept |= {"journeys-log": [journeys.pop("log")], **{f"journeys-{name}": rows for name, rows in journeys.items()}}
    for name, rows in kept.items():
        (folder / f"{name}.ndjson").write_bytes(msgspec.json.Encoder().encode_lines(rows))
    (folder / "counts.json").write_bytes(msgspec.json.encode(evidence.counts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seed", type=int, default=int.from_bytes(token(3), "big"), help="default: a random one, printed"
    )
    parser.add_argument(
        "--kills", type=int, default=140, help="how many kills of all but engines (default %(default)s)"
    )
    parser.add_argument("--engine-kills", type=int, default=140, help="how many kills of engines (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=10.0, help="spread over how long (default %(default)s)")
    parser.add_argument("--apis", type=int, default=3, help="API processes (default %(default)s)")
    parser.add_argument("--clients", type=int, default=12, help="clients that send events (default %(default)s)")
    parser.add_argument("--engines", type=int, default=4, help="engines (default %(default)s)")
    parser.add_argument(
        "--slack",
        type=float,
        default=10.0,
        help="seconds by which delays and answers may be late (default %(default)g)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the evidence even if every invariant holds")
    return parser


if __name__ == "__main__":
    sys.exit(main())
