"""What is known of mutants: the results that `make mutants` appends to build/mutants.jsonl, and the page results.md.

The mutants of a module run in a random order, which is the same in every run. So those that were run before the first
that was not are a fair sample of the module, and an interrupted run tells a share with its error.
"""

import json
import math
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

RESULTS = Path("build/mutants.jsonl")
PAGE = Path(__file__).with_name("results.md")
_REASONS = Path(__file__).with_name("reasons.toml")

Result: TypeAlias = dict[str, Any]  # key, line, diff, verdict, and the test `by` which a mutant was killed


class Report(msgspec.Struct, frozen=True):
    """What is known of the mutants of a module.

    `run`, `killed`: of the mutants before the first that was not run. `survivors`: of all.
    """

    module: str
    mutants: int
    run: int
    killed: int
    survivors: list[Result]


class Reason(msgspec.Struct, frozen=True):
    """Why mutants survive: those of functions like `code` with `change` in a changed line."""

    code: str
    reason: str
    change: str = ""


def read_results() -> tuple[dict[str, list[str]], dict[str, Result]]:
    """Return the keys of the mutants of each module when it was last run, in order, and the newest result of each."""
    keys, results = {}, {}
    for line in RESULTS.read_text().splitlines() if RESULTS.exists() else ():
        record = json.loads(line)
        if "module" in record:
            keys[record["module"]] = record["keys"]
        elif "key" in record:
            results[record["key"]] = record
    return keys, results


def read_reports(modules: Iterable[str]) -> list[Report]:
    keys, results = read_results()
    reports = []
    for module in modules:
        if of_module := keys.get(module):
            known = list(takewhile(bool, map(results.get, of_module)))
            killed = sum(result["verdict"] == "killed" for result in known if result)
            survivors = [results[key] for key in of_module if key in results and results[key]["verdict"] != "killed"]
            reports.append(Report(module, len(of_module), len(known), killed, survivors))
    return reports


def read_reasons() -> list[Reason]:
    return msgspec.convert(tomllib.loads(_REASONS.read_text())["survivor"], list[Reason])


def reason_for(result: Result, reasons: Sequence[Reason]) -> Reason | None:
    code = code_of(result)
    changed = "\n".join(line[1:] for line in result["diff"].splitlines() if line.startswith("+"))
    matching = (reason for reason in reasons if fnmatchcase(code, reason.code) and reason.change in changed)
    return next(matching, None)


def code_of(result: Result) -> str:
    """The module and the function that a mutant changes."""
    module, function, *_ = result["key"].split(":")
    return f"{module}.{function}"


def describe(result: Result) -> str:
    return f"{result['verdict']}: {result['key']}, line {result['line']}\n{result['diff']}"


def table(reports: Sequence[Report], reasons: Sequence[Reason]) -> Iterator[str]:
    """Yield the lines of the table of modules, in Markdown."""
    yield "| code | mutants | run | killed | share | of all, with 95 % confidence | survivors with a reason |"
    yield "|---|---|---|---|---|---|---|"
    for report in reports:
        share, interval = "", ""
        if report.run:
            share = f"{report.killed / report.run:.1%}"
            interval = "" if report.run == report.mutants else "{:.0%} to {:.0%}".format(*_interval(report))
        explained = sum(reason_for(result, reasons) is not None for result in report.survivors)
        yield (
            f"| `{report.module}` | {report.mutants:,} | {report.run:,} | {report.killed:,} | {share} | {interval} "
            f"| {explained} of {len(report.survivors)} |"
        )
    mutants, run, killed = (sum(getattr(report, name) for report in reports) for name in ("mutants", "run", "killed"))
    yield f"| all | {mutants:,} | {run:,} | {killed:,} | {killed / max(run, 1):.1%} | | |"


def _interval(report: Report) -> tuple[float, float]:
    """Wilson's interval."""
    z, n, share = 1.96, report.run, report.killed / report.run
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def write_page(reports: Sequence[Report], reasons: Sequence[Reason]) -> None:
    explained: Counter[Reason] = Counter()
    unexplained: dict[str, list[str]] = defaultdict(list)
    for result in (result for report in reports for result in report.survivors):
        if (reason := reason_for(result, reasons)) is not None:
            explained[reason] += 1
        else:
            unexplained[code_of(result)].append(str(result["line"]))
    lines = [
        "# Results of mutants",
        "",
        f"Written by `make mutants MUTANTS=--write` on {datetime.now(UTC):%Y-%m-%d}. [README.md](README.md) says what",
        "is changed. `run`: the mutants before the first that was not run, in their random order; `share`: of these.",
        "",
        *table(reports, reasons),
        "",
        "## Survivors with a reason",
        "",
        "| code | change | mutants | reason |",
        "|---|---|---|---|",
        *(
            f"| `{reason.code}` | {f'`{reason.change}`' if reason.change else 'any'} | {number} | {reason.reason} |"
            for reason, number in sorted(explained.items(), key=lambda item: item[0].code)
        ),
        "",
        "## Survivors without a reason",
        "",
        "| code | mutants | in the lines |",
        "|---|---|---|",
        *(
            f"| `{code}` | {len(at)} | {', '.join(sorted(set(at), key=int))} |"
            for code, at in sorted(unexplained.items())
        ),
    ]
    PAGE.write_text("\n".join(lines) + "\n")
