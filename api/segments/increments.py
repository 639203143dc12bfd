"""Whether a segment can be refreshed by increments.

A refresh reads only the contacts that changed if the query decides each contact's membership from that contact's own
rows. It then evaluates the same query on views that have the rows of these contacts only (the schema
`analyst_changed`), and leaves all other members as they are. This is exact if every row that the query computes comes
from rows of one contact. `read_incremental_query` proves that, or says what prevents it:

- Tables are `app_events`, `contacts` and `segment_members`. Those that are joined are tied by their contact, directly
  or through others, and so is each subquery. An aggregate is of a contact, or inside a tied subquery.
- Nothing depends on the order of rows or on chance: no LIMIT, window function, or sum of floating-point numbers.
- The clock is only compared with the time of an event or of a contact, or with the latest or earliest of its times. The
  other side of this comparison is a cutoff, which is the same for all contacts. Between two refreshes, the comparison
  changes only for contacts with such a time between the former cutoff and the present one, so these contacts count as
  changed, too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

import msgspec

from api.query.sql_parser import parse
from api.query.sql_tree import (
    Column,
    Combination,
    Constant,
    Expression,
    FunctionCall,
    Query,
    Select,
    Source,
    SqlNode,
    SqlOperation,
    Subquery,
    UnsupportedSqlError,
)
from api.segments.definition import SegmentQuery
from api.segments.scopes import (
    PLAIN,
    TABLES,
    SelectColumns,
    SelectResult,
    SelectScope,
    SelectSource,
    TimeColumn,
    ValueFacts,
    refuse,
)
from workbench.language.codec import Json


class Cutoff(msgspec.Struct, frozen=True):
    """A time that a query computes from the clock, as written, and the columns that are compared with it.

    `by_day`: their days are.
    """

    sql: str
    columns: tuple[TimeColumn, ...]
    by_day: bool


class IncrementalQuery(msgspec.Struct, frozen=True):
    """The inputs of a query that decides membership contact by contact.

    `events`: only events of these names, None: of all. `reads_contacts`: also the values of the contact.
    `reads_members`: also its segments.
    """

    cutoffs: tuple[Cutoff, ...]
    events: tuple[str, ...] | None
    reads_contacts: bool
    reads_members: bool


def read_incremental_query(query: SegmentQuery) -> IncrementalQuery:
    """Return what a query depends on. Raises UnsupportedSqlError if its segment is refreshed as a whole."""
    for text in _texts(query.params):
        if _can_be_clock(text):
            raise UnsupportedSqlError(f"the value {text!r}, which can be a moment,", 1)
    if len(query.sql) > _MAX_CHARACTERS:
        raise UnsupportedSqlError(f"a statement of more than {_MAX_CHARACTERS:,} characters", _MAX_CHARACTERS + 1)
    proof = _Proof(query)
    try:
        result = proof.check_query(parse(query.sql), {}, None)
    except RecursionError:
        raise UnsupportedSqlError("a statement that is nested so deeply, or has so many operators,", 1) from None
    keys = [value.is_key for name, value in result.columns if name == "contact_id"]
    if keys != [True]:
        raise UnsupportedSqlError("a contact_id that is not the contact of the rows that are read", 1)
    events = None if proof.events is None else tuple(sorted(proof.events))
    contacts, members = (name in proof.tables for name in ("contacts", "segment_members"))
    return IncrementalQuery(tuple(dict.fromkeys(proof.cutoffs)), events, contacts, members)


# --- What is known

_MAX_CHARACTERS = 10_000  # these take up to 60 ms, while other requests wait
_CLOCK = frozenset(("now", "transaction_timestamp", "current_date", "current_timestamp", "localtimestamp"))
# Postgres reads a moment as runs of letters, so a digit or an underscore ends a word here.
_CLOCK_TEXT = re.compile(r"(?<![a-z])(?:now|today|tomorrow|yesterday)(?![a-z])", re.IGNORECASE | re.ASCII)
_ONE_ROW_FUNCTIONS = frozenset(
    """
    abs array_length array_position btrim cardinality ceil ceiling char_length coalesce concat concat_ws
    date_bin date_trunc extract floor greatest initcap jsonb_array_length jsonb_extract_path
    jsonb_extract_path_text jsonb_path_exists jsonb_typeof least left length lower ltrim make_date make_interval
    mod nullif regexp_match regexp_replace replace right round rtrim sign split_part starts_with string_to_array
    strpos substr substring to_char to_date translate trim trunc upper
    """.split()
)
_SET_FUNCTIONS = frozenset(
    """
    generate_series jsonb_array_elements jsonb_array_elements_text jsonb_each jsonb_each_text jsonb_object_keys
    regexp_split_to_table string_to_table unnest
    """.split()
)
_FUNCTION_COLUMNS = {  # others have one, of the name of the table
    "jsonb_array_elements": ("value",),
    "jsonb_array_elements_text": ("value",),
    "jsonb_each": ("key", "value"),
    "jsonb_each_text": ("key", "value"),
}
_EXACT_AGGREGATES = frozenset(("count", "min", "max", "bool_and", "bool_or", "every"))
_SUMS = frozenset(("sum", "avg", "stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"))
_AGGREGATES = _EXACT_AGGREGATES | _SUMS
_OPERATORS = frozenset("+ - * / % ^ || -> ->> #> #>> @> <@ ? ?| ?& && ~ ~* !~ !~*".split())
_COMPARISONS = frozenset(("<", ">", "=", "<=", ">=", "<>", "!="))
_TRUTHS = _COMPARISONS | {"is null", "is distinct from", "in", "like", "between", "and", "or", "not"}
_CONSTRUCTS = frozenset(("case", "array", "[]", "at time zone", "()"))
_FLOATS = frozenset(("float", "float4", "float8", "real", "double"))
_MOMENTS = frozenset(("date", "timestamp", "timestamptz"))


class _Proof:
    """Proves that a query decides each contact by that contact's rows, and collects what its result depends on."""

    def __init__(self, query: SegmentQuery) -> None:
        self._text, self._params = query.sql, query.params
        self.cutoffs: list[Cutoff] = []
        self.events: set[str] | None = set()
        self.tables: set[str] = set()

    def check_query(self, query: Query, named: Mapping[str, SelectResult], outer: SelectScope | None) -> SelectResult:
        named = dict(named)
        for name, columns, inner in query.named:
            named[name] = _renamed(self._check_table(inner, named), columns, inner)
        self._check_order(query, outer)
        return self._check_body(query.body, named, outer)

    def _check_order(self, query: Query, outer: SelectScope | None) -> None:
        """Refuse what could change the rows: a function that returns several, or an aggregate of all rows."""
        functions = _ONE_ROW_FUNCTIONS | _CLOCK
        if outer is None and isinstance(query.body, Select) and query.body.groups:
            functions |= _AGGREGATES
        for part in (part for expression in query.order for part in _parts(expression)):
            match part:
                case FunctionCall(function=function) if function not in functions:
                    refuse(part, f"{function}() in ORDER BY")
                case Subquery():
                    refuse(part, "a subquery in ORDER BY")
                case _:
                    pass

    def _check_table(self, query: Query, named: Mapping[str, SelectResult]) -> SelectResult:
        """Return the result of a query in FROM or WITH; refuse one of contacts that does not return their ids."""
        result = self.check_query(query, named, None)
        if result.of_contacts and not any(value.is_key for _, value in result.columns):
            refuse(query, "a query in FROM or WITH that does not return the contact of its rows")
        return result

    def _check_body(
        self, body: Select | Combination, named: Mapping[str, SelectResult], outer: SelectScope | None
    ) -> SelectResult:
        if isinstance(body, Select):
            return self._check_select(body, named, outer)
        left, right = self._check_body(body.left, named, outer), self._check_body(body.right, named, outer)
        if len(left.columns) != len(right.columns):
            refuse(body, "a combination of different numbers of columns")
        if any(value.is_untracked for result in (left, right) for _, value in result.columns):
            refuse(body, "updated_at of contacts")
        columns = [
            (
                name,
                ValueFacts(
                    is_key=a.is_key and b.is_key,
                    times=a.times | b.times if a.times and b.times else frozenset(),
                    by_day=a.by_day or b.by_day,
                    is_moment=a.is_moment and b.is_moment,
                    is_inexact=a.is_inexact or b.is_inexact,
                ),
            )
            for (name, a), (_, b) in zip(left.columns, right.columns, strict=True)
        ]
        results = [result for result in (left, right) if result.of_contacts]
        return SelectResult(columns, bool(results), all(result.is_tied for result in results))

    def _check_select(
        self, select: Select, named: Mapping[str, SelectResult], outer: SelectScope | None
    ) -> SelectResult:
        scope = SelectScope(outer)
        for source in select.sources:
            self._add_source(source, scope, named)
        if select.where is not None:
            self._check_value(select.where, scope, named)
            scope.tie_by(select.where)
        if scope.aggregates > 0:
            refuse(select, "an aggregate of an outer query")
        for number, source in enumerate(select.sources):
            if source.value == "app_events" and "app_events" not in named:
                # A source with names of its own for its columns has no known one for that of the event.
                conditions = (
                    [] if source.columns else [source.on] if source.join == "left" else [source.on, select.where]
                )
                self._add_events(number, conditions, scope)
            if isinstance(source.value, str) and source.value not in named:
                self.tables.add(source.value)
        if not scope.are_tied():
            refuse(select, "a join of rows of different contacts")
        columns: list[tuple[str | None, ValueFacts]] = []
        aliases: dict[str | None, ValueFacts] = {}
        for item in select.items:
            if isinstance(item.value, Column) and item.value.name == "*":
                sources = [s for s in scope.sources if item.value.table in (None, s.name)]
                if not sources or scope.merged or any(s.is_optional or s.is_function for s in sources):
                    refuse(item, "* here")
                columns += [column for s in sources for column in s.columns]
                continue
            value = self._check_value(item.value, scope, named)
            name = item.name or _name_of(item.value)
            columns.append((name, value))
            aliases.setdefault(name, value)
        keyed_groups = [self._group_is_key(group, scope, named, columns, aliases) for group in select.groups]
        if select.having is not None:
            self._check_value(select.having, scope, named)
        of_contacts = any(source.of_contacts for source in scope.sources)
        is_tied = of_contacts and scope.is_tied_to_outer()
        is_grouped = bool(select.groups) or scope.aggregates > 0 or select.having is not None
        if of_contacts and is_grouped and not is_tied and not any(keyed_groups):
            refuse(select, "an aggregate that is not of one contact (GROUP BY contact_id)")
        return SelectResult(columns, of_contacts, is_tied)

    def _add_source(self, source: Source, scope: SelectScope, named: Mapping[str, SelectResult]) -> None:
        match source.value:
            case str() as name if name in named:
                result = named[name]
            case str() as name if name in TABLES:
                result = SelectResult(TABLES[name], True, False)
            case str() as name:
                refuse(source, f"the table {name}")
            case Query() as query:
                result = self._check_table(query, named)
            case FunctionCall() as call:
                if call.function not in _SET_FUNCTIONS or (call.function == "unnest" and len(call.arguments) > 1):
                    refuse(call, f"{call.function}()")
                arguments = [self._check_value(argument, scope, named) for argument in call.arguments]
                value = ValueFacts(is_inexact=any(argument.is_inexact for argument in arguments))
                names = [*_FUNCTION_COLUMNS.get(call.function, (source.name,))]
                if source.has_ordinality:
                    names.append("ordinality")
                result = SelectResult([(name, value) for name in names], False, False)
            case _:
                assert_never(source.value)
        result = _renamed(result, source.columns, source)
        if any(source.name == other.name for other in scope.sources):
            refuse(source, f"the name {source.name!r}, which two tables have,")
        is_function = isinstance(source.value, FunctionCall)
        scope.sources.append(SelectSource(source.name, result.columns, result.of_contacts, is_function))
        if source.on is not None:
            self._check_value(source.on, scope, named)
            if source.join == "inner":
                scope.tie_by(source.on)
            elif result.of_contacts and not scope.tie_optional(source.on):
                refuse(source, "a LEFT JOIN that is not by the contact")
        for name in source.using:
            if any(column == name and value.is_untracked for s in scope.sources for column, value in s.columns):
                refuse(source, f"{name} of contacts")
            scope.merge(name)
        if source.join == "left":
            if result.of_contacts and not scope.is_tied_to_others(len(scope.sources) - 1):
                refuse(source, "a LEFT JOIN that is not by the contact")
            scope.sources[-1].is_optional = True

    def _add_events(self, number: int, conditions: Sequence[Expression | None], scope: SelectScope) -> None:
        """Collect the names that conditions demand of the events of a source."""
        demands = [names for condition in conditions for names in self._event_names(condition, number, scope)]
        if not demands or self.events is None:
            self.events = None
        else:
            self.events |= demands[0]

    def _event_names(self, condition: Expression | None, number: int, scope: SelectScope) -> Iterator[set[str]]:
        match condition:
            case SqlOperation(operator="and" | "()", operands=operands):
                for operand in operands:
                    yield from self._event_names(operand, number, scope)
            case SqlOperation(
                operator="=" | "in" | "= any" as operator, operands=(Column(name="event") as column, *values)
            ):
                if scope.find(column) == (scope, number, PLAIN):
                    texts = [text for value in values for text in self._texts_of(value, is_array=operator == "= any")]
                    if None not in texts:
                        yield {text for text in texts if text is not None}
            case _:
                pass

    def _texts_of(self, value: Expression, *, is_array: bool) -> Sequence[str | None]:
        """Return the text of a literal or a parameter, or the texts of an array parameter; None for anything else."""
        if not isinstance(value, Constant):
            return [None]
        text, params = value.text, self._params
        if text.startswith("'"):
            return [None if is_array else text[1:-1].replace("''", "'")]  # '{a,b}' is an array
        param_value: Json = None
        if text.startswith(":") and isinstance(params, dict):
            param_value = params.get(text[1:])
        elif text[1:].isdecimal() and text.startswith("$") and isinstance(params, list):
            param_value = params[int(text[1:]) - 1] if 0 < int(text[1:]) <= len(params) else None
        if is_array != isinstance(param_value, list):
            return [None]
        items = param_value if isinstance(param_value, list) else [param_value]
        return [item if isinstance(item, str) and "@" not in item else None for item in items]  # addresses are sealed

    def _group_is_key(
        self,
        group: Expression,
        scope: SelectScope,
        named: Mapping[str, SelectResult],
        columns: SelectColumns,
        aliases: Mapping[str | None, ValueFacts],
    ) -> bool:
        match group:
            case Constant(text=text):
                return text.isdecimal() and 0 < int(text) <= len(columns) and columns[int(text) - 1][1].is_key
            case Column(table=None, name=name) if scope.find(group) is None and name in aliases:
                return aliases[name].is_key
            case _:
                return self._check_value(group, scope, named).is_key

    # --- Expressions

    def _check_value(self, value: Expression, scope: SelectScope, named: Mapping[str, SelectResult]) -> ValueFacts:
        match value:
            case Constant(text=text):
                if text[:2] in ("E'", "e'"):
                    refuse(value, f"the text {text}, which can have escapes,")
                if _can_be_clock(text) and not text.startswith(":"):
                    refuse(value, f"the text {text}, which can be a moment,")
                return PLAIN
            case Column(name=name):
                place = scope.find(value)
                if place is None or name == "*":
                    refuse(value, f"the name {name}")
                if place[2].is_untracked:
                    refuse(value, f"{name} of contacts")
                # The contact of an outer row is the same for all rows here.
                return place[2] if place[0] is scope else msgspec.structs.replace(place[2], is_key=False)
            case FunctionCall():
                return self._check_call(value, scope, named)
            case SqlOperation(operator="()", operands=(inner,)):
                return self._check_value(inner, scope, named)
            case SqlOperation(operator=operator, operands=(left, right)) if operator in _COMPARISONS:
                if _is_cutoff(right):
                    self._add_cutoff(left, right, scope, named)
                elif _is_cutoff(left):
                    self._add_cutoff(right, left, scope, named)
                else:
                    self._check_value(left, scope, named)
                    self._check_value(right, scope, named)
                return PLAIN
            case SqlOperation(operator="between", operands=(middle, *ends)):
                for end in ends:
                    if _is_cutoff(end):
                        self._add_cutoff(middle, end, scope, named)
                    else:
                        self._check_value(end, scope, named)
                self._check_value(middle, scope, named)
                return PLAIN
            case SqlOperation():
                return self._check_operation(value, scope, named)
            case Subquery():
                return self._check_subquery(value, scope, named)

    def _check_operation(
        self, value: SqlOperation, scope: SelectScope, named: Mapping[str, SelectResult]
    ) -> ValueFacts:
        operator = value.operator
        operands = [self._check_value(operand, scope, named) for operand in value.operands]
        if operator in _TRUTHS or operator.endswith((" any", " some", " all")):
            return PLAIN
        is_inexact = any(operand.is_inexact for operand in operands)
        if operator.startswith("::"):
            name, operand = operator[2:].replace("[]", ""), operands[0]
            if name in _FLOATS:
                return ValueFacts(is_inexact=True)
            if name in _MOMENTS:
                if not (operand.is_moment or isinstance(value.operands[0], Constant)):
                    refuse(value, f"a text as {name}, which can be 'today',")
                by_day = operand.by_day or name == "date"
                return msgspec.structs.replace(operand, is_key=False, by_day=by_day, is_moment=True)
            return PLAIN
        if operator not in _OPERATORS | _CONSTRUCTS:
            refuse(value, f"the operator {operator}")
        is_moment = operator in ("+", "-", "at time zone") and operands[0].is_moment
        if operator == "-" and len(operands) == 2 and operands[1].is_moment:
            is_moment = False
        return ValueFacts(is_moment=is_moment, is_inexact=is_inexact or operator == "^")

    def _check_call(self, call: FunctionCall, scope: SelectScope, named: Mapping[str, SelectResult]) -> ValueFacts:
        function = call.function
        if function in _CLOCK:
            refuse(call, f"{function}, which is not alone on one side of a comparison with occurred_at or created_at,")
        values = [self._check_value(argument, scope, named) for argument in call.arguments]
        if call.filter is not None:
            self._check_value(call.filter, scope, named)
        is_inexact = any(value.is_inexact for value in values)
        if function in _AGGREGATES:
            scopes = {
                place[0]
                for column in _parts(call)
                if isinstance(column, Column) and (place := scope.find(column)) is not None
            }
            if scopes and scope not in scopes:
                refuse(call, "an aggregate of an outer query")
            scope.aggregates += 1
            if function in _SUMS and is_inexact:
                refuse(call, "a sum of floating-point numbers, which depends on the order of rows,")
            if function in ("min", "max") and len(values) == 1:
                return msgspec.structs.replace(values[0], is_key=False)
            return PLAIN
        if function not in _ONE_ROW_FUNCTIONS:
            refuse(call, f"{function}()")
        is_moment = function == "make_date" or (
            function in ("date_trunc", "date_bin") and len(values) > 1 and values[1].is_moment
        )
        return ValueFacts(is_moment=is_moment, is_inexact=is_inexact)

    def _add_cutoff(
        self, time: Expression, cutoff: Expression, scope: SelectScope, named: Mapping[str, SelectResult]
    ) -> None:
        for part in _parts(cutoff):
            match part:
                case FunctionCall(function=function) if function in _CLOCK and not part.arguments:
                    pass
                case FunctionCall(function=function) if function not in _ONE_ROW_FUNCTIONS:
                    refuse(part, f"{function}()")
                case SqlOperation(operator=operator) if not (
                    operator in _OPERATORS | _CONSTRUCTS or operator.startswith("::")
                ):
                    refuse(part, operator.upper())
                case Constant():
                    self._check_value(part, scope, named)
                    if part.text[1:].isdecimal() and part.text.startswith("$"):
                        refuse(part, f"{part.text} with now() (use a named parameter, such as :days)")
                case _:
                    pass
        value = PLAIN if _is_cutoff(time) else self._check_value(time, scope, named)
        if not value.times:
            refuse(time, "the clock compared with something other than occurred_at or created_at, or their max or min")
        sql = self._text[cutoff.start : cutoff.end]
        self.cutoffs.append(Cutoff(sql, tuple(sorted(value.times)), value.by_day))

    def _check_subquery(self, subquery: Subquery, scope: SelectScope, named: Mapping[str, SelectResult]) -> ValueFacts:
        result = self.check_query(subquery.query, named, scope)
        key = None if subquery.key is None else self._check_value(subquery.key, scope, named)
        is_matched = key is not None and key.is_key and [value.is_key for _, value in result.columns] == [True]
        if result.of_contacts and not result.is_tied and not is_matched:
            refuse(subquery, "a subquery that is not limited to the contact (WHERE e.contact_id = c.id)")
        if subquery.kind != "scalar" or len(result.columns) != 1:
            return PLAIN
        return msgspec.structs.replace(result.columns[0][1], is_key=False)


