"""Texts with values in them: a subset of Jinja2 that cannot run code and cannot grow without bound.

Bounded by construction. The syntax tree is checked against a short list of nodes (no calls, macros, imports,
assignments or powers) and has at most 1,000 of them. What is left runs over `expression`: names and attributes reach
only into data, only texts and numbers are compared, and every pass of a loop and every character that an operation
makes is paid from one budget of work. Output stops at 256 KB.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.environment import Template as JinjaTemplate
from jinja2.runtime import Context as Scope
from jinja2.visitor import NodeTransformer

from workbench.language.codec import Json, encode, storage_problem, text_problem
from workbench.language.expression import (
    BUDGET,
    FILTERS,
    HTML,
    MAX_OUTPUT,
    TESTS,
    TEXT,
    RenderBudget,
    TemplateError,
    error_message,
    to_json_value,
)

__all__ = [
    "FILTERS",
    "MAX_OUTPUT",
    "TESTS",
    "RenderBudget",
    "Template",
    "TemplateError",
    "compile_template",
    "evaluate",
    "render",
]

MAX_SOURCE = 65_536
MAX_TOKENS = 5_000
MAX_NODES = 1_000
MAX_DEPTH = 50

_VALUE = "_value"  # a name that no text can use
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
    """Return the compiled template; raise TemplateError saying what is not allowed, and where."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"is longer than {MAX_SOURCE} characters")
    return _compile(source, html)


def render(source: str, context: Mapping[str, Any], *, html: bool = False) -> str:
    """Return the text of a template with the values of `context`, escaped for `html`; raise TemplateError."""
    return compile_template(source, html=html).render(context)


def evaluate(source: str, context: Mapping[str, Any], budget: RenderBudget) -> Json:
    """Return the value of a template: a text, but of one that is nothing except `{{ … }}` what stands in there.

    So a number stays a number. Texts of one step share a budget. Raises TemplateError.
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
    except Exception as error:  # noqa: BLE001  as above
        raise TemplateError(error_message(error)) from None
    if reason := storage_problem(value):
        raise TemplateError(reason)
    budget.printed(len(encode(value)))
    return value


class Template:
    """A compiled, checked text. `paths` are the dotted paths of the context that it looks at."""

    def __init__(self, source: str, template: JinjaTemplate | None = None, paths: frozenset[str] = frozenset()) -> None:
        self.paths: Final = paths
        self._source = source
        self._template = template

    def render(self, context: Mapping[str, Any], budget: RenderBudget | None = None) -> str:
        """Return the text, at most 256 KB of UTF-8; raise TemplateError for a missing value or one of the wrong type."""
        if self._template is None:
            return self._source
        budget = budget or RenderBudget()
        try:
            text = "".join(budget.paid(self._template.root_render_func(_scope(self._template, context, budget))))
        except TemplateError:
            raise
        except Exception as error:  # noqa: BLE001  a template is the customer's program: whatever it raises is its failure
            raise TemplateError(error_message(error)) from None
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
        return Template(re.sub("\r\n?", "\n", source))  # as Jinja does
    with _compiling():
        tree = _checked(source)
        paths = frozenset(_paths(tree))
        return Template(source, _program(tree, HTML if html else TEXT), paths)


@lru_cache(maxsize=2048)
def _compile_expression(source: str) -> JinjaTemplate | None:
    """Return the program that keeps the value of a text's only expression; None when there is more to it than that."""
    with _compiling():
        tree = _checked(source)
        match tree.body:
            case [nodes.Output(nodes=[only])] if not isinstance(only, nodes.TemplateData):
                kept = nodes.Assign(nodes.Name(_VALUE, "store"), only, lineno=1)
                return _program(nodes.Template([kept], lineno=1), TEXT)
            case _:
                return None


def _checked(source: str) -> nodes.Template:
    _check_size(source)
    tree = TEXT.parse(source)
    _check_all(tree)
    return tree


def _program(tree: nodes.Template, environment: Environment) -> JinjaTemplate:
    return JinjaTemplate.from_code(environment, environment.compile(_Guard().visit(tree)), {})


