"""Templates: a subset of Jinja2 that cannot run code and cannot grow without bound.

The syntax tree is checked against a short list of node types (no calls, macros, imports, assignments or powers) and has
at most 1,000 nodes. The compiled template runs on `expression`: names and attributes reach only data, only texts and
numbers are compared, and every pass of a loop and every character that an operation produces is charged to one
budget of work. The result has at most 256 KB.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.environment import Template as JinjaTemplate
from jinja2.runtime import Context as Scope
from jinja2.visitor import NodeTransformer

from workbench.language.codec import Json, encode, storage_problem, text_problem
from workbench.language.expression import (
    BUDGET,
    CONTEXT,
    FILTER_TYPES,
    FILTERS,
    HTML,
    MOMENT,
    TESTS,
    TEXT,
    WHERE,
    WHERE_FILTERS,
    OverBudgetError,
    template_error,
    to_json_value,
)
from workbench.language.expression import MissingValueError as MissingValueError
from workbench.language.expression import RenderBudget as RenderBudget
from workbench.language.expression import TemplateError as TemplateError

MAX_SOURCE = 65_536  # characters
MAX_TOKENS = 5_000  # the time to parse grows with the tokens
MAX_NODES = 1_000
MAX_DEPTH = 50
MAX_WHERE = 10_000  # characters

_VALUE = "_value"  # a name that no template can use
_TOO_DEEP = "is nested too deeply"

_ALLOWED = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Const,
    nodes.Filter,
    nodes.Keyword,
    nodes.Test,
    nodes.If,
    nodes.For,
    nodes.Compare,
    nodes.Operand,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Neg,
    nodes.Pos,
    nodes.Add,
    nodes.Sub,
    nodes.Mul,
    nodes.Div,
    nodes.Concat,
    nodes.CondExpr,
    nodes.List,
    nodes.Tuple,
)


def compile_template(source: str, *, html: bool = False) -> "Template":
    """Return the compiled template; raise TemplateError with what is not allowed, and the line."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"is longer than {MAX_SOURCE} characters")
    return _compile(source, html)


@lru_cache(maxsize=2048)
def required_paths(source: str) -> frozenset[str]:
    """Return the paths that a template always reads and has no default for; raise TemplateError."""
    with compile_errors():
        return frozenset(_context_paths(_parse(source), _always_evaluated))


def render(source: str, context: Mapping[str, Any], *, html: bool = False) -> str:
    """Return the text of a template with the values of `context`, escaped for `html`; raise TemplateError."""
    return compile_template(source, html=html).render(context)


def evaluate(source: str, context: Mapping[str, Any], budget: RenderBudget) -> Json:
    """Return the value of a template: that of its expression if it is only one `{{ … }}`, otherwise a text.

    So a number stays a number. All templates of one step share a budget. Raises TemplateError.
    """
    template = compile_template(source)
    expression = _compile_expression(source) if source[:2] == "{{" else None
    if expression is None:
        return template.render(context, budget)
    scope = _scope(expression, context, budget)
    try:
        for _ in expression.root_render_func(scope):
            continue
        value = to_json_value(scope.vars[_VALUE])
    except TemplateError:
        raise
    except Exception as error:  # noqa: BLE001  as in `Template.render`
        raise template_error(error) from None
    if reason := storage_problem(value):
        raise TemplateError(reason)
    budget.pay_output(len(encode(value)))
    return value


def evaluate_texts(value: Json, context: Mapping[str, Any], budget: RenderBudget) -> Json:
    """Return a JSON value with all its texts rendered, within one budget; raise TemplateError."""
    match value:
        case str():
            return evaluate(value, context, budget)  # `{{ amount }}` stays a number
        case list():
            return [evaluate_texts(item, context, budget) for item in value]
        case dict():
            return {name: evaluate_texts(item, context, budget) for name, item in value.items()}
        case _:
            return value


Context: TypeAlias = Mapping[str, Any]


class Operand(NamedTuple):
    """One side of a comparison, or a part that has to be true. `type`: as payloads name it; empty if it is unknown."""

    path: str = ""
    type: str = ""


_BOOLEAN = Operand(type="boolean")


