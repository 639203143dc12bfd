"""The semantics of expressions in templates: values, operators, filters, and the budget that bounds one render.

Arithmetic is decimal and exact: `0.1` is one tenth, `7 / 2` is 3.5, and a result that cannot be exact is an error. Only
division rounds, to 34 digits, half away from zero.

`where` runs on the same operators and filters, but totally: what would be an error is a missing value, and a comparison
with a missing value, or of different types, is false.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
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
from functools import partial, wraps
from typing import Any
from urllib.parse import quote

from jinja2 import StrictUndefined, Undefined, UndefinedError, pass_context
from jinja2.filters import FILTERS as STOCK
from jinja2.runtime import Context as Scope
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing
from markupsafe import escape

from workbench.language.codec import MISSING, Json, decode, encode, json_equal, storage_problem, value_at
from workbench.language.event import parse_timestamp

MAX_OUTPUT = 262_144  # bytes of the result, and characters of any text on the way to it
MAX_ITERATIONS = 1_000
MAX_WORK = 50_000

TESTS = ("defined", "undefined", "none", "string", "number", "boolean", "mapping", "sequence", "true", "false")

BUDGET = "_budget"  # its name in the scope of a template
CONTEXT = "_context"  # in the scope of `where`: the context in which paths are looked up
MOMENT = "_moment"  # in the scope of `where`: the moment of the decision
_CHARACTERS_PER_WORK = 16
_LOOP_FIELDS = frozenset({"index", "index0", "first", "last", "length", "revindex", "revindex0"})


class TemplateError(ValueError):
    """A template that cannot be compiled, or that failed with the values of an event."""


class OverBudgetError(TemplateError):
    """A template or an expression that needs more work than its budget allows."""


class MissingValueError(TemplateError):
    """A template that needs a value which the event and the contact do not have."""


def template_error(error: Exception) -> TemplateError:
    """Return why a template could not be rendered."""
    # Python's own messages can quote values of the contact, and the reason of a step is stored in clear.
    match error:
        case UndefinedError():
            return MissingValueError(str(error))
        case DivisionByZero():
            return TemplateError("divides by zero")
        case DecimalException():
            return TemplateError("computes a number with too many digits")
        case TypeError() if "not supported between" in str(error):
            return TemplateError("compares values that have no order, such as a text and a number")
        case TypeError():
            return TemplateError("uses a value or arguments of the wrong type")
        case _:
            return TemplateError(f"cannot be rendered ({type(error).__name__})")


class RenderBudget:
    """The remaining budget of work, for one render or for several together.

    Every operation pays before or right after it does its work, so a template cannot grow or loop without bound.
    """

    def __init__(self) -> None:
        self._iterations = MAX_ITERATIONS
        self._work = MAX_WORK
        self._output = MAX_OUTPUT

    def pay_loop(self, passes: int, work_per_pass: int) -> None:
        self._iterations -= passes
        if self._iterations < 0:
            raise TemplateError(f"loops more than {MAX_ITERATIONS} times")
        self._pay(passes * work_per_pass)

    def pay_text(self, text: str) -> str:
        """Charge for a text that an operation produced, and return it."""
        if len(text) > MAX_OUTPUT:
            raise output_too_long()
        self._pay(1 + len(text) // _CHARACTERS_PER_WORK)
        return text

    def pay_search(self, length: int) -> None:
        """Charge for reading a text of this length."""
        self._pay(1 + length // _CHARACTERS_PER_WORK)

    def pay_output(self, size: int) -> None:
        """Charge for this many bytes of the result."""
        self._output -= size
        if self._output < 0:
            raise output_too_long()

    def pay_chunks(self, chunks: Iterator[str]) -> Iterator[str]:
        """Yield the chunks of the result, and charge for each."""
        left = self._output
        for chunk in chunks:
            left -= len(chunk) if chunk.isascii() else len(chunk.encode(errors="replace"))
            if left < 0:
                raise output_too_long()
            yield chunk
        self._output = left

    def _pay(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            raise OverBudgetError("does too much work: use fewer or shorter loops")


def output_too_long() -> TemplateError:
    return TemplateError(f"makes more than {MAX_OUTPUT} characters")


_EXACT = Context(
    prec=1_000, Emax=1_000, Emin=-1_000, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow, Inexact]
)
_ROUNDED = Context(prec=1_000, Emax=1_000, Emin=-1_000, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow])
_QUOTIENT = Context(prec=34, rounding=ROUND_HALF_UP, traps=[InvalidOperation, Overflow, DivisionByZero])
_OPERATIONS: dict[str, tuple[Callable[[int, int], int], Callable[[Decimal, Decimal], Decimal]]] = {
    "+": (operator.add, _EXACT.add),
    "-": (operator.sub, _EXACT.subtract),
    "*": (operator.mul, _EXACT.multiply),
}


class _MissingValue(StrictUndefined):
    """A missing value. It can be tested and given a default; any other use raises an error that names it."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        if self._undefined_hint:
            return self._undefined_hint
        if self._undefined_obj is missing:
            return f"the value {self._undefined_name!r} is missing"
        return f"the value before it has no key {self._undefined_name!r}"


