"""Changes the code that decides in one place at a time, and says which changes no test notices (`make mutants`).

mutmut makes the changes. They run here, because a run of pytest for each takes seconds: the tests are collected once,
and run once to see which statements each of them reaches. A mutant is then a fork of this process, in which a function
has another code object. The fork runs the tests that reach the changed statement, first those that failed for other
mutants of the function, then the quick ones, and ends at the first that fails. No test runs in the process that forks,
so nothing is cached there that a mutant should compute.

Results are appended to build/mutants.jsonl. A mutant is run again if its function has changed, or with `--again`.
`report.py` tells what they mean.
"""

import argparse
import difflib
import gc
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import _lru_cache_wrapper
from itertools import islice, pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TextIO, TypeAlias

import coverage
import libcst
import pytest
from _pytest.runner import runtestprotocol
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import get_ignored_lines

from tests.mutants import report
from tests.mutants.report import Result

MUTATED = {  # the functions to change, by path
    "workbench/language/*.py": ("*",),
    "api/engine/progress.py": ("*",),
    "api/engine/deliver.py": ("judge", "_with_outcome"),
    "api/ingest/identity.py": (
        *("resolve_contacts", "recognise", "_assign_identifiers", "_plan_attributes", "_distinct_keys"),
        *("ContactIdentifiers.*", "AttributeChange.*"),
    ),
}
TESTS = (
    "tests/language",
    "tests/text/test_round_trip.py",
    "tests/automations/test_body.py",
    "tests/backtest/test_merged.py",
    "tests/chain/test_decode.py",
    "tests/display/test_graph.py",
    "tests/engine/test_progress.py",
    "tests/ingest/test_identity_resolution.py",
    "tests/ingest/test_rejected_redaction.py",
    "tests/query/test_parameters.py",
    "tests/workbench/test_event_json.py",
    "tests/workbench/test_simulate.py",
    "tests/workbench/test_simulate_steps.py",
    "tests/workbench/test_snippets.py",
    "tests/workbench/test_verbs.py",
    "tests/workbench/test_verbs_and_settings.py",
)
MEMORY_BYTES = 4 << 30  # a mutant that never stops appending ends here
KILLING = {signal.SIGXCPU, signal.SIGSEGV}  # a loop or a recursion without end; another signal comes from outside