def _can_be_clock(text: str) -> bool:
    return _CLOCK_TEXT.search(text.replace("\\", "")) is not None  # '{to\day}' is an array with today


def _texts(value: Json) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list() | dict():
            for item in value if isinstance(value, list) else value.values():
                yield from _texts(item)
        case _:
            pass


def _renamed(result: SelectResult, names: Sequence[str], node: SqlNode) -> SelectResult:
    if len(names) > len(result.columns):
        refuse(node, "a list of more names than columns")
    columns = [
        (names[number] if number < len(names) else name, value) for number, (name, value) in enumerate(result.columns)
    ]
    if any(name is None for name, _ in columns):
        refuse(node, "a column without a name (AS …)")
    return SelectResult(columns, result.of_contacts, result.is_tied)


def _name_of(value: Expression) -> str | None:
    """Return the column name that Postgres derives, None if it depends on its version or on types."""
    match value:
        case Column(name=name):
            return name
        case FunctionCall(function=function):
            return "btrim" if function == "trim" else function
        case SqlOperation(operator=operator, operands=(inner, *_)) if operator == "()" or operator.startswith("::"):
            return _name_of(inner)
        case _:
            return None


def _parts(value: Expression) -> Iterator[Expression]:
    """Yield an expression and its parts, without those of subqueries."""
    yield value
    match value:
        case FunctionCall(arguments=arguments, filter=condition):
            for part in (*arguments, *(() if condition is None else (condition,))):
                yield from _parts(part)
        case SqlOperation(operands=operands):
            for operand in operands:
                yield from _parts(operand)
        case Subquery(key=key) if key is not None:
            yield from _parts(key)


def _is_cutoff(value: Expression) -> bool:
    """Return whether an expression uses the clock, and is the same for all contacts."""
    parts = list(_parts(value))
    uses_clock = any(isinstance(part, FunctionCall) and part.function in _CLOCK for part in parts)
    return uses_clock and not any(isinstance(part, Column | Subquery) for part in parts)
