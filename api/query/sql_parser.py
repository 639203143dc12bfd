"""A parser for the SELECT statements of analysts, as far as `api.segments.increments` can reason about them.

It accepts a part of Postgres's grammar, with Postgres's precedence of operators, and refuses everything else with the
place of what it does not know. So a statement that it reads means for Postgres what the tree says.
"""

import re
from collections.abc import Callable, Iterator
from string import ascii_lowercase, ascii_uppercase
from typing import Literal, NoReturn

import msgspec

from api.query.sql_tree import (
    Column,
    Combination,
    Constant,
    Expression,
    FunctionCall,
    Join,
    Query,
    ResultItem,
    Select,
    Source,
    SqlOperation,
    Subquery,
    UnsupportedSqlError,
)
from workbench.language.sql import SqlToken, tokenize


def parse(text: str) -> Query:
    """Return the tree of a statement. Raises UnsupportedSqlError, and RecursionError if it is nested too deeply."""
    parser = _Parser(text)
    query = parser.query()
    parser.skip_semicolons()
    if parser.token.kind != "end":
        parser.refuse()
    return query


_COMPARISON = {"<", ">", "=", "<=", ">=", "<>", "!="}
_OR, _AND, _NOT, _IS, _COMPARE, _BETWEEN, _OTHER, _ADD, _MULTIPLY, _POWER, _ZONE, _SIGN, _INDEX, _CAST = range(1, 15)
_OPERATOR_CHARACTERS = frozenset("+-*/<>=~!@#%^&|`?")
_TYPES = frozenset(
    """
    text varchar numeric decimal integer int smallint bigint int2 int4 int8 boolean bool uuid json jsonb date
    timestamp timestamptz interval float float4 float8 real double
    """.split()
)
_KEYWORD_CALLS = frozenset(("current_date", "current_timestamp", "localtimestamp"))
_RESERVED = _KEYWORD_CALLS | frozenset(
    """
    all and any array as asc asymmetric both case cast check collate column cross cube current_catalog current_role
    current_schema current_time current_user default desc distinct do else end except fetch filter for foreign from
    full grant group grouping having ilike in inner intersect interval into is isnull join lateral leading left like
    limit localtime natural not notnull offset on only or order outer over overlaps placing returning right rollup row
    select session_user sets similar some symmetric system_user table tablesample then to trailing union unique user
    using values variadic verbose when where window with within
    """.split()
)
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # of names, Postgres changes these letters only
_NAME_BYTES = 63  # Postgres cuts longer names off
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][0-9]+)?")


class _Token(msgspec.Struct, frozen=True):
    kind: Literal["word", "quoted", "value", "operator", "mark", "end"]
    text: str
    start: int
    end: int