Cache: TypeAlias = "_lru_cache_wrapper[Any]"
Functions: TypeAlias = dict[tuple[str, str], list[FunctionType]]  # by the path of the file and the qualified name


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one function.

    `lines` are those of the statement that it changes; tests that reach one of them can notice it.
    """

    key: str
    path: str
    function: str
    lines: range
    mutation: Mutation


@dataclass(frozen=True, slots=True)
class Reached:
    """What the tests reach: the numbers of the tests by path and line, and the CPU seconds of each."""

    tests: dict[str, dict[int, list[int]]]
    seconds: list[float]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=["*"], help="such as workbench.language.advance")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sample", type=int, help="run only the first so many of each module, in their random order")
    parser.add_argument("--seconds", type=float, default=3, help="CPU time after which a mutant has survived")
    parser.add_argument("--again", action="store_true", help="run those again that survived or were not reached")
    parser.add_argument("--tests", nargs="*", help="run only these, which is quick, and keep only what they kill")
    parser.add_argument("--report", action="store_true", help="only tell what is known")
    parser.add_argument("--write", action="store_true", help="write what is known into tests/mutants/results.md")
    arguments = parser.parse_args()
    files = [path for pattern in MUTATED for path in sorted(map(str, Path().glob(pattern)))]
    paths = dict.fromkeys(path for module in arguments.modules for path in files if fnmatchcase(_module(path), module))
    if not arguments.report and not arguments.write:
        # A run may be stopped for long: faulthandler must not end it then.
        options = ["-q", "-s", "--assert=plain", "--tb=native", "--hypothesis-profile=mutants"]
        options += ["-o", "faulthandler_timeout=0"]
        if code := pytest.main([*options, *(arguments.tests or TESTS)], plugins=[_Runner(list(paths), arguments)]):
            return int(code)
    reports, reasons = report.read_reports(map(_module, paths)), report.read_reasons()
    if arguments.write:
        report.write_page(reports, reasons)
        return 0
    for result in (result for module in reports for result in module.survivors):
        if report.reason_for(result, reasons) is None:
            _print(report.describe(result))
    _print("\n".join(report.table(reports, reasons)))
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _module(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _mutants(path: str) -> list[Mutant]:
    """The changes of functions and methods that mutmut makes in a file, in a random order that is always the same."""
    return sorted(_mutants_in_order(path), key=lambda mutant: hashlib.sha256(mutant.key.encode()).digest())


def _mutants_in_order(path: str) -> Iterator[Mutant]:
    source = Path(path).read_text()
    wrapper = MetadataWrapper(libcst.parse_module(source))
    visitor = _Visitor(mutation_operators, get_ignored_lines(path, source, wrapper))
    wrapper.visit(visitor)
    positions, parents = wrapper.resolve(PositionProvider), wrapper.resolve(ParentNodeProvider)
    numbers: Counter[str] = Counter()
    hashes: dict[libcst.FunctionDef, str] = {}
    names = next(names for pattern, names in MUTATED.items() if fnmatchcase(path, pattern))
    for mutation in visitor.mutations:
        function = mutation.contained_by_top_level_function
        if not isinstance(function, libcst.FunctionDef):
            continue  # a constant of a class
        name, owner = function.name.value, parents.get(parents[function])
        if isinstance(owner, libcst.ClassDef):
            name = f"{owner.name.value}.{name}"
        if not any(fnmatchcase(name, pattern) for pattern in names):
            continue
        if function not in hashes:
            hashes[function] = hashlib.sha256(wrapper.module.code_for_node(function).encode()).hexdigest()[:8]
        numbers[name] += 1
        key = f"{_module(path)}:{name}:{hashes[function]}:{numbers[name]}"
        statement: libcst.CSTNode = mutation.original_node
        is_read = True
        while not isinstance(statement, libcst.SimpleStatementLine | libcst.BaseCompoundStatement):
            parent = parents[statement]
            is_read = is_read and not (isinstance(parent, libcst.Assert) and parent.msg is statement)
            statement = parent
        if not is_read:
            continue  # the text of an assert, which is for the author of a mistake
        end = positions[
            mutation.original_node if isinstance(statement, libcst.BaseCompoundStatement) else statement
        ].end
        start = positions[function if statement is function else statement].start
        lines = range(start.line, (positions[function].end if statement is function else end).line + 1)
        yield Mutant(key, path, name, lines, mutation)


class _Visitor(MutationVisitor):
    """Changes decorated functions, too, which mutmut leaves out: here their decorators are not run again."""

    def _skip_node_and_children(self, node: libcst.CSTNode) -> bool:
        if isinstance(node, libcst.FunctionDef):
            return False
        return bool(super()._skip_node_and_children(node))


class _Runner:
    """A plugin of pytest that runs mutants in place of the tests."""

    def __init__(self, paths: Sequence[str], arguments: argparse.Namespace) -> None:
        self._paths = paths
        self._jobs = arguments.jobs
        self._sample = arguments.sample
        self._seconds = arguments.seconds
        self._is_partial = bool(arguments.tests)
        done = report.read_results()[1].values()
        self._done = {result["key"] for result in done if result["verdict"] == "killed" or not arguments.again}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out tests that need Postgres, and these."""
        left_out = (
            "test_reference.py",  # compares texts of the source, which a mutant does not change
            "test_depth.py",  # this and the next two: long or deep inputs, which take minutes
            "test_template_bounds.py",
            "ten_thousand",
            "k7_a_webhook",  # the id of a case is a URL of 60,000 characters
        )
        for item in list(items):
            if {"postgres", "running"} & {*item.fixturenames} or any(name in item.nodeid for name in left_out):  # type: ignore[attr-defined]
                items.remove(item)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for path in self._paths:
            importlib.import_module(_module(path))
        gc.unfreeze()  # tests/conftest.py may have frozen what is searched now
        # A test that finds in a cache what another one computed would not reach the code that computes it.
        caches = [
            value
            for value in gc.get_objects()
            if isinstance(value, _lru_cache_wrapper) and value.__module__.startswith(("workbench.", "api."))
        ]
        reached = _reached(session.items, caches)
        _print(f"{len(session.items)} tests, {sum(reached.seconds):.1f} CPU s")
        functions: Functions = defaultdict(list)
        for value in gc.get_objects():
            if isinstance(value, FunctionType):
                functions[value.__code__.co_filename, value.__code__.co_qualname].append(value)
        gc.freeze()
        started, counts = time.monotonic(), Counter[str]()
        with report.RESULTS.open("a") as file:
            waiting = self._waiting(file)
            for result in self._run(waiting, session.items, reached, functions):
                decided = result["verdict"] in ("survived", "not reached") and not self._is_partial
                if decided or result["verdict"] == "killed":
                    file.write(json.dumps(result | ({"partial": True} if self._is_partial else {})) + "\n")
                    file.flush()
                else:
                    _print(report.describe(result))
                counts[result["verdict"]] += 1
                if counts.total() % 100 == 0:
                    rate = counts.total() / (time.monotonic() - started) * 60
                    _print(f"{result['key']}: {dict(counts)}, {rate:.0f} a minute")
        return True

    def _waiting(self, file: TextIO) -> Iterator[Mutant]:
        """The mutants to run; the tree of only one file at a time is in memory, because each fork copies its pages."""
        for path in self._paths:
            mutants = _mutants(path)
            file.write(json.dumps({"module": _module(path), "keys": [mutant.key for mutant in mutants]}) + "\n")
            yield from (mutant for mutant in islice(mutants, self._sample) if mutant.key not in self._done)

    def _run(
        self, waiting: Iterator[Mutant], items: list[pytest.Item], reached: Reached, functions: Functions
    ) -> Iterator[Result]:
        failed: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)  # by function, tests that noticed a change
        running: dict[int, tuple[Mutant, int]] = {}
        while True:
            while len(running) < self._jobs and (mutant := next(waiting, None)) is not None:
                by_line = reached.tests.get(mutant.path, {})
                noticed = failed[mutant.path, mutant.function]
                tests = sorted(
                    {test for line in mutant.lines for test in by_line.get(line, ())},
                    key=lambda test: (-noticed[test], reached.seconds[test]),
                )
                reading, writing = os.pipe()
                pid = os.fork()
                if pid == 0:
                    os.close(reading)
                    chosen = [(test, items[test], reached.seconds[test]) for test in tests]
                    _run_mutant(mutant, functions, chosen, self._seconds, writing)
                os.close(writing)
                running[pid] = mutant, reading
            if not running:
                return
            pid, status = os.wait()
            mutant, reading = running.pop(pid)
            with os.fdopen(reading) as pipe:
                diff, _, failure = pipe.read().partition("\0")
            result = {"key": mutant.key, "line": mutant.lines.start, "diff": diff}
            if failure.isdigit():
                failed[mutant.path, mutant.function][int(failure)] += 1
                yield result | {"verdict": "killed", "by": items[int(failure)].nodeid}
            elif os.WIFSIGNALED(status):
                number = signal.Signals(os.WTERMSIG(status))
                yield result | {"verdict": "killed" if number in KILLING else "error", "by": number.name}
            else:
                yield result | {"verdict": failure or f"error: exit status {os.waitstatus_to_exitcode(status)}"}


