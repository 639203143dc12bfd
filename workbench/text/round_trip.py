"""An automation as sentences and as Python code, and back, without loss.

Both forms end with extra fields: the parts of the automation that the words cannot express. To find them, the text is
read back at once and compared with the automation, so a new node kind or key needs no new grammar
(docs/decisions/0032).
"""

from typing import Any

from workbench.display.outline import outline_of
from workbench.display.sentences import outline_lines, value
from workbench.draft import Draft, from_json
from workbench.language.codec import printable
from workbench.text.parse import Scanner, lines_of, read
from workbench.text.python import build, calls_of, literal, python_code
from workbench.text.remainder import PATH, Extras, apply_extras, find_extras

_EXTRA_FIELDS = "Extra fields:"
_WITHOUT = "without "


def sentence_lines(draft: Draft) -> list[str]:
    """Return the automation in sentences, without its extra fields."""
    payload = draft.payload()
    return outline_lines(outline_of(draft.name, payload["triggerSpec"], payload["graph"]))


def to_sentences(draft: Draft) -> str:
    """Return the automation in sentences, followed by its extra fields; `from_sentences` reads it."""
    lines = sentence_lines(draft)
    # Built from the text and not from the outline, so that everything the sentences lose becomes an extra field.
    extras = find_extras(build(read(draft.name, lines_of("\n".join(lines)))).payload(), draft.payload())
    if extras:
        lines += ["", _EXTRA_FIELDS, *(f"  {path} = {value(content)}" for path, content in extras.values.items())]
        lines += [f"  {_WITHOUT}{path}" for path in extras.without]
    return printable("\n".join(lines))  # other characters are in JSON, which has the same escapes


def from_sentences(name: str, text: str) -> Draft:
    """Return the draft that sentences describe. Raises InvalidAutomationError with the line and the expected text."""
    lines = lines_of(text)
    border = next((index for index, line in enumerate(lines) if line.text == _EXTRA_FIELDS), len(lines))
    draft = build(read(name, lines[:border]))
    if border == len(lines):
        return draft
    values: dict[str, Any] = {}
    without: list[str] = []
    for line in lines[border + 1 :]:
        if line.text.startswith(_WITHOUT):
            without.append(line.text.removeprefix(_WITHOUT))
            continue
        scanner = Scanner(line)
        path = scanner.pattern(PATH, "a path, “=” and a value, like nodes.send_inapp.data.label = “VIP”")
        scanner.take(" = ")
        values[path] = scanner.value()
        scanner.end()
    return with_extras(draft, Extras(values, tuple(without)))


def to_python(draft: Draft) -> str:
    payload = draft.payload()
    outline = outline_of(draft.name, payload["triggerSpec"], payload["graph"])
    extras = find_extras(build(outline).payload(), payload)
    return python_code(f"wb.automation({literal(draft.name)})", calls_of(outline), extras)


def with_extras(draft: Draft, extras: Extras) -> Draft:
    return from_json(apply_extras(draft.payload(), extras) | {"name": draft.name})
