"""Report how a checkout reads: fragmentation, names and prose. Needs only the standard library.

    python tools/readability.py                     figures of api and workbench, docs and tests
    python tools/readability.py api/store tests/store        figures of some folders
    python tools/readability.py --list prose        the places behind a figure: names, prose, strings, fragments

The figures are a report and never fail a build: a change that improves a figure and makes a page worse is wrong.
Measured the same way, procrastinate, psycopg, httpx and datasette have 13-23 % of modules under 60 lines, 5-12 % of
functions that are private and called once, 0-2 % of public class names in more than one module, 0.0-0.3 person words
per 1,000 words, no placeholder variables and 3.2-5.1 comments per 100 lines.
"""

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CODE = ("api", "workbench")
SHORT_MODULE_LINES = 60
KINDS = ("names", "prose", "strings", "fragments")

# Words for people. A process, a row or a function is never one of them, so most uses in technical prose are mistakes.
PERSON = re.compile(r"\b(?:somebody|nobody|whoever|whomever|whom|everybody|anybody|whose|who)\b", re.IGNORECASE)
# Turns of phrase that the first generation of this code was written in, and that readers had to read twice.
DIALECT = re.compile(
    r"\b(?:by now|anew|besides?|puts? away|said no|says no|goes on|went on|is none|are none|stands? in the way|"
    r"otherwise than|of theirs|of whose|of whom|see to|not in time|it came|was told|is told|are told|retold|stint|"
    r"nowhere|what is no|is no [a-z]+)\b",
    re.IGNORECASE,
)
CLAUSE = re.compile(r"(?:What|Who|Whom|Which|Where|Why|How|When)\b")
PLACEHOLDERS = frozenset(
    {
        "each",
        "found",
        "given",
        "told",
        "asked",
        "known",
        "seen",
        "said",
        "came",
        "met",
        "held",
        "stand",
        "there",
        "so_far",
        "who",
    }
)
BARE_CLASS = re.compile(
    r"(?:Asked|Told|Known|Met|Came|Why|Whom|Standing|Given|Found|Seen|Said|Held|Kept|Gone|Left|Lived|Lives|Happened|Called|"
    r"Entered|Places?|Desk|Patience|Crew|Ground|Subject|Order|Rival|Person|People|Parts|Memory|Deed|Doubts|Withheld|Parcel|"
    r"Arrival|Surroundings)$"
)
NOT_PROSE = re.compile(r"#\s*(?:type:|noqa|pragma|!)")


class Place(NamedTuple):
    """A line that one of the figures counts."""

    kind: str
    where: str
    text: str