def _run_mutant(
    mutant: Mutant, functions: Functions, tests: list[tuple[int, pytest.Item, float]], max_seconds: float, writing: int
) -> None:
    """Run the tests with the mutant until one fails or the time is over, then end.

    Writes the difference, and the number of the test that failed or another verdict.
    """
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        path = str(Path(mutant.path).resolve())
        targets = functions[path, mutant.function]
        diff, compiled = _compile(mutant, targets[0])
        os.write(writing, diff.encode() + b"\0")
        for target in targets:
            target.__code__, target.__defaults__ = compiled.__code__, compiled.__defaults__
            target.__kwdefaults__ = compiled.__kwdefaults__
        for inner in _inner_codes(compiled.__code__):  # of functions that were made while modules were imported
            for made in functions.get((path, inner.co_qualname), ()):
                if not inner.co_freevars:  # also when a mutant does not use what it used
                    made.__code__ = inner.replace(co_freevars=made.__code__.co_freevars)
                elif made.__code__.co_freevars == inner.co_freevars:
                    made.__code__ = inner
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        failure = None
        for (number, item, seconds), following in pairwise([*tests, None]):
            limit = int(time.process_time() + 2 + 10 * seconds)  # of CPU time: a busy machine changes no result
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            if _fails(item, None if following is None else following[1]):
                failure = number
                break
            if time.process_time() > max_seconds:
                break
        verdict = "survived" if tests else "not reached"
        os.write(writing, str(verdict if failure is None else failure).encode())
    except BaseException as error:  # noqa: BLE001 - a fork must not return into the loop of its parent
        os.write(writing, f"error {error!r}".encode())
    finally:
        os._exit(0)


