"""What is known of mutants: the results that `make mutants` appends to build/mutants.jsonl, and the page results.md.

The mutants of a module run in a random order, which is the same in every run. So those that were run before the first
that was not are a fair sample of the module, and an interrupted run tells a share with its error.
"""

import json
import math
import re
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

# key, line, diff, verdict, the test `by` which a mutant was killed, and `partial`: by a run of some tests only
Result: TypeAlias = dict[str, Any]


class Report(msgspec.Struct, frozen=True):
    """What is known of the mutants of a module.

    `killed`, `survivors`: of all. `sampled`: the number of mutants before the first that is not decided, as far as runs
    of all tests went, in twenties; `killed_sampled`: of these.
    """

    module: str
    mutants: int
    killed: int
    sampled: int
    killed_sampled: int
    survivors: list[Result]


class Reason(msgspec.Struct, frozen=True):
    """Why mutants survive: those of functions like `code` with the pattern `change` in a changed line."""

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
            results_before = [result for result in takewhile(bool, map(results.get, of_module)) if result]
            known = [result["verdict"] for result in results_before]
            if len(known) < len(of_module):
                # To end at the first that is not decided would not be fair, nor after kills by a part of the tests.
                ends = [number for number, result in enumerate(results_before, 1) if not result.get("partial")]
                known = known[: max(ends, default=0) // 20 * 20]
            decided = [results[key] for key in of_module if key in results]
            survivors = [result for result in decided if result["verdict"] != "killed"]
            killed = len(decided) - len(survivors)
            reports.append(Report(module, len(of_module), killed, len(known), known.count("killed"), survivors))
    return reports


def read_reasons() -> list[Reason]:
    return msgspec.convert(tomllib.loads(_REASONS.read_text())["survivor"], list[Reason])


def reason_for(result: Result, reasons: Sequence[Reason]) -> Reason | None:
    code = code_of(result)
    lines = result["diff"].splitlines()
    changed = "\n".join(line[1:] for line in [line for line in lines if line.startswith("+")] or lines)
    matching = (item for item in reasons if fnmatchcase(code, item.code) and re.search(item.change, changed))
    return next(matching, None)


def code_of(result: Result) -> str:
    """The module and the function that a mutant changes."""
    module, function, *_ = result["key"].split(":")
    return f"{module}.{function}"


def describe(result: Result) -> str:
    return f"{result['verdict']}: {result['key']}, line {result['line']}\n{result['diff']}"


def table(reports: Sequence[Report], reasons: Sequence[Reason]) -> Iterator[str]:
    """Yield the lines of the table of modules, in Markdown."""
    yield "| code | mutants | killed | survived | with a reason | not decided | killed of the sample | of all, 95 % |"
    yield "|---|---|---|---|---|---|---|---|"
    for report in reports:
        survived = len(report.survivors)
        explained = sum(reason_for(result, reasons) is not None for result in report.survivors)
        rest = report.mutants - report.killed - survived
        share, interval = "", ""
        if report.sampled:
            share = f"{report.killed_sampled / report.sampled:.0%} of {report.sampled:,}"
            low, high = _interval(report)
            interval = f"{share.partition(' ')[0]}" if not rest else f"{low:.0%} to {high:.0%}"
        yield (
            f"| `{report.module}` | {report.mutants:,} | {report.killed:,} | {survived} | {explained} | {rest:,} "
            f"| {share} | {interval} |"
        )
    mutants, killed = sum(report.mutants for report in reports), sum(report.killed for report in reports)
    survived = sum(len(report.survivors) for report in reports)
    yield f"| all | {mutants:,} | {killed:,} | {survived} | | {mutants - killed - survived:,} | | |"


def _interval(report: Report) -> tuple[float, float]:
    """Wilson's interval."""
    z, n, share = 1.96, report.sampled, report.killed_sampled / report.sampled
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
        "is changed. The sample: the mutants before the first that is not decided, in their random order, in twenties.",
        "It ends where all tests ran last. A mutant is not decided if it was not run, or only with some tests, none of",
        "which kills it.",
        "",
        *table(reports, reasons),
        "",
        "## Survivors with a reason",
        "",
        "| code | change | mutants | reason |",
        "|---|---|---|---|",
        *(
            f"| `{reason.code}` | {_cell(reason.change)} | {number} | {reason.reason} |"
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


def _cell(pattern: str) -> str:
    return "`{}`".format(pattern.replace("|", "\\|")) if pattern else "any"
