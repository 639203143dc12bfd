"""Values for the `:name`s of a query: keywords, or `params={"name": …}` for names that mean something else in the call."""

from collections.abc import Collection, Mapping
from typing import Any

from api.language.sql import tokens
from workbench.errors import DraftError


def names(query: str) -> list[str]:
    """Return what a query asks values for, in the order in which it does."""
    return [token.text[1:] for token in tokens(query) if token.kind == "name"]


def bound(query: str, keywords: Mapping[str, Any], params: object, options: Collection[str]) -> dict[str, Any]:
    """Return the values of a query as plain Python has them; `options` are the call's own words. Raise DraftError."""
    if params is not None and not isinstance(params, Mapping):
        raise DraftError('params= holds values by their names: params={"name": …}')
    given = dict(params or {})
    if twice := next((name for name in keywords if name in given), None):
        raise DraftError(f":{twice} has two values: one as a keyword, and one in params=")
    if taken := next((name for name in names(query) if name in options and name not in given), None):
        raise DraftError(
            f'as a keyword {taken} means something else here: give :{taken} its value by params={{"{taken}": …}}'
        )
    return {name: unboxed(value) for name, value in (given | dict(keywords)).items()}


def unboxed(value: Any) -> Any:
    """Return a value as plain Python has it: columns and arrays as lists, numbers of numpy as numbers."""
    if isinstance(value, list | tuple):
        return [unboxed(each) for each in value]
    if isinstance(value, Mapping):
        return {name: unboxed(each) for name, each in value.items()}
    convert = getattr(value, "to_list", None) or getattr(value, "tolist", None)
    return value if convert is None else convert()
