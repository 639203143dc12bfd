"""The errors of this package, written for the person at the notebook.

IPython shows a `WorkbenchError` as one paragraph without a traceback, so each message says what is wrong and what to
do.
`usage_example` and `MethodHints` turn wrong arguments and misspelled methods into such errors as well.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, get_args, is_typeddict

from workbench.language.codec import printable
from workbench.language.problem import Problem, nearest_name


class WorkbenchError(Exception):
    """The base of every error of this package.

    `status` is the HTTP status of the response that caused the error, and `request_id` finds the request in the
    server's log. An error without a response has None for both. `problems`: the fields or nodes that are wrong, if the
    server names them.
    """

    def __init__(
        self,
        message: str,
        problems: tuple[Problem, ...] = (),
        *,
        status: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(printable(message))  # it may quote a text of a customer
        self.problems = problems
        self.status = status
        self.request_id = request_id

    def rephrased(self, message: str, kind: "type[WorkbenchError] | None" = None) -> "WorkbenchError":
        """Return an error of the same or another kind about the same response, with another message."""
        return (kind or type(self))(message, self.problems, status=self.status, request_id=self.request_id)

    def _render_traceback_(self) -> list[str]:
        # IPython prints these lines in place of a traceback.
        return [f"{type(self).__name__}: {self}"]


class InvalidArgumentError(WorkbenchError, ValueError):
    """A call has wrong arguments; nothing was sent."""


class InvalidAutomationError(InvalidArgumentError):
    """An automation is written in a way that cannot work; nothing was sent."""


class UnknownVerbError(InvalidArgumentError, AttributeError):
    """The method does not exist. The message names the nearest one."""


class MissingDependencyError(WorkbenchError, ImportError):
    """An optional library is not installed."""


class AuthenticationError(WorkbenchError):
    """The key is missing, unknown or revoked (401)."""


class PermissionDeniedError(WorkbenchError):
    """The key lacks the scope for this (403)."""


class NotFoundError(WorkbenchError):
    """The object does not exist (404)."""


class VersionError(WorkbenchError):
    """The server does not support this version of the package; nothing was done."""


class UnavailableError(WorkbenchError):
    """The server is busy or failing.

    After a 429 no event was stored. After a 5xx, check whether the change was made before you repeat it.

    `retry_after_s`: for how long the server asks clients to wait.
    """

    retry_after_s = 0.0


class ConnectionFailedError(WorkbenchError, ConnectionError):
    """No connection to the server was made, so nothing was sent."""


class UnknownOutcomeError(WorkbenchError):
    """No complete response, or a 503 for an event: the request may or may not have taken effect.

    Send an event again with the same idempotency key; it is stored at most once.
    """


class WaitTimeoutError(WorkbenchError, TimeoutError):
    """The entry did not end, or did not begin to wait, within the timeout."""


class StoppedError(WorkbenchError):
    """A backtest was interrupted, or could not continue. It leaves no partial result."""


class InvalidRequestError(WorkbenchError):
    """The server rejected the request (400, 413, 422). `problems` name every field that is wrong."""


class SqlError(InvalidRequestError):
    """Postgres rejected the query. `position` counts characters of the query from 1, None when it is unknown."""

    position: int | None = None
    sqlstate: str | None = None


class PublishError(InvalidRequestError):
    """The automation cannot be published as it is; every problem names its node."""


class SpoolError(WorkbenchError):
    """The file that keeps the events of a client cannot be used, is full, or belongs to another organization."""


class ConflictError(InvalidRequestError):
    """The object was changed since it was loaded, or its state does not allow the request (409)."""


F = TypeVar("F", bound=Callable[..., Any])


def usage_example(usage: str) -> Callable[[F], F]:
    """Return a decorator that makes calls with wrong arguments raise InvalidArgumentError with `usage`.

    The keys of `**arguments: Unpack[SomeTypedDict]` become part of the signature, and the TypedDict's docstring part of
    the help.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        *positional, last = signature.parameters.values()
        keywords = next(iter(get_args(last.annotation)), None)
        if last.kind is not inspect.Parameter.VAR_KEYWORD or not is_typeddict(keywords):
            keywords = None
        if keywords is not None:
            # Otherwise completion and help would show `**arguments` without the names.
            named = [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=annotation)
                for name, annotation in keywords.__annotations__.items()
            ]
            signature = signature.replace(parameters=[*positional, *named])

        # Only the binding of arguments is inside `try`: a TypeError raised in the body is a bug and stays a TypeError.
        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise InvalidArgumentError(f"{function.__name__}: {error}. Write it like this: {usage}") from None
            return function(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        if keywords is not None:
            checked.__doc__ = "\n\n".join(map(inspect.cleandoc, (function.__doc__ or "", keywords.__doc__ or "")))
        return checked  # type: ignore[return-value]

    return decorate


class MethodHints:
    """Adds to the error for an unknown method the nearest name, or the names of all methods. A subclass can define
    `_hint` instead.

    Only for objects at the end of a path like `wb.events.send`: IPython's guarded completion does not evaluate an
    object that has a `__getattr__`.
    """

    _hint = ""

    if not TYPE_CHECKING:  # so that a type checker still reports unknown methods

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            names = [public for public in dir(type(self)) if not public.startswith("_")]
            near = nearest_name(name, names)
            hint = self._hint or (f"did you mean .{near}?" if near else f"the methods are {', '.join(names)}")
            raise UnknownVerbError(f"method not found: .{name}; {hint}")
