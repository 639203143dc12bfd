"""The tokens of a statement: what is inside strings and comments is none."""

from typing import Any

import pytest

from workbench.language.sql import tokenize


def tokens(text: str, **options: Any) -> list[tuple[str, str]]:
    return [(token.kind, token.text) for token in tokenize(text, **options)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t", []),
        ("a_1$é", [("word", "a_1$é")]),
        ("$1 :b", [("positional", "$1"), ("name", ":b")]),
        ("(a)", [("other", "("), ("word", "a"), ("other", ")")]),
        ("t[1:n]", [("word", "t"), ("other", "["), ("other", ":"), ("word", "n"), ("other", "]")]),
        ("a::b :=c", [("word", "a"), ("word", "b"), ("word", "c")]),
        ('"a""b" c', [("quoted", 'a"b'), ("word", "c")]),
        ("'a''b' c", [("word", "c")]),
        ("'a\\' c", [("word", "c")]),
        ("E'a\\'b' c", [("word", "c")]),
        ("e'a''b' c", [("word", "c")]),
        ("E'a' \n 'b\\'c' d", [("word", "d")]),
        ("E'a' --x\n'b\\'c'\n'd\\'e' f", [("word", "f")]),
        ("'a'\n'b\\' c", [("word", "c")]),
        ("$$a$$ b $$c$$", [("word", "b")]),
        ("$t$a $$ b$t$ c", [("word", "c")]),
        ("$t$ never closed", []),
        ("-- a\nb", [("word", "b")]),
        ("/* a */ b", [("word", "b")]),
        ("/* a /* b */ c */ d", [("word", "d")]),
        ("/* a /* b */ c", []),
        ("a /* b", [("word", "a")]),
        ("'never closed", []),
        ("1.5e3 a", [("word", "a")]),
    ],
)
def test_the_tokens_of_a_statement(text: str, expected: list[tuple[str, str]]) -> None:
    assert tokens(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'a''b' c", [("string", "'a''b'"), ("word", "c")]),
        ("E'a\\'b'", [("string", "E'a\\'b'")]),
        ("E'a' \n 'b\\'c'", [("string", "E'a' \n 'b\\'c'")]),
        ("$t$a$t$", [("string", "$t$a$t$")]),
        ("$t$ open", [("string", "$t$ open")]),
        ("'open", [("string", "'open")]),
        ("1.5e3::x := y", [("number", "1.5e3"), ("cast", "::"), ("word", "x"), ("cast", ":="), ("word", "y")]),
        ('-- a\n/* b */ "c"', [("quoted", "c")]),
    ],
)
def test_strings_numbers_and_casts_are_tokens_where_values_are_wanted(
    text: str, expected: list[tuple[str, str]]
) -> None:
    assert tokens(text, values=True) == expected


def test_tokens_have_their_place_in_the_text() -> None:
    text = "8 ::/* x */ a \"b\" 'c' $1 :d E'e'\n'f' 7"
    places = [(token.kind, text[token.start : token.end]) for token in tokenize(text, values=True)]
    assert places == [
        ("number", "8"),
        ("cast", "::"),
        ("word", "a"),
        ("quoted", '"b"'),
        ("string", "'c'"),
        ("positional", "$1"),
        ("name", ":d"),
        ("string", "E'e'\n'f'"),
        ("number", "7"),
    ]