class WhereExpression:
    """A compiled `where`. `paths`: those that it reads; `required`: those that must have a value for it to hold.

    `comparisons`: the two sides of each comparison; a part that has to be true is compared with a boolean. Raises
    TemplateError with what is not allowed.
    """

    def __init__(self, source: str) -> None:
        if len(source) > MAX_WHERE:
            raise TemplateError(f"is longer than {MAX_WHERE:,} characters")
        with compile_errors():
            exact = ""  # with decimals as texts: Jinja2 would read 0.1234567890123456789 as a float of 17 digits
            for line, kind, text in TEXT.lexer.tokeniter(f"{{{{ {source} }}}}", None):
                if kind == "float" and storage_problem(Decimal(text)):
                    raise TemplateError(f"line {line}: a number has too many digits")
                exact += f"('{text.replace('_', '')}' | decimal)" if kind == "float" else text
            body = _parse(exact, WHERE_FILTERS).body
            if not isinstance(body[0], nodes.Output) or len(body[0].nodes) != 1 or len(body) != 1:
                raise TemplateError("is not one expression")
            (expression,) = body[0].nodes
            # Computed before the guards change the tree.
            self.paths: Final = frozenset(_context_paths(expression))
            self.required: Final = frozenset(_context_paths(expression, _required_parts))
            self.comparisons: Final = ((_operand(expression), _BOOLEAN), *_compared(expression))
            value = _guarded(_TotalGuard().visit(expression), "_true")
            assignment = nodes.Assign(nodes.Name(_VALUE, "store"), value, lineno=1)
            code = WHERE.compile(nodes.Template([assignment], lineno=1))
            self._program = JinjaTemplate.from_code(WHERE, code, {})

    def holds(self, context: Context, at: datetime) -> bool:
        """Return whether the expression is true at a moment; never raises, whatever the values."""
        scope = self._program.new_context({BUDGET: RenderBudget(), CONTEXT: context, MOMENT: at}, shared=True)
        try:
            for _ in self._program.root_render_func(scope):
                continue
        except OverBudgetError:
            return False
        return scope.vars[_VALUE] is True


compile_where = lru_cache(maxsize=2048)(WhereExpression)


class PlainPart(NamedTuple):
    """A part of a template: a text, or the name of the value that is written there."""

    text: str = ""
    name: str | None = None


class Template:
    """A compiled template. `paths` are the dotted paths that it reads in the context.

    `parts`: those of a template that has nothing but texts and names. Its values are joined without Jinja2's program.
    """

    def __init__(
        self,
        source: str,
        template: JinjaTemplate | None = None,
        paths: frozenset[str] = frozenset(),
        parts: tuple[PlainPart, ...] = (),
    ) -> None:
        self.paths: Final = paths
        self._source = source
        self._template = template
        self._parts = parts

    def render(self, context: Mapping[str, Any], budget: RenderBudget | None = None) -> str:
        """Return the text, at most 256 KB of UTF-8; raise TemplateError for a missing value or one of a wrong type."""
        if self._template is None:
            return self._source
        budget = budget or RenderBudget()
        try:
            # Half of the time: 1.6 instead of 3.4 µs for two names. For a missing value, the program has the error.
            if self._parts and self.paths <= context.keys():
                finalize = self._template.environment.finalize
                assert finalize is not None, "every environment has one"
                text = "".join([text if name is None else finalize(context[name]) for text, name in self._parts])
                budget.pay_output(len(text) if text.isascii() else len(text.encode(errors="replace")))
            else:
                chunks = self._template.root_render_func(_scope(self._template, context, budget))
                text = "".join(budget.pay_chunks(chunks))
        except TemplateError:
            raise
        except Exception as error:  # noqa: BLE001  a template is a customer's program: its errors are failures of a step
            raise template_error(error) from None
        if reason := text_problem(text):
            raise TemplateError(reason)
        return text


def _scope(template: JinjaTemplate, context: Mapping[str, Any], budget: RenderBudget) -> Scope:
    return template.new_context({**context, BUDGET: budget}, shared=True)


@lru_cache(maxsize=2048)
def _compile(source: str, html: bool) -> Template:
    if reason := text_problem(source):
        raise TemplateError(reason)
    if "{" not in source:
        return Template(re.sub("\r\n?", "\n", source))  # as Jinja2 normalizes line breaks
    with compile_errors():
        tree = _parse(source)
        paths = frozenset(_context_paths(tree))  # computed before the guards change the tree
        parts = _plain_parts(tree)
        return Template(source, _build(tree, HTML if html else TEXT), paths, parts)


def _plain_parts(tree: nodes.Template) -> tuple[PlainPart, ...]:
    """Return the parts of a template that has nothing but texts and names; of any other, nothing."""
    parts: list[PlainPart] = []
    for output in tree.body:
        for part in output.nodes if isinstance(output, nodes.Output) else [output]:
            match part:
                case nodes.TemplateData(data=text):
                    parts.append(PlainPart(text))
                case nodes.Name(name=name):
                    parts.append(PlainPart(name=name))
                case _:
                    return ()
    return tuple(parts)


@lru_cache(maxsize=2048)
def _compile_expression(source: str) -> JinjaTemplate | None:
    """Return a program that assigns the value of a template's only expression; None if the template has other parts."""
    with compile_errors():
        match _parse(source).body:
            case [nodes.Output(nodes=[expression])] if not isinstance(expression, nodes.TemplateData):
                assignment = nodes.Assign(nodes.Name(_VALUE, "store"), expression, lineno=1)
                return _build(nodes.Template([assignment], lineno=1), TEXT)
            case _:
                return None


