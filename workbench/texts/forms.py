"""The forms of an automation: sentences and Python, made from a draft and read back into one. Nothing is lost on the way."""

from collections.abc import Sequence
from typing import Any

from workbench.author import Draft, from_json
from workbench.display.outline import outline_of
from workbench.display.sentences import told, value
from workbench.texts.besides import PATH, Besides, applied, difference
from workbench.texts.calls import build, calls_of
from workbench.texts.python import code, literal
from workbench.texts.reader import Line, lines_of, read

BESIDE = "Beside the words:"
_WITHOUT = "without "


def spoken_lines(draft: Draft) -> list[str]:
    """Return what is done, in plain sentences."""
    payload = draft.payload()
    return told(outline_of(draft.name, payload["triggerSpec"], payload["graph"]))


def described(draft: Draft) -> str:
    """Return a draft in sentences, and below them what no sentence says; `understood` reads it."""
    lines = spoken_lines(draft)
    besides = difference(build(read(draft.name, lines_of("\n".join(lines)))).payload(), draft.payload())
    if not besides:
        return "\n".join(lines)
    noted = [f"  {path} = {value(each)}" for path, each in besides.values.items()]
    return "\n".join([*lines, "", BESIDE, *noted, *(f"  {_WITHOUT}{path}" for path in besides.without)])


def understood(name: str, text: str) -> Draft:
    """Return the draft that sentences tell; raise DraftError naming the line, and what was expected there."""
    lines = lines_of(text)
    border = next((index for index, line in enumerate(lines) if line.said == BESIDE), len(lines))
    draft = build(read(name, lines[:border]))
    return with_besides(draft, _besides(lines[border + 1 :])) if border < len(lines) else draft


def as_python(draft: Draft) -> str:
    """Return the Python that builds the same draft."""
    payload = draft.payload()
    outline = outline_of(draft.name, payload["triggerSpec"], payload["graph"])
    besides = difference(build(outline).payload(), payload)
    return code(f"wb.automation({literal(draft.name)})", calls_of(outline), besides)


def with_besides(draft: Draft, besides: Besides) -> Draft:
    """Return the draft with what neither words nor verbs can say."""
    return from_json(applied(draft.payload(), besides) | {"name": draft.name})


def _besides(lines: Sequence[Line]) -> Besides:
    values: dict[str, Any] = {}
    without: list[str] = []
    for line in lines:
        if line.said.startswith(_WITHOUT):
            without.append(line.said.removeprefix(_WITHOUT))
            continue
        scanner = line.scanner()
        path = scanner.pattern(PATH, "a path, “=” and a value, like nodes.send_inapp.data.label = “VIP”")
        scanner.take(" = ")
        values[path] = scanner.value()
        scanner.end()
    return Besides(values, tuple(without))
