"""Snippets: template texts of the organization that texts of messages include by name.

`{% include "footer" %}` stands for the text of the snippet, which is complete in itself, so it is expanded when a graph
is read. What interprets a graph then sees templates without includes, which have the bounds of all templates. A
published graph has the snippets that it includes, with their versions, under `snippets`. A draft has none: publication,
simulations and previews add the newest ones.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from workbench.language.body import SLUG
from workbench.language.codec import Json
from workbench.language.problem import Problem, suggestion
from workbench.language.template import MAX_SOURCE, TemplateError, compile_errors, compile_template, lex

MAX_DEPTH = 10  # of snippets in snippets
MAX_PINNED = 262_144  # characters of all snippets of one automation
MAX_ADDED = 4_194_304  # characters that these are in all its texts, and in each other

_NOT_A_NAME = 'a snippet is included by its name, like {% include "footer" %}'


class SnippetText(msgspec.Struct, frozen=True):
    """A version of a snippet."""

    version: int
    body: str


SnippetTexts: TypeAlias = Mapping[str, SnippetText]


class Library:
    """The snippets of a graph. Each is expanded once; together they add at most MAX_ADDED characters to its texts."""

    def __init__(self, snippets: SnippetTexts) -> None:
        self.snippets = snippets
        self._bodies: dict[str, str | TemplateError] = {}
        self._left = MAX_ADDED

    def body(self, name: str, within: tuple[str, ...]) -> str:
        """Return the text of a snippet that texts can include; raise TemplateError."""
        if name not in self._bodies:
            try:
                self._bodies[name] = self._expand(name, within)
            except TemplateError as error:
                self._bodies[name] = TemplateError(f"snippet {name!r}: {error}")
        body = self._bodies[name]
        if isinstance(body, TemplateError):
            raise TemplateError(str(body))
        self._left -= len(body)
        if self._left < 0:
            raise TemplateError(f"snippets add more than {MAX_ADDED:,} characters to the texts of the automation")
        return body

    def _expand(self, name: str, within: tuple[str, ...]) -> str:
        body = expand(self.snippets[name].body, self, (*within, name))
        body = re.sub("\r\n?", "\n", body).removesuffix("\n")  # as of a template
        compile_template(body)
        # Joined with the text after it, a brace at its end would begin an expression.
        if body.endswith("{"):
            raise TemplateError("must not end with {")
        return body


def expand(source: str, library: Library | None, within: tuple[str, ...] = ()) -> str:
    """Return a template with the texts of the snippets that it includes; raise TemplateError if one cannot be included.

    `library` None: the draft of a library that is not known; a snippet is shown as its name in brackets. `within`: the
    snippets that this text belongs to.
    """
    text = ""
    for line, name, part in _parts(source):
        if name is None:
            added = part
        elif name in within:
            raise TemplateError(f"line {line}: the snippet {name!r} includes itself: {' → '.join([*within, name])}")
        elif len(within) == MAX_DEPTH:
            raise TemplateError(f"line {line}: more than {MAX_DEPTH} snippets are nested")
        elif library is None:
            added = f"[{name}]"
        elif name in library.snippets:
            added = library.body(name, within)
        else:
            raise TemplateError(f"line {line}: unknown snippet {name!r}{suggestion(name, tuple(library.snippets))}")
        # `{%-` has removed the white space after a brace, which would begin an expression now.
        text += f" {added}" if text.endswith("{") and added.startswith(("{", "%", "#")) else added
        if name is not None and len(text) > MAX_SOURCE:
            raise TemplateError(f"is longer than {MAX_SOURCE} characters with its snippets")
    return text


def names_in(value: Json) -> set[str]:
    """Return the names of the snippets that the texts in a JSON value include."""
    match value:
        case str() if "include" in value:
            try:
                return {name for _, name, _ in _parts(value) if name is not None}
            except TemplateError:  # reported where the text is read
                return set()
        case list():
            return {name for item in value for name in names_in(item)}
        case dict():
            return {name for item in value.values() for name in names_in(item)}
        case _:
            return set()


def expand_all(value: Json, library: Library | None, field: str, problems: list[Problem]) -> Json:
    """Return a JSON value with its texts expanded; add a problem for each text that cannot be."""
    match value:
        case str() if "include" in value:
            try:
                return expand(value, library)
            except TemplateError as error:
                problems.append(Problem(field, str(error)))
                return "?"
        case list():
            return [expand_all(item, library, field, problems) for item in value]
        case dict():
            return {name: expand_all(item, library, f"{field}.{name}", problems) for name, item in value.items()}
        case _:
            return value


def read_snippets(value: Any, field: str) -> Library | Problem | None:
    """Return the snippets of a graph, None if it has none, or what is wrong with them."""
    try:
        snippets = None if value is None else msgspec.convert(value, dict[str, SnippetText])
    except msgspec.ValidationError:
        return Problem(field, "must be an object of snippets, each with its version and body")
    if snippets is not None and sum(len(snippet.body) for snippet in snippets.values()) > MAX_PINNED:
        return Problem(field, f"have more than {MAX_PINNED:,} characters together")
    return None if snippets is None else Library(snippets)


def _parts(source: str) -> Iterator[tuple[int, str | None, str]]:
    """Yield the parts of a template with their lines: texts, and the names of snippets."""
    if "include" not in source or len(source) > MAX_SOURCE:
        yield 1, None, source
        return
    with compile_errors():
        block: list[tuple[int, str, str]] = []
        for token in lex(source):
            if not block and token[1] != "block_begin":
                yield token[0], None, token[2]
                continue
            block.append(token)
            if token[1] == "block_end":
                words = [(kind, text) for _, kind, text in block[1:-1] if kind != "whitespace"]
                name = words[1][1][1:-1] if len(words) == 2 and words[1][0] == "string" else ""
                if words[:1] != [("name", "include")]:
                    yield block[0][0], None, "".join(text for _, _, text in block)
                elif SLUG.fullmatch(name):
                    yield block[0][0], name, ""
                else:
                    raise TemplateError(f"line {block[0][0]}: {_NOT_A_NAME}")
                block = []
        yield 1, None, "".join(text for _, _, text in block)  # not closed, which the compiler reports
