"""Locales: which texts of a message a contact gets, by an attribute with a tag of BCP 47 such as `de-AT`."""

import re
from collections.abc import Collection
from typing import Any

from workbench.language.codec import Json
from workbench.language.problem import Problem, Problems

MAX_LOCALES = 100  # of one message
LOCALE_ATTRIBUTE = "locale"
DEFAULT_TEXTS = "default"  # in place of a locale; no tag, because a language has two or three letters
NOT_A_LOCALE = "must be a locale: a language such as de, or one with a region such as de-AT"

_MAX_TAG = 64  # characters
_TAG = re.compile(
    r"[a-z]{2,3}(-[a-z]{3}){0,3}"  # no language of more letters is registered
    r"(-[a-z]{4})?(-([a-z]{2}|[0-9]{3}))?"  # script and region
    r"(-([a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*"  # variants
    r"(-[a-wyz0-9](-[a-z0-9]{2,8})+)*(-x(-[a-z0-9]{1,8})+)?"  # extensions and private use
)


def locale_tag(value: Json) -> str | None:
    """Return a locale in its usual spelling, `de-AT` for `DE_at`; None for any other value."""
    if not isinstance(value, str) or len(value) > _MAX_TAG:
        return None
    tag = value.replace("_", "-").lower()
    if _TAG.fullmatch(tag) is None:
        return None
    tag, extension, rest = re.split(r"(-[a-z0-9]-|$)", tag, maxsplit=1)  # extensions stay in lower case
    language, *others = tag.split("-")
    cased = [part.upper() if len(part) == 2 else part.title() if len(part) == 4 else part for part in others]
    return "-".join([language, *cased]) + extension + rest


def choose_locale(locales: Collection[str | None], wanted: Json) -> str | None:
    """Return the nearest of the locales (lookup of RFC 4647): `de` for `de-AT`; None if none of them fits."""
    tag = locale_tag(wanted) or ""
    while tag and tag not in locales:
        tag = tag.rpartition("-")[0]
    return tag or None


def read_locale(value: Any, path: str) -> str | Problems:
    """Return the locale of a preview or a test: its tag, or `default` for the default texts."""
    tag = value if value == DEFAULT_TEXTS else locale_tag(value)
    return tag if isinstance(tag, str) else (Problem(path, f"{NOT_A_LOCALE}; or {DEFAULT_TEXTS}"),)