def _inner_codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner_codes(constant)


def _fails(item: pytest.Item, following: pytest.Item | None) -> bool:
    reports = runtestprotocol(item, log=False, nextitem=following)
    return any(report.failed for report in reports)


def _compile(mutant: Mutant, original: FunctionType) -> tuple[str, FunctionType]:
    """The function as the mutant has it, and the difference."""
    definition = mutant.mutation.contained_by_top_level_function
    assert definition is not None
    changed = deep_replace(definition, mutant.mutation.original_node, mutant.mutation.mutated_node)
    assert isinstance(changed, libcst.FunctionDef)
    module = libcst.Module([])
    before, after = (
        module.code_for_node(function.with_changes(decorators=(), leading_lines=()))
        for function in (definition, changed)
    )
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    diff = "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
    owner, _, name = mutant.function.rpartition(".")
    source = textwrap.dedent(after)
    if owner:
        source = f"class {owner}:\n" + textwrap.indent(source, "    ")
    namespace = dict(original.__globals__)
    exec(compile(source, mutant.path, "exec", dont_inherit=True), namespace)
    compiled = namespace[owner].__dict__[name] if owner else namespace[name]
    assert isinstance(compiled, FunctionType)
    return diff, compiled


def _reached(items: Sequence[pytest.Item], caches: Sequence[Cache]) -> Reached:
    """Run all tests in a fork, which caches what they compute, and return what they reach."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:
            json.dump(_trace(items, caches), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        trace = json.load(pipe)
    os.wait()
    if trace["failed"]:
        raise pytest.UsageError(f"these tests fail without a change: {trace['failed']}")
    root = f"{Path.cwd()}/"
    tests = {
        path.removeprefix(root): {int(line): numbers for line, numbers in lines.items()}
        for path, lines in trace["tests"].items()
    }
    return Reached(tests, trace["seconds"])


def _trace(items: Sequence[pytest.Item], caches: Sequence[Cache]) -> dict[str, Any]:
    tracer = coverage.Coverage(data_file=None, include=list(MUTATED), config_file=False)
    seconds, failed = [], []
    tracer.start()
    for number, (item, following) in enumerate(pairwise([*items, None])):
        tracer.switch_context(str(number))
        for cache in caches:
            cache.cache_clear()
        started = time.process_time()
        if _fails(item, following):
            failed.append(item.nodeid)
        seconds.append(time.process_time() - started)
    tracer.stop()
    data = tracer.get_data()
    tests = {
        path: {line: [int(name) for name in names if name] for line, names in data.contexts_by_lineno(path).items()}
        for path in data.measured_files()
    }
    return {"tests": tests, "seconds": seconds, "failed": failed}


if __name__ == "__main__":
    sys.exit(main())