def _tokens(text: str) -> Iterator[_Token]:
    """Yield tokens with whole operators, which Postgres ends as its lexer does."""
    symbols: list[SqlToken] = []
    for token in (*tokenize(text, values=True), SqlToken("word", "", len(text), len(text))):
        is_symbol = token.kind == "other" and token.text in _OPERATOR_CHARACTERS
        if symbols and not (is_symbol and token.start == symbols[-1].end):
            while symbols:
                length = len(symbols)
                if not any(symbol.text in "~!@#%^&|`?" for symbol in symbols):
                    while length > 1 and symbols[length - 1].text in "+-":
                        length -= 1
                name = "".join(symbol.text for symbol in symbols[:length])
                yield _Token("operator", name, symbols[0].start, symbols[length - 1].end)
                del symbols[:length]
        if is_symbol:
            symbols.append(token)
            continue
        match token.kind:
            case "word" if token.text:
                yield _Token("word", token.text.translate(_LOWER), token.start, token.end)
            case "quoted":
                yield _Token("quoted", token.text, token.start, token.end)
            case "string" | "number" | "name" | "positional":
                yield _Token("value", token.text, token.start, token.end)
            case "word":
                yield _Token("end", "", token.start, token.end)
            case _:
                yield _Token("mark", token.text, token.start, token.end)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        for token in self._tokens:
            if token.kind in ("word", "quoted") and len(token.text.encode()) > _NAME_BYTES:
                raise UnsupportedSqlError(f"a name of more than {_NAME_BYTES} bytes", token.start + 1)

    # --- Tokens

    @property
    def token(self) -> _Token:
        return self._tokens[self._at]

    @property
    def _previous_end(self) -> int:
        return self._tokens[self._at - 1].end

    def refuse(self, reason: str | None = None) -> NoReturn:
        token = self.token
        raise UnsupportedSqlError(reason or (token.text.upper() or "an incomplete statement"), token.start + 1)

    def _is(self, *texts: str, after: int = 0) -> bool:
        token = self._tokens[min(self._at + after, len(self._tokens) - 1)]
        return token.kind in ("word", "operator", "mark") and token.text in texts

    def _take(self, *texts: str) -> bool:
        """Skip these tokens if they come next."""
        if all(self._is(text, after=number) for number, text in enumerate(texts)):
            self._at += len(texts)
            return True
        return False

    def _expect(self, *texts: str) -> None:
        if not self._take(*texts):
            self.refuse()

    def _next(self) -> _Token:
        if self.token.kind == "end":
            self.refuse()
        self._at += 1
        return self._tokens[self._at - 1]

    def skip_semicolons(self) -> None:
        while self._take(";"):
            pass

    def _name(self) -> str:
        token = self.token
        if token.kind == "quoted" or (token.kind == "word" and token.text not in _RESERVED):
            return self._next().text
        return self.refuse()

    def _names(self) -> tuple[str, ...]:
        """Read a list of names in parentheses."""
        self._expect("(")
        names = [self._name()]
        while self._take(","):
            names.append(self._name())
        self._expect(")")
        return tuple(names)

    # --- Queries

    def query(self) -> Query:
        start, named = self.token.start, []
        if self._take("with"):
            while True:
                name = self._name()
                columns = self._names() if self._is("(") else ()
                self._expect("as")
                if not self._take("not", "materialized"):
                    self._take("materialized")
                self._expect("(")
                named.append((name, columns, self.query()))
                self._expect(")")
                if not self._take(","):
                    break
        body = self._combination()
        order: list[Expression] = []
        if self._take("order", "by"):
            while not order or self._take(","):
                order.append(self._expression())
                if not self._take("asc"):
                    self._take("desc")
                if self._take("nulls") and not self._take("first"):
                    self._expect("last")
        return Query(tuple(named), body, tuple(order), start=start, end=self._previous_end)

    def _combination(self) -> Select | Combination:
        left = self._intersection()
        while self._is("union", "except"):
            left = self._combined(left, self._intersection)
        return left

    def _intersection(self) -> Select | Combination:
        left = self._select()
        while self._is("intersect"):
            left = self._combined(left, self._select)
        return left

    def _combined(self, left: Select | Combination, right: Callable[[], Select | Combination]) -> Combination:
        self._next()
        if not self._take("all"):
            self._take("distinct")
        return Combination(left, right(), start=left.start, end=self._previous_end)

    def _select(self) -> Select | Combination:
        start = self.token.start
        if self._take("("):
            body = self._combination()
            self._expect(")")
            return body
        self._expect("select")
        if self._take("distinct"):
            if self._is("on"):
                self.refuse("DISTINCT ON")
        else:
            self._take("all")
        items = [self._item()]
        while self._take(","):
            items.append(self._item())
        sources: list[Source] = []
        if self._take("from"):
            sources.append(self._source("first"))
            is_after_comma = False
            while True:
                is_after_comma = is_after_comma or self._is(",")
                join = self._join()
                if join is None:
                    break
                if is_after_comma and join != "cross":
                    self.refuse("a JOIN after a comma")  # its condition does not see the tables before the comma
                sources.append(self._source(join))
        where = self._expression() if self._take("where") else None
        groups: list[Expression] = []
        if self._take("group", "by"):
            while not groups or self._take(","):
                groups.append(self._expression())
        having = self._expression() if self._take("having") else None
        return Select(tuple(items), tuple(sources), where, tuple(groups), having, start=start, end=self._previous_end)

    def _item(self) -> ResultItem:
        start = self.token.start
        if self._is("*"):
            self._next()
            return ResultItem(
                Column(None, "*", start=start, end=self._previous_end), None, start=start, end=self._previous_end
            )
        value = self._expression(stars=True)
        name = None
        if self._take("as"):
            name = self._next().text  # any word may follow AS
        elif self.token.kind == "quoted" or (self.token.kind == "word" and self.token.text not in _RESERVED):
            name = self._next().text
        return ResultItem(value, name, start=start, end=self._previous_end)

    def _join(self) -> Join | None:
        if self._take(","):
            return "cross"
        if self._take("cross", "join"):
            return "cross"
        if self._take("left"):
            self._take("outer")
            self._expect("join")
            return "left"
        if self._take("inner", "join") or self._take("join"):
            return "inner"
        if self._is("right", "full", "natural"):
            self.refuse(f"{self.token.text.upper()} JOIN")
        return None

    def _source(self, join: Join) -> Source:
        start = self.token.start
        is_lateral, has_ordinality = self._take("lateral"), False
        value: str | Query | FunctionCall
        if self._is("("):
            if is_lateral:
                self.refuse("LATERAL")
            self._next()
            if not self._is("select", "with", "("):
                self.refuse("a join in parentheses, or VALUES,")
            value = self.query()
            self._expect(")")
            name = ""
        else:
            name = self._name()
            if self._is("."):
                self.refuse("a table with its schema")
            value = name
            if self._is("("):
                value = self._call(name, start)
                has_ordinality = self._take("with", "ordinality")
        columns: tuple[str, ...] = ()
        has_alias = self._take("as")
        if has_alias or self.token.kind == "quoted" or (self.token.kind == "word" and self.token.text not in _RESERVED):
            name = self._name()
            if self._is("("):
                columns = self._names()
        on: Expression | None = None
        using: tuple[str, ...] = ()
        if join in ("inner", "left"):
            if self._take("using"):
                using = self._names()
            else:
                self._expect("on")
                on = self._expression()
        return Source(value, name, columns, join, on, using, has_ordinality, start=start, end=self._previous_end)

    # --- Expressions

    def _expression(self, power: int = 0, *, stars: bool = False) -> Expression:
        left = self._prefix(stars)
        while (right := self._infix(left, power)) is not None:
            left = right
        return left

    def _operation(self, operator: str, start: int, *operands: Expression) -> SqlOperation:
        return SqlOperation(operator, operands, start=start, end=self._previous_end)

    def _prefix(self, stars: bool) -> Expression:
        token, start = self.token, self.token.start
        if token.kind == "value":
            if token.text[0].isdigit() and not _NUMBER.fullmatch(token.text):
                self.refuse()  # 1e-3 is two tokens here, and one for Postgres
            self._next()
            return Constant(token.text, start=start, end=self._previous_end)
        if token.kind == "operator" and token.text in ("+", "-"):
            self._next()
            return self._operation(token.text, start, self._expression(_SIGN))
        if self._take("("):
            if self._is("select", "with"):
                query = self.query()
                self._expect(")")
                return Subquery("scalar", query, start=start, end=self._previous_end)
            inner = self._expression()
            if self._is(","):
                self.refuse("a row of values")
            self._expect(")")
            return self._operation("()", start, inner)
        if token.kind == "quoted":
            return self._column(stars)
        if token.kind != "word":
            self.refuse()
        if self._take("not"):
            return self._operation("not", start, self._expression(_NOT))
        if self._take("exists"):
            self._expect("(")
            query = self.query()
            self._expect(")")
            return Subquery("exists", query, start=start, end=self._previous_end)
        if self._take("case"):
            parts = [] if self._is("when") else [self._expression()]
            while self._take("when"):
                parts.append(self._expression())
                self._expect("then")
                parts.append(self._expression())
            if self._take("else"):
                parts.append(self._expression())
            self._expect("end")
            return self._operation("case", start, *parts)
        if self._take("cast"):
            self._expect("(")
            value = self._expression()
            self._expect("as")
            name = self._type()
            self._expect(")")
            return self._operation(f"::{name}", start, value)
        if self._take("array", "["):
            elements: list[Expression] = []
            while not self._is("]") and (not elements or self._take(",")):
                elements.append(self._expression())
            self._expect("]")
            return self._operation("array", start, *elements)
        if token.text in ("true", "false", "null"):
            self._next()
            return Constant(token.text, start=start, end=self._previous_end)
        if token.text in _KEYWORD_CALLS:
            self._next()
            return FunctionCall(token.text, (), start=start, end=self._previous_end)
        following = self._tokens[self._at + 1]
        if following.kind == "value" and following.text[0] in "'$" and token.text in _TYPES | {"interval"}:
            self._next()
            self._next()
            literal = Constant(following.text, start=following.start, end=following.end)
            return self._operation(f"::{token.text}", start, literal)
        return self._column(stars)

    def _column(self, stars: bool) -> Expression:
        start, is_quoted = self.token.start, self.token.kind == "quoted"
        name = self._name()
        if self._is("(") and not is_quoted:
            return self._call(name, start)
        if not self._take("."):
            return Column(None, name, start=start, end=self._previous_end)
        if stars and self._take("*"):
            return Column(name, "*", start=start, end=self._previous_end)
        token = self._next()
        if token.kind not in ("word", "quoted") or self._is(".", "("):
            self.refuse()
        return Column(name, token.text, start=start, end=self._previous_end)

    def _call(self, name: str, start: int) -> FunctionCall:
        self._expect("(")
        arguments: list[Expression] = []
        if name == "extract":
            arguments.append(Constant(self._name(), start=start, end=self._previous_end))
            self._expect("from")
            arguments.append(self._expression())
        elif self._take("*"):
            pass
        elif not self._is(")"):
            if not self._take("distinct"):
                self._take("all")
            while not arguments or self._take(","):
                if self._is("=>", after=1):
                    self._next()  # a named argument: make_interval(days => 30)
                    self._next()
                arguments.append(self._expression())
        self._expect(")")
        condition = None
        if self._take("filter"):
            self._expect("(", "where")
            condition = self._expression()
            self._expect(")")
        if self._is("over"):
            self.refuse("a window function")
        return FunctionCall(name, tuple(arguments), condition, start=start, end=self._previous_end)

    def _type(self) -> str:
        name = self._name()
        if name not in _TYPES:
            self._at -= 1
            self.refuse(f"the type {name}")
        if name == "double":
            self._expect("precision")
        if self._take("("):
            if name in ("timestamp", "timestamptz"):
                self.refuse("a time with a precision")  # a cast that rounds
            while self._next().kind == "value" and self._take(","):
                pass
            self._expect(")")
        if name == "timestamp" and not self._take("with", "time", "zone"):
            self._take("without", "time", "zone")
        while self._take("["):
            self._expect("]")
            name += "[]"
        return name

    def _infix(self, left: Expression, power: int) -> Expression | None:
        token, start = self.token, left.start
        if token.kind == "operator":
            own = (
                _COMPARE
                if token.text in _COMPARISON
                else _ADD
                if token.text in ("+", "-")
                else _MULTIPLY
                if token.text in ("*", "/", "%")
                else _POWER
                if token.text == "^"
                else _OTHER
            )
            if own <= power:
                return None
            if token.text == "&":
                self.refuse()  # U&"d\0061te" is a name
            self._next()
            if self._is("any", "some", "all"):
                quantifier = self._next().text
                self._expect("(")
                if self._is("select", "with"):
                    self.refuse(f"{quantifier.upper()} (SELECT …)")
                values = self._expression()
                self._refuse_subquery(values)
                self._expect(")")
                return self._operation(f"{token.text} {quantifier}", start, left, values)
            return self._operation(token.text, start, left, self._expression(own))
        if token.kind == "mark":
            if token.text == "::" and power < _CAST:
                self._next()
                return self._operation(f"::{self._type()}", start, left)
            if token.text == "[" and power < _INDEX:
                self._next()
                index = self._expression()
                self._expect("]")
                return self._operation("[]", start, left, index)
            return None
        if token.kind != "word":
            return None
        if token.text in ("and", "or"):
            own = _AND if token.text == "and" else _OR
            if own <= power:
                return None
            self._next()
            return self._operation(token.text, start, left, self._expression(own))
        if token.text in ("is", "isnull", "notnull") and power < _IS:
            return self._parse_is(left)
        if token.text == "at" and power < _ZONE and self._take("at", "time", "zone"):
            return self._operation("at time zone", start, left, self._expression(_ZONE))
        following = self._tokens[self._at + 1].text if token.text == "not" else token.text
        if following in ("in", "between", "like", "ilike") and power < _BETWEEN:
            return self._parse_in_between_like(left)
        return None

    def _parse_is(self, left: Expression) -> Expression:
        if self._next().text != "is":
            return self._operation("is null", left.start, left)
        self._take("not")
        if self._take("distinct", "from"):
            return self._operation("is distinct from", left.start, left, self._expression(_IS))
        if self._is("null", "true", "false", "unknown"):
            self._next()
            return self._operation("is null", left.start, left)
        return self.refuse()

    def _parse_in_between_like(self, left: Expression) -> Expression:
        is_negated = self._take("not")
        word = self._next().text
        if word == "between":
            if self._take("symmetric"):
                self.refuse("BETWEEN SYMMETRIC")
            low = self._expression(_BETWEEN)
            self._expect("and")
            return self._operation("between", left.start, left, low, self._expression(_BETWEEN))
        if word != "in":
            pattern = self._expression(_BETWEEN)
            if self._is("escape"):
                self.refuse()
            return self._operation("like", left.start, left, pattern)
        self._expect("(")
        if self._is("select", "with"):
            query = self.query()
            self._expect(")")
            return Subquery("not in" if is_negated else "in", query, left, start=left.start, end=self._previous_end)
        values = [self._expression()]
        while self._take(","):
            values.append(self._expression())
        if len(values) == 1:
            self._refuse_subquery(values[0])
        self._expect(")")
        return self._operation("in", left.start, left, *values)

    def _refuse_subquery(self, value: Expression) -> None:
        """Refuse `IN ((SELECT …))`: Postgres compares with all its rows, although it looks like one value."""
        while isinstance(value, SqlOperation) and value.operator == "()":
            (value,) = value.operands
        if isinstance(value, Subquery) and value.kind == "scalar":
            self.refuse("a subquery in two pairs of parentheses")