@contextmanager
def _compiling() -> Iterator[None]:
    try:
        yield
    except TemplateError:
        raise
    except TemplateSyntaxError as error:
        raise TemplateError(f"line {error.lineno}: {error.message}") from None
    except (RecursionError, MemoryError, SyntaxError):  # Python's own limits of nesting
        raise TemplateError(_TOO_DEEP) from None
    except ValueError:  # Python reads no integer of more than 4,300 digits
        raise TemplateError("has a number of too many digits") from None
    except Exception as error:  # noqa: BLE001  the customer's program again: whatever it wakes in the compiler
        raise TemplateError(f"cannot be compiled ({type(error).__name__})") from None


def _check_size(source: str) -> None:
    """Refuse what would take long to parse: that costs by the token."""
    if sum(1 for _ in islice(TEXT.lexer.tokeniter(source, None), MAX_TOKENS + 1)) > MAX_TOKENS:
        raise TemplateError(f"has more than {MAX_TOKENS} words and signs")


def _check_all(tree: nodes.Node) -> None:
    for count, (node, depth) in enumerate(_descend(tree), 1):
        if count > MAX_NODES:
            raise TemplateError(f"has more than {MAX_NODES} parts")
        if depth > MAX_DEPTH:
            raise TemplateError(_TOO_DEEP)
        _check(node)


def _descend(tree: nodes.Node) -> Iterator[tuple[nodes.Node, int]]:
    waiting = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        waiting.extend((child, depth + 1) for child in node.iter_child_nodes())


def _check(node: nodes.Node) -> None:
    if not isinstance(node, _ALLOWED):
        raise TemplateError(f"line {node.lineno or 1}: {type(node).__name__.lower()} is not allowed here")
    match node:
        case nodes.Filter(name=name) if name not in FILTERS:
            raise TemplateError(f"line {node.lineno}: there is no filter {name!r}; there are {', '.join(FILTERS)}")
        case nodes.Filter(dyn_args=args, dyn_kwargs=kwargs) if args or kwargs:
            raise TemplateError(f"line {node.lineno}: * and ** are not allowed here")
        case nodes.Test(name=name) if name not in TESTS:
            raise TemplateError(f"line {node.lineno}: there is no test {name!r}; there are {', '.join(TESTS)}")
        case nodes.Name(name=name) if name.startswith("_") or name == "self":
            raise TemplateError(f"line {node.lineno}: the name {name!r} cannot be used; write payload[{name!r}]")
        case nodes.For(recursive=True):
            raise TemplateError(f"line {node.lineno}: recursive loops are not allowed here")
        case nodes.Const(value=int() | float() as value) if storage_problem(
            value if isinstance(value, int) else _literal(value)
        ):
            raise TemplateError(f"line {node.lineno}: a number has too many digits")
        case _:
            return


def _literal(value: float) -> Decimal:
    return Decimal(repr(value))


class _Guard(NodeTransformer):
    """Puts the guards around what is checked already."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        inside = sum(1 for _ in _descend(node)) - sum(1 for _ in _descend(node.iter))
        self.generic_visit(node)
        node.iter = _guarded(node.iter, "_each", nodes.Const(inside))
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
        return _guarded(nodes.Const(repr(node.value), lineno=node.lineno), "_decimal")


def _guarded(expression: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(expression, name, list(arguments), [], None, None, lineno=expression.lineno)


def _paths(tree: nodes.Node) -> Iterator[str]:
    bound = {"loop"} | {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        path = _path(node)
        if path is None:
            waiting.extend(node.iter_child_nodes())
        elif path.partition(".")[0] not in bound:
            yield path


def _path(node: nodes.Node) -> str | None:
    match node:
        case nodes.Name(name=name):
            return str(name)
        case nodes.Getattr(node=inner, attr=key) | nodes.Getitem(node=inner, arg=nodes.Const(value=str() as key)):
            parent = _path(inner)
            return None if parent is None else f"{parent}.{key}"
        case _:
            return None