class _ComputedKey(str):
    """A key that an expression computed. It may be a value of the contact, so no error names it."""

    __slots__ = ()


class _DataEnvironment(ImmutableSandboxedEnvironment):
    """An environment in which names and attributes reach only data.

    Attribute access never falls back to Python attributes, so a template cannot reach the class of a value or its
    module's globals, which is how templates escape other sandboxes.
    """

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
        if isinstance(argument, _ComputedKey):
            return self.undefined(hint="the value before it has no such key")
        return self.undefined(obj=obj, name=argument)

    def call_binop(self, context: Scope, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return _budget(context).pay_text(left + right)
        left, right = _number(left), _number(right)
        if operator == "/":
            if not right:
                raise DivisionByZero
            return _QUOTIENT.divide(Decimal(left), Decimal(right))
        on_integers, on_decimals = _OPERATIONS[operator]
        if isinstance(left, Decimal) or isinstance(right, Decimal):
            return on_decimals(Decimal(left), Decimal(right))
        return on_integers(left, right)  # at most 618 digits, because `_number` bounds both

    def call_unop(self, context: Scope, operator: str, arg: Any) -> Any:
        number = _number(arg)
        if operator == "+":
            return number
        return number.copy_negate() if isinstance(number, Decimal) else -number


def _total(operation: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(operation)  # also keeps the mark of `pass_context`
    def apply(*arguments: Any, **named: Any) -> Any:
        try:
            return operation(*arguments, **named)
        except OverBudgetError:
            raise  # later operations would do their work, and only then fail to pay
        except Exception:  # noqa: BLE001  as in `template.Template.render`: an expression is a customer's program
            return _MissingValue()

    return apply


class _TotalEnvironment(_DataEnvironment):
    """The environment of `where`: an operation that fails is a missing value."""

    call_binop = _total(_DataEnvironment.call_binop)
    call_unop = _total(_DataEnvironment.call_unop)


def to_json_value(value: Any) -> Json:
    """Return the result of an expression as a JSON value with exact numbers; raise TemplateError for other results."""
    _require_present(value)
    if isinstance(value, str | int | Decimal | dict | list | tuple | None):
        return list(value) if isinstance(value, tuple) else value
    if isinstance(value, float):
        return _exact(value)
    raise TemplateError("only values of the event and the contact can be kept")


def _budget(scope: Scope) -> RenderBudget:
    budget: RenderBudget = scope[BUDGET]
    return budget


def _require_present(value: Any) -> None:
    if isinstance(value, Undefined):
        str(value)  # raises, naming the missing value


def _number(value: Any) -> int | Decimal:
    _require_present(value)
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TemplateError(f"needs a number, not {_kind(value)}")
    if storage_problem(value):
        raise InvalidOperation
    return value


def _clamped(value: Any, least: int, greatest: int) -> int:
    return min(max(int(_number(value)), least), greatest)


def _exact(value: Any) -> Json:
    return Decimal(repr(value)) if isinstance(value, float) else value


def _to_places(number: Decimal, places: Any) -> Decimal:
    rounded = number.quantize(Decimal(1).scaleb(-_clamped(places, 0, 20)), context=_ROUNDED)
    return rounded or rounded.copy_abs()  # never -0


def _text(value: Any) -> str:
    """Print a value as readers of JSON expect: true, no trailing E+22, objects as JSON, null as an empty text."""
    match value:
        case str():
            return value
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float() | Decimal():
            return format(_exact(value), "d" if isinstance(value, int) else "f")
        case dict() | list() | tuple():
            return encode(value).decode()
        case Undefined():
            return str(value)  # raises, unless it is the result of an `if` without `else`
        case _:
            raise TemplateError("only values of the event and the contact can be printed")


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (type(None), "null"),
    (datetime, "a date"),
    (bool, "true or false"),
    (str, "a text"),
    ((int, float, Decimal), "a number"),
    (Mapping, "an object"),
    ((list, tuple), "a list"),
    (Undefined, "nothing"),
)


def _kind(value: Any) -> str:
    return next((words for types, words in _KINDS if isinstance(value, types)), "something else")


def _text_filter(change: Callable[[str], str]) -> Callable[[Scope, Any], str]:
    @pass_context
    def apply(scope: Scope, value: Any) -> str:
        return _budget(scope).pay_text(change(_text(value)))

    return apply


_FILTERS: dict[str, Callable[..., Any]] = {
    "default": STOCK["default"],
    "d": STOCK["default"],
    "upper": _text_filter(str.upper),
    "lower": _text_filter(str.lower),
    "capitalize": _text_filter(str.capitalize),
    "title": _text_filter(STOCK["title"]),
    "urlencode": _text_filter(partial(quote, safe="")),
    "trim": _text_filter(str.strip),
}


_WHERE_FILTERS: dict[str, Callable[..., Any]] = {}  # those that texts do not have


def _filter(
    *names: str, filters: dict[str, Callable[..., Any]] = _FILTERS
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a filter. Authors cannot use names that begin with `_`: `template` adds these to compiled templates."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        filters.update(dict.fromkeys(names, function))
        return function

    return register


@_filter("replace")
@pass_context
def _replace(scope: Scope, value: Any, old: Any, new: Any) -> str:
    text, old, new = _text(value), _text(old), _text(new)
    if len(text) + text.count(old) * (len(new) - len(old)) > MAX_OUTPUT:  # known before the text is built
        raise output_too_long()
    budget = _budget(scope)
    budget.pay_search(len(text))
    return budget.pay_text(text.replace(old, new))


@_filter("join")
@pass_context
def _join(scope: Scope, values: Any, between: Any = "") -> str:
    if not isinstance(values, list | tuple):
        _require_present(values)
        raise TemplateError(f"needs a list to join, not {_kind(values)}")
    budget, separator = _budget(scope), _text(between)
    texts = [budget.pay_text(_text(value)) for value in values]
    if sum(map(len, texts)) + len(texts) * len(separator) > MAX_OUTPUT:
        raise output_too_long()
    return budget.pay_text(separator.join(texts))


@_filter("truncate")
@pass_context
def _truncate(scope: Scope, value: Any, length: Any = 80) -> str:
    text, limit = _text(value), _clamped(length, 0, MAX_OUTPUT)
    return _budget(scope).pay_text(text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + "…")


@_filter("round")
def _round(value: Any, places: Any = 0) -> int | Decimal:
    number, places = _number(value), _clamped(places, 0, 20)
    return number if isinstance(number, int) else _to_places(number, places)


@_filter("number")
def _format_number(value: Any, places: Any = 0) -> str:
    return format(_to_places(Decimal(_number(value)), places), ",f")


@_filter("abs")
def _abs(value: Any) -> int | Decimal:
    number = _number(value)
    return number.copy_abs() if isinstance(number, Decimal) else abs(number)


@_filter("sum")
@pass_context
def _sum(scope: Scope, values: Any, key: Any = None) -> int | Decimal:
    """Return the sum of the numbers in a list, or of those that its objects have under a key."""
    if not isinstance(values, list | tuple):
        _require_present(values)
        raise TemplateError(f"needs a list to sum, not {_kind(values)}")
    _budget(scope).pay_loop(len(values), 1)
    if key is not None:
        values = [value[key] for value in values if isinstance(value, Mapping) and value.get(key) is not None]
    total: int | Decimal = 0
    for number in map(_number, values):
        total = _EXACT.add(Decimal(total), Decimal(number)) if isinstance(number, Decimal) else total + number
    return total


@_filter("length", "count")
def _length(value: Any) -> int:
    if not isinstance(value, str | list | tuple | Mapping):
        _require_present(value)
        raise TemplateError(f"{_kind(value)} has no length")
    return len(value)


@_filter("first")
def _first(values: Any) -> Any:
    return _element(values, 0)


@_filter("last")
def _last(values: Any) -> Any:
    return _element(values, -1)


def _element(values: Any, index: int) -> Any:
    if not isinstance(values, str | list | tuple):
        _require_present(values)
        raise TemplateError(f"{_kind(values)} has no first or last element")
    return values[index] if values else _MissingValue(hint="an empty list has no first or last element")


@_filter("_each")
@pass_context
def _pay_loop(scope: Scope, values: Any, work_per_pass: int) -> list[Any]:
    """Return the elements of a list, or the keys of an object, and charge for the whole loop in advance."""
    if not isinstance(values, Mapping | list | tuple):
        _require_present(values)
        raise TemplateError(f"cannot loop over {_kind(values)}")
    _budget(scope).pay_loop(len(values), work_per_pass)
    return list(values)


@_filter("_concat")
@pass_context
def _concatenate(scope: Scope, values: list[Any]) -> str:
    texts = [_text(value) for value in values]
    if sum(map(len, texts)) > MAX_OUTPUT:
        raise output_too_long()
    return _budget(scope).pay_text("".join(texts))


@_filter("_scalar")
def _require_scalar(value: Any) -> Any:
    # A comparison is not charged, so it must not descend into a large value.
    if isinstance(value, Mapping | list | tuple | LoopContext):
        raise TemplateError(f"compares {_kind(value)}: only texts and numbers can be compared")
    return _exact(value)


@_filter("_members")
@pass_context
def _pay_membership(scope: Scope, value: Any) -> Any:
    if not isinstance(value, str | Mapping | list | tuple):
        _require_present(value)
        raise TemplateError(f"`in` needs a text, a list or an object, not {_kind(value)}")
    _budget(scope).pay_search(len(value) * (1 if isinstance(value, str) else _CHARACTERS_PER_WORK // 8))
    return value


@_filter("_key")
def _mark_computed_key(value: Any) -> Any:
    return _ComputedKey(value) if isinstance(value, str) else value


@_filter("_decimal")
def _read_decimal(digits: str) -> Decimal:
    return Decimal(digits)


_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


@_filter("decimal", filters=_WHERE_FILTERS)
def _decimal(value: Any) -> int | Decimal:
    """Return the number that a text spells: big integers of contract logs travel as texts."""
    return _number(decode(value.encode()) if isinstance(value, str) and _JSON_NUMBER.fullmatch(value) else value)


@_filter("date", filters=_WHERE_FILTERS)
def _date(value: Any) -> datetime:
    """Return the moment that a text names: a date with time and zone, or a day (its start in UTC)."""
    if isinstance(value, datetime):
        return value
    moment_us = parse_timestamp(f"{value}T00:00:00Z" if _DAY.fullmatch(value) else value)
    if moment_us is None:
        raise TemplateError("needs a date with time and zone, or a day")
    return _EPOCH + timedelta(microseconds=moment_us)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


@_filter("days_since", filters=_WHERE_FILTERS)
@pass_context
def _days_since(scope: Scope, value: Any) -> int:
    """Return the whole days of 24 hours from a date until now; negative for a date in the future."""
    return int((scope[MOMENT] - _date(value)) // timedelta(days=1))


@_filter("_at", filters=_WHERE_FILTERS)
@pass_context
def _at(scope: Scope, path: str) -> Any:
    value = value_at(path, scope[CONTEXT])
    return _MissingValue() if value is MISSING else value


@_filter("_true", filters=_WHERE_FILTERS)
def _true(value: Any) -> bool:
    return value is True


@_filter("_compare", filters=_WHERE_FILTERS)
@pass_context
def _compare(scope: Scope, left: Any, *others: Any) -> bool:
    """Return whether a chain of comparisons holds: `others` are operators, each with its right side."""
    for name, right in zip(others[::2], others[1::2], strict=True):
        if name in ("in", "notin"):
            is_part = isinstance(right, str) and isinstance(left, str)
            if isinstance(left, Mapping | list | tuple | Undefined) or (isinstance(right, str) and not is_part):
                return False
            members = _pay_membership(scope, right)  # raises for a value that has no members
            if isinstance(left, datetime):  # as the other operators compare dates; other texts are not equal
                to_date = WHERE.filters["date"]
                members = [moment for item in members if isinstance(moment := to_date(item), datetime)]
            contained = left in right if is_part else any(json_equal(left, item) for item in members)
            holds = contained is (name == "in")
        else:
            sides = left, right
            if isinstance(left, datetime) is not isinstance(right, datetime):
                sides = _date(left), _date(right)  # so a date can be compared with "2026-12-24"
            types = [_SAME_TYPE.get(type(side), type(side)) for side in sides]
            if types[0] is types[1]:
                comparable = types[0] in (_EQUATED if name in ("eq", "ne") else _ORDERED)
                holds = comparable and bool(_ORDERS[name](*sides))
            else:
                holds = name == "ne" and None in sides and _EQUATED.issuperset(types)
        if not holds:
            return False
        left = right
    return True


_SAME_TYPE: dict[type, type] = {Decimal: int, float: int}
_ORDERED = frozenset({str, int, datetime})
_EQUATED = _ORDERED | {bool, type(None)}  # a comparison must not descend into a large value, such as a list
# By the names of Jinja2
_ORDERS = {name: getattr(operator, name.replace("teq", "e")) for name in ("eq", "ne", "gt", "gteq", "lt", "lteq")}


def _environment(finalize: Callable[[Any], str], kind: type[_DataEnvironment] = _DataEnvironment) -> _DataEnvironment:
    environment = kind(
        undefined=_MissingValue,
        finalize=finalize,
        autoescape=False,  # the `finalize` of HTML templates escapes
        cache_size=0,
        optimized=False,  # constants are calculated when rendering, within the budget
        keep_trailing_newline=True,
    )
    environment.globals = {}
    environment.tests = {name: environment.tests[name] for name in TESTS}
    environment.filters = dict(_FILTERS)
    return environment


TEXT = _environment(_text)
HTML = _environment(lambda value: str(escape(_text(value))))
WHERE = _environment(_text, _TotalEnvironment)
WHERE.filters = {name: _total(apply) for name, apply in {**_FILTERS, **_WHERE_FILTERS}.items()}
WHERE.filters |= {"_at": _at, "_true": _true}  # these never fail
FILTERS, WHERE_FILTERS = (
    tuple(sorted(name for name in environment.filters if not name.startswith("_"))) for environment in (TEXT, WHERE)
)
# The types of what filters return, by the names that payloads have for types.
_TYPES = {str: "string", int: "number", int | Decimal: "number", datetime: "date"}
FILTER_TYPES = {name: _TYPES.get(apply.__annotations__.get("return"), "") for name, apply in WHERE.filters.items()}