def lex(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the tokens of a template as (line, kind, text); the texts together are the template."""
    yield from TEXT.lexer.tokeniter(source, None)


def _parse(source: str, filters: Collection[str] = FILTERS) -> nodes.Template:
    """Return the syntax tree of a template that is within all limits; raise TemplateError."""
    if sum(1 for _ in islice(TEXT.lexer.tokeniter(source, None), MAX_TOKENS + 1)) > MAX_TOKENS:
        raise TemplateError(f"has more than {MAX_TOKENS} words and signs")
    tree = TEXT.parse(source)
    for count, (node, depth) in enumerate(_descend(tree), 1):
        if count > MAX_NODES:
            raise TemplateError(f"has more than {MAX_NODES} parts")
        if depth > MAX_DEPTH:
            raise TemplateError(_TOO_DEEP)
        if (reason := _node_problem(node, filters)) is not None:
            raise TemplateError(f"line {node.lineno or 1}: {reason}")
    return tree


def _build(tree: nodes.Template, environment: Environment) -> JinjaTemplate:
    return JinjaTemplate.from_code(environment, environment.compile(_Guard().visit(tree)), {})


@contextmanager
def compile_errors() -> Iterator[None]:
    """Raise what Jinja2 raises for a template as a TemplateError."""
    try:
        yield
    except TemplateError:
        raise
    except TemplateSyntaxError as error:
        message = (error.message or "").replace("end of print statement", "end of the expression")
        raise TemplateError(f"line {error.lineno}: {message}") from None
    except (RecursionError, MemoryError, SyntaxError):  # Python's own limits on nesting
        raise TemplateError(_TOO_DEEP) from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise TemplateError("has a number with too many digits") from None
    except Exception as error:  # noqa: BLE001  a customer's program must not make a request fail with a bug of Jinja2
        raise TemplateError(f"cannot be compiled ({type(error).__name__})") from None


def _descend(tree: nodes.Node) -> Iterator[tuple[nodes.Node, int]]:
    """Yield every node with its depth. Not recursive: the depth is not checked yet."""
    stack = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack.extend((child, depth + 1) for child in node.iter_child_nodes())


def _node_problem(node: nodes.Node, filters: Collection[str]) -> str | None:
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name in filters:
        return f"write `value | {node.node.name}`, not `{node.node.name}(value)`"
    if not isinstance(node, _ALLOWED):
        return f"{type(node).__name__.lower()} is not allowed here"
    match node:
        case nodes.Filter(name=name) if name not in filters:
            return f"unknown filter {name!r}; the filters are {', '.join(filters)}"
        case nodes.Filter(dyn_args=args, dyn_kwargs=kwargs) if args or kwargs:
            return "* and ** are not allowed here"
        case nodes.Test(name=name) if name not in TESTS:
            return f"unknown test {name!r}; the tests are {', '.join(TESTS)}"
        case nodes.Name(name=name) if filters is FILTERS and (name.startswith("_") or name == "self"):
            return f"the name {name!r} cannot be used; write payload[{name!r}]"  # reserved by Jinja2 or by this module
        case nodes.For(recursive=True):
            return "recursive loops are not allowed here"
        case nodes.Const(value=int() | float() as value):
            number = value if isinstance(value, int) else Decimal(repr(value))
            return "a number has too many digits" if storage_problem(number) else None
        case _:
            return None


class _Guard(NodeTransformer):
    """Wraps the operations of a checked tree in filters of `expression` that charge the budget and check values."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        # The work of one pass is the number of nodes of the loop, including its condition and `else`.
        size = sum(1 for _ in _descend(node)) - sum(1 for _ in _descend(node.iter))
        self.generic_visit(node)
        node.iter = _guarded(node.iter, "_each", nodes.Const(size))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _guarded(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _guarded(node.expr, "_scalar")
        for operand in node.ops:
            operand.expr = _guarded(operand.expr, "_members" if operand.op in ("in", "notin") else "_scalar")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Const):
            node.arg = _guarded(node.arg, "_key")
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        if not isinstance(node.value, float):
            return node
        # Jinja2 parses 0.1 as a float; written as text it becomes an exact decimal.
        return _guarded(nodes.Const(repr(node.value), lineno=node.lineno), "_decimal")


class _TotalGuard(_Guard):
    """Makes a checked expression total: paths are looked up as those of filters, and only true is true."""

    def visit(self, node: nodes.Node, *arguments: Any, **named: Any) -> Any:
        if (path := _path(node)) is not None:
            return _guarded(nodes.Const(path, lineno=node.lineno), "_at")
        return super().visit(node, *arguments, **named)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        NodeTransformer.generic_visit(self, node)
        others = [part for operand in node.ops for part in (nodes.Const(operand.op), operand.expr)]
        return _guarded(_guarded(node.expr, "_compare", *others), "_true")  # a comparison that fails is false

    def generic_visit(self, node: nodes.Node, *arguments: Any, **named: Any) -> nodes.Node:
        super().generic_visit(node, *arguments, **named)
        for name in _BOOLEAN_FIELDS.get(type(node), ()):
            setattr(node, name, _guarded(getattr(node, name), "_true"))
        return node


# Fields with boolean operands, by node
_BOOLEAN_FIELDS: dict[type[nodes.Node], tuple[str, ...]] = {
    nodes.And: ("left", "right"),
    nodes.Or: ("left", "right"),
    nodes.Not: ("node",),
    nodes.CondExpr: ("test",),
}


def _guarded(expression: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(expression, name, list(arguments), [], None, None, lineno=expression.lineno)


def _always_evaluated(node: nodes.Node) -> Iterable[nodes.Node]:
    match node:
        case nodes.Filter(name="default" | "d") | nodes.Test():
            return ()
        case nodes.If(test=part) | nodes.CondExpr(test=part) | nodes.For(iter=part):
            return (part,)
        case nodes.And(left=part) | nodes.Or(left=part):
            return (part,)
        case _:
            return node.iter_child_nodes()


def _required_parts(node: nodes.Node) -> Iterable[nodes.Node]:
    """Return the parts that need their values for the node to be true."""
    match node:
        case nodes.And():
            return node.iter_child_nodes()
        case nodes.Test(name="defined", node=part):
            parts: Iterable[nodes.Node] = (part,)
        case nodes.Filter(name="default" | "d") | nodes.Test() | nodes.Or() | nodes.Not() | nodes.CondExpr():
            return ()
        case nodes.List() | nodes.Tuple():  # `1 in [1, x]` holds without x
            return ()
        case _:
            parts = node.iter_child_nodes()
    return [part for part in parts if not isinstance(part, _BOOLEAN_NODES)]  # `(x == 1) == false` holds without x


_BOOLEAN_NODES = nodes.Compare, nodes.And, nodes.Or, nodes.Not, nodes.Test


def _compared(tree: nodes.Node) -> Iterator[tuple[Operand, Operand]]:
    for node, _ in _descend(tree):
        yield from ((_operand(getattr(node, name)), _BOOLEAN) for name in _BOOLEAN_FIELDS.get(type(node), ()))
        left = node.expr if isinstance(node, nodes.Compare) else node
        for side in node.ops if isinstance(node, nodes.Compare) else ():
            if side.op == "in" and isinstance(side.expr, nodes.List):
                yield from ((_operand(left), _operand(item)) for item in side.expr.items)
            elif side.op not in ("in", "notin"):
                yield _operand(left), _operand(side.expr)
            left = side.expr


def _operand(node: nodes.Node) -> Operand:
    match node:
        case nodes.Const(value=bool()) | nodes.Compare() | nodes.And() | nodes.Or() | nodes.Not() | nodes.Test():
            return _BOOLEAN
        case nodes.Const(value=None):
            return Operand(type="null")
        case nodes.Const(value=str()) | nodes.Concat():
            return Operand(type="string")
        case nodes.Const() | nodes.Sub() | nodes.Mul() | nodes.Div() | nodes.Neg() | nodes.Pos():
            return Operand(type="number")
        case nodes.Filter(name=name):
            return Operand(type=FILTER_TYPES[name])
        case _:
            return Operand(path=_path(node) or "")


def _context_paths(
    tree: nodes.Node, parts: Callable[[nodes.Node], Iterable[nodes.Node]] = nodes.Node.iter_child_nodes
) -> Iterator[str]:
    stack = [(tree, frozenset[str]())]
    while stack:
        node, bound = stack.pop()
        path = _path(node)
        if path is not None:
            if path.partition(".")[0] not in bound:
                yield path
            continue
        inside, outside = bound, list[nodes.Node]()
        if isinstance(node, nodes.For):
            # The names of a loop hide those of the context in its body only: `for contact in [contact]` reads both.
            inside |= {"loop", *(name.name for name, _ in _descend(node.target) if isinstance(name, nodes.Name))}
            outside = [node.iter, *node.else_]
        stack.extend((part, bound if part in outside else inside) for part in parts(node))


def _path(node: nodes.Node) -> str | None:
    match node:
        case nodes.Name(name=name):
            return str(name)
        case nodes.Getattr(node=inner, attr=key) | nodes.Getitem(node=inner, arg=nodes.Const(value=str() as key)) if (
            "." not in key
        ):
            parent = _path(inner)
            return None if parent is None else f"{parent}.{key}"
        case _:
            return None