class Report:
    """The counts of a checkout, and the places behind them."""

    def __init__(self, root: Path, folders: list[str]) -> None:
        self.root = root
        self.places: list[Place] = []
        self.counts: Counter[str] = Counter()
        self.classes: dict[str, set[str]] = defaultdict(set)
        self.words: dict[str, list[str]] = defaultdict(list)  # by "code", "docs" and "messages"
        code = [folder for folder in folders if folder.split("/")[0] in CODE] if folders else list(CODE)
        tests = [folder for folder in folders if folder.startswith("tests")] if folders else ["tests"]
        for path in self._python_files(code):
            self._read_module(path)
        for path in self._python_files(tests):
            self._read_test_names(path)
        if not folders:
            self._read_documents()
        for name, modules in sorted(self.classes.items()):
            if len(modules) > 1:
                self.places.append(Place("names", " ".join(sorted(modules)), f"class {name} in {len(modules)} modules"))

    def figures(self) -> dict[str, float]:
        """Return the figures by name."""
        counts = self.counts
        return {
            "lines": counts["lines"],
            "modules": counts["modules"],
            "modules_under_60_lines_pct": _percent(counts["short modules"], counts["modules"]),
            "helpers_called_once_pct": _percent(counts["called once"], counts["functions"]),
            "class_names_in_several_modules": sum(len(modules) > 1 for modules in self.classes.values()),
            "bare_names": counts["bare names"],
            "filler_variables_pct": _percent(counts["placeholders"], counts["stored names"], digits=2),
            "module_docstrings_that_are_clauses": counts["clauses"],
            "comments_per_100_lines": _percent(counts["comments"], counts["lines"]),
            "person_words_per_1000_in_code": self._per_thousand(PERSON, "code"),
            "person_words_per_1000_in_docs": self._per_thousand(PERSON, "docs"),
            "dialect_per_1000_in_code": self._per_thousand(DIALECT, "code"),
            "dialect_per_1000_in_docs": self._per_thousand(DIALECT, "docs"),
            "dialect_per_1000_in_messages": self._per_thousand(DIALECT, "messages"),
            "test_names_in_dialect_pct": _percent(counts["odd tests"], counts["tests"]),
        }

    def _python_files(self, folders: list[str]) -> Iterator[Path]:
        for folder in folders:
            path = self.root / folder
            for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
                if "node_modules" not in file.parts:
                    yield file

    def _read_module(self, path: Path) -> None:
        text = path.read_text("utf-8")
        tree, name = ast.parse(text), str(path.relative_to(self.root))
        size = text.count("\n")
        self.counts["lines"] += size
        if path.name != "__init__.py":
            self.counts["modules"] += 1
            if size < SHORT_MODULE_LINES:
                self.counts["short modules"] += 1
                self.places.append(Place("fragments", name, f"{size} lines"))
        self.counts["clauses"] += bool(CLAUSE.match(ast.get_docstring(tree) or ""))
        nodes = list(ast.walk(tree))
        uses = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in nodes
            if isinstance(node, ast.Name | ast.Attribute)
        )
        for node in nodes:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.counts["functions"] += 1
                    if node.name.startswith("_") and not node.name.startswith("__") and uses[node.name] == 1:
                        self.counts["called once"] += 1
                        self.places.append(Place("fragments", f"{name}:{node.lineno}", f"{node.name} is called once"))
                case ast.Name(ctx=ast.Store()):
                    self.counts["stored names"] += 1
                    if node.id in PLACEHOLDERS:
                        self.counts["placeholders"] += 1
                        self.places.append(Place("names", f"{name}:{node.lineno}", f"variable {node.id}"))
                case ast.Constant(value=str() as value) if " " in value and len(value) > 12:
                    self.words["messages"].append(value)
                    self._note_odd("strings", f"{name}:{node.lineno}", value)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                self.classes[node.name].add(name)
                if BARE_CLASS.match(node.name):
                    self.counts["bare names"] += 1
                    self.places.append(Place("names", f"{name}:{node.lineno}", f"class {node.name}"))
        for line, prose in _prose(nodes, text):
            self.counts["comments"] += prose.startswith("#")
            self.words["code"].append(prose)
            self._note_odd("prose", f"{name}:{line}", prose)

    def _read_test_names(self, path: Path) -> None:
        if not path.name.startswith("test_"):
            return
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                words = node.name.removeprefix("test_").replace("_", " ")
                self.counts["tests"] += 1
                if PERSON.search(words) or DIALECT.search(words):
                    self.counts["odd tests"] += 1
                    self.places.append(Place("names", f"{path.relative_to(self.root)}:{node.lineno}", f"test {words}"))

    def _read_documents(self) -> None:
        pages = {str(page.relative_to(self.root)): page.read_text("utf-8") for page in self.root.glob("*.md")}
        # contract.md is left out: it restates the words of the contract.
        pages |= {
            str(page.relative_to(self.root)): page.read_text("utf-8")
            for page in sorted((self.root / "docs").rglob("*.md"))
            if page.name != "contract.md"
        }
        for notebook in sorted((self.root / "notebooks").glob("*.ipynb")):
            cells = json.loads(notebook.read_text("utf-8"))["cells"]
            pages[notebook.name] = "\n".join(
                "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
            )
        for name, text in pages.items():
            self.words["docs"].append(text)
            for number, line in enumerate(text.splitlines(), 1):
                self._note_odd("prose", f"{name}:{number}", line)

    def _note_odd(self, kind: str, where: str, text: str) -> None:
        if PERSON.search(text) or DIALECT.search(text):
            self.places.append(Place(kind, where, " ".join(text.split())[:150]))

    def _per_thousand(self, pattern: re.Pattern[str], source: str) -> float:
        text = "\n".join(self.words[source])
        words = len(re.findall(r"\w+", text))
        return round(1000 * len(pattern.findall(text)) / words, 1) if words else 0.0


def _prose(nodes: list[ast.AST], text: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings and comments with their line."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            doc := ast.get_docstring(node)
        ):
            yield getattr(node, "lineno", 1), doc
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not NOT_PROSE.match(token.string):
            yield token.start[0], token.string


def _percent(part: int, whole: int, digits: int = 1) -> float:
    return round(100 * part / whole, digits) if whole else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Report how this checkout reads.")
    parser.add_argument(
        "folders", nargs="*", help="folders or files of api, workbench or tests (default: all, with docs)"
    )
    parser.add_argument("--list", choices=KINDS, help="print the places behind a figure in place of the figures")
    options = parser.parse_args()
    report = Report(Path(__file__).parents[1], options.folders)
    if options.list:
        sys.stdout.writelines(f"{place.where}: {place.text}\n" for place in report.places if place.kind == options.list)
    else:
        sys.stdout.write(json.dumps(report.figures(), indent=1) + "\n")


if __name__ == "__main__":
    main()
