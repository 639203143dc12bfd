"""The semantics of expressions in templates: values, operators, filters, and the budget that bounds the work of one
render.

Numbers behave as on paper: `0.1` is one tenth, `7 / 2` is 3.5, rounding is half away from zero. Arithmetic is exact and
refuses what it cannot do exactly; only division stops, at 34 digits.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from decimal import (
    ROUND_HALF_UP,
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    Inexact,
    InvalidOperation,
    Overflow,
)
from functools import partial
from typing import Any
from urllib.parse import quote

from jinja2 import StrictUndefined, Undefined, UndefinedError, pass_context
from jinja2.filters import FILTERS as STOCK
from jinja2.runtime import Context as Scope
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing
from markupsafe import escape

from workbench.language.codec import Json, encode, storage_problem

MAX_OUTPUT = 262_144
MAX_ITERATIONS = 1_000
MAX_WORK = 50_000

TESTS = (
    "defined",
    "undefined",
    "none",
    "string",
    "number",
    "boolean",
    "mapping",
    "sequence",
    "true",
    "false",
)


BUDGET = "_budget"
_CHARACTERS_PER_WORK = 16
_LOOP_FIELDS = frozenset({"index", "index0", "first", "last", "length", "revindex", "revindex0"})


class TemplateError(ValueError):
    """A text that cannot be compiled, or that failed with the values it was given."""


def error_message(error: Exception) -> str:
    """Return why a template could not be rendered, without values of the contact."""
    match error:
        case UndefinedError():
            return str(error)
        case DivisionByZero():
            return "divides by zero"
        case DecimalException():
            return "makes a number of too many digits"
        case TypeError() if "not supported between" in str(error):
            return "compares values that have no order, such as a text and a number"
        case TypeError():
            return "uses a value or arguments of the wrong type"
        case _:
            return f"cannot be filled in ({type(error).__name__})"


class RenderBudget:
    """The remaining work of one render, or of several together."""

    def __init__(self) -> None:
        self._iterations = MAX_ITERATIONS
        self._work = MAX_WORK
        self._output = MAX_OUTPUT

    def loop(self, passes: int, work_each: int) -> None:
        """Pay for all passes of a loop."""
        self._iterations -= passes
        if self._iterations < 0:
            raise TemplateError(f"loops more than {MAX_ITERATIONS} times")
        self._spend(passes * work_each)

    def made(self, text: str) -> str:
        """Pay for a text that an operation made, and return it."""
        if len(text) > MAX_OUTPUT:
            raise output_too_long()
        self._spend(1 + len(text) // _CHARACTERS_PER_WORK)
        return text

    def look(self, length: int) -> None:
        """Pay for reading so many characters."""
        self._spend(1 + length // _CHARACTERS_PER_WORK)

    def printed(self, size: int) -> None:
        """Pay for so many bytes of what comes out."""
        self._output -= size
        if self._output < 0:
            raise output_too_long()

    def paid(self, chunks: Iterator[str]) -> Iterator[str]:
        """Pay for chunks of text as they come out."""
        left = self._output
        for chunk in chunks:
            left -= len(chunk) if chunk.isascii() else len(chunk.encode(errors="replace"))
            if left < 0:
                raise output_too_long()
            yield chunk
        self._output = left

    def _spend(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            raise TemplateError("does too much work: use fewer or shorter loops")


def _budget(scope: Scope) -> RenderBudget:
    budget: RenderBudget = scope[BUDGET]
    return budget


def output_too_long() -> TemplateError:
    """Return the error of a text that grows past the limit."""
    return TemplateError(f"makes more than {MAX_OUTPUT} characters")


_EXACT = Context(
    prec=1_000, Emax=1_000, Emin=-1_000, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow, Inexact]
)
_ROUNDED = Context(prec=1_000, Emax=1_000, Emin=-1_000, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow])
_QUOTIENT = Context(prec=34, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow, DivisionByZero])
_LARGEST = 10**1_000
_OPERATIONS: dict[str, tuple[Callable[[int, int], int], Callable[[Decimal, Decimal], Decimal]]] = {
    "+": (operator.add, _EXACT.add),
    "-": (operator.sub, _EXACT.subtract),
    "*": (operator.mul, _EXACT.multiply),
}


class _Missing(StrictUndefined):
    """A missing value: it can be tested and given a default; any other use raises with its name."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        if self._undefined_hint:
            return self._undefined_hint
        if self._undefined_obj is missing:
            return f"there is no value {self._undefined_name!r}"
        return f"there is no {self._undefined_name!r} in what comes before it"


class _Computed(str):
    """A computed key: it may be a value of the contact, so no error names it."""

    __slots__ = ()


class _DataEnvironment(ImmutableSandboxedEnvironment):
    """Attributes and items are data of the context or nothing: there is no Python object to climb on."""

    intercepted_binops = frozenset({"*", "+", "-", "/"})
    intercepted_unops = frozenset({"-", "+"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Mapping) and isinstance(argument, str) and argument in obj:
            return obj[argument]
        if isinstance(obj, list | tuple) and isinstance(argument, int) and -len(obj) <= argument < len(obj):
            return obj[argument]
        if isinstance(obj, LoopContext) and argument in _LOOP_FIELDS:
            return getattr(obj, argument)
        if isinstance(obj, Undefined):
            return obj
        if isinstance(argument, _Computed):
            return self.undefined(hint="there is no such key in what comes before it")
        return self.undefined(obj=obj, name=argument)

    def call_binop(self, context: Scope, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return _budget(context).made(left + right)
        return _calculate(operator, _number(left), _number(right))

    def call_unop(self, context: Scope, operator: str, arg: Any) -> Any:
        number = _number(arg)
        if operator == "+":
            return number
        return number.copy_negate() if isinstance(number, Decimal) else -number


def _calculate(sign: str, left: int | Decimal, right: int | Decimal) -> int | Decimal:
    if sign == "/":
        if not right:
            raise DivisionByZero
        return _QUOTIENT.divide(Decimal(left), Decimal(right))
    whole, decimal = _OPERATIONS[sign]
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return decimal(Decimal(left), Decimal(right))
    result = whole(left, right)
    if not -_LARGEST < result < _LARGEST:
        raise Overflow
    return result


def _number(value: Any) -> int | Decimal:
    _present(value)
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TemplateError(f"needs a number where there is {_kind(value)}")
    if storage_problem(value):
        raise InvalidOperation
    return value


def _whole(value: Any, least: int, most: int) -> int:
    return min(max(int(_number(value)), least), most)


def _present(value: Any) -> None:
    if isinstance(value, Undefined):
        str(value)  # raises, naming the missing value


def _text(value: Any) -> str:
    """Print a value as JSON readers expect: true, no trailing E+22, objects as JSON, null as nothing."""
    match value:
        case str():
            return value
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return format(_exact(value) if isinstance(value, float) else value, "d" if isinstance(value, int) else "f")
        case dict() | list() | tuple():
            return encode(value).decode()
        case Undefined():
            return str(value)  # raises, unless it is what an `if` without `else` leaves
        case _:
            raise TemplateError("only values of the event and the contact can be printed")


def to_json_value(value: Any) -> Json:
    """Return what an expression gave as a value of JSON, with exact numbers; raise when it is none."""
    _present(value)
    if isinstance(value, str | int | Decimal | dict | list | tuple | None):
        return list(value) if isinstance(value, tuple) else value
    if isinstance(value, float):
        return _exact(value)
    raise TemplateError("only values of the event and the contact can be kept")


def _exact(value: Decimal | float) -> Decimal:
    return Decimal(repr(value)) if isinstance(value, float) else value


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (type(None), "null"),
    (bool, "true or false"),
    (str, "a text"),
    ((int, float, Decimal), "a number"),
    (Mapping, "an object"),
    ((list, tuple), "a list"),
    (Undefined, "nothing"),
)


def _kind(value: Any) -> str:
    return next((words for types, words in _KINDS if isinstance(value, types)), "something else")


def _changing(change: Callable[[str], str]) -> Callable[[Scope, Any], str]:
    @pass_context
    def changed(scope: Scope, value: Any) -> str:
        return _budget(scope).made(change(_text(value)))

    return changed


@pass_context
def _replace(scope: Scope, value: Any, old: Any, new: Any) -> str:
    text, old, new = _text(value), _text(old), _text(new)
    if len(text) + text.count(old) * (len(new) - len(old)) > MAX_OUTPUT:
        raise output_too_long()
    budget = _budget(scope)
    budget.look(len(text))
    return budget.made(text.replace(old, new))


@pass_context
def _join(scope: Scope, values: Any, between: Any = "") -> str:
    if not isinstance(values, list | tuple):
        _present(values)
        raise TemplateError(f"needs a list to join, not {_kind(values)}")
    budget, separator = _budget(scope), _text(between)
    texts = [budget.made(_text(value)) for value in values]
    if sum(map(len, texts)) + len(texts) * len(separator) > MAX_OUTPUT:
        raise output_too_long()
    return budget.made(separator.join(texts))


@pass_context
def _truncate(scope: Scope, value: Any, length: Any = 80) -> str:
    text, most = _text(value), _whole(length, 0, MAX_OUTPUT)
    return _budget(scope).made(text if len(text) <= most else text[: max(most - 1, 0)].rstrip() + "…")


def _round(value: Any, places: Any = 0) -> int | Decimal:
    number = _number(value)
    return number if isinstance(number, int) else _to_places(number, _whole(places, 0, 20))


def _format_number(value: Any, places: Any = 0) -> str:
    return format(_to_places(Decimal(_number(value)), _whole(places, 0, 20)), ",f")


def _to_places(number: Decimal, places: int) -> Decimal:
    rounded = number.quantize(Decimal(1).scaleb(-places), context=_ROUNDED)
    return rounded or rounded.copy_abs()


def _abs(value: Any) -> int | Decimal:
    number = _number(value)
    return number.copy_abs() if isinstance(number, Decimal) else abs(number)


def _length(value: Any) -> int:
    if not isinstance(value, str | list | tuple | Mapping):
        _present(value)
        raise TemplateError(f"{_kind(value)} has no length")
    return len(value)


def _first(values: Any) -> Any:
    return _element(values, 0)


def _last(values: Any) -> Any:
    return _element(values, -1)


def _element(values: Any, index: int) -> Any:
    if not isinstance(values, str | list | tuple):
        _present(values)
        raise TemplateError(f"{_kind(values)} has no first or last element")
    return values[index] if values else _Missing(hint="an empty list has no first or last element")


@pass_context
def _each(scope: Scope, values: Any, work_each: int) -> list[Any] | tuple[Any, ...]:
    """Let a loop run over a list or the keys of an object, paid in advance."""
    if not isinstance(values, Mapping | list | tuple):
        _present(values)
        raise TemplateError(f"cannot loop over {_kind(values)}")
    _budget(scope).loop(len(values), work_each)
    return list(values) if isinstance(values, Mapping) else values


@pass_context
def _concat(scope: Scope, values: list[Any]) -> str:
    texts = [_text(value) for value in values]
    if sum(map(len, texts)) > MAX_OUTPUT:
        raise output_too_long()
    return _budget(scope).made("".join(texts))


def _scalar(value: Any) -> Any:
    if isinstance(value, Mapping | list | tuple | LoopContext):
        raise TemplateError(f"compares {_kind(value)}: only texts and numbers can be compared")
    return _exact(value) if isinstance(value, float) else value


@pass_context
def _members(scope: Scope, value: Any) -> Any:
    if not isinstance(value, str | Mapping | list | tuple):
        _present(value)
        raise TemplateError(f"nothing can be in {_kind(value)}")
    _budget(scope).look(len(value) * (1 if isinstance(value, str) else _CHARACTERS_PER_WORK // 8))
    return value


def _key(value: Any) -> Any:
    return _Computed(value) if isinstance(value, str) else value


def _decimal(digits: str) -> Decimal:
    return Decimal(digits)


def _escaped(value: Any) -> str:
    return str(escape(_text(value)))


def _environment(printed: Callable[[Any], str]) -> _DataEnvironment:
    environment = _DataEnvironment(
        undefined=_Missing,
        finalize=printed,
        autoescape=False,
        cache_size=0,
        optimized=False,
        keep_trailing_newline=True,
    )
    environment.globals = {}
    environment.tests = {name: environment.tests[name] for name in TESTS}
    environment.filters = {
        "default": STOCK["default"],
        "d": STOCK["default"],
        "upper": _changing(str.upper),
        "lower": _changing(str.lower),
        "capitalize": _changing(str.capitalize),
        "title": _changing(STOCK["title"]),
        "urlencode": _changing(partial(quote, safe="")),
        "trim": _changing(str.strip),
        "length": _length,
        "count": _length,
        "first": _first,
        "last": _last,
        "abs": _abs,
        "round": _round,
        "number": _format_number,
        "replace": _replace,
        "join": _join,
        "truncate": _truncate,
    }
    environment.filters.update(
        _each=_each, _concat=_concat, _scalar=_scalar, _members=_members, _key=_key, _decimal=_decimal
    )
    return environment


TEXT = _environment(_text)
HTML = _environment(_escaped)
FILTERS = tuple(sorted(name for name in TEXT.filters if not name.startswith("_")))
