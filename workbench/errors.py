"""What goes wrong, in words for the person at the notebook.

IPython shows these errors as one paragraph without a traceback: the message says what to do, and where. `spoken` makes a
call with the wrong arguments, and `Helpful` a verb that does not exist, one of them too.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, get_args, is_typeddict

from api.language.problem import Problem
from api.language.spelling import nearest


class WorkbenchError(Exception):
    """The base of every error of this package.

    ```
    WorkbenchError
    ├── DraftError           an automation, an event or a call is written in a way that cannot work
    │   └── NoSuchVerbError  there is no such verb here
    ├── UnreachableError     no connection to the server: wrong address, or it is not running
    ├── UnavailableError     the server says it cannot take this now (429, or 5xx to a question), after all retries
    ├── UnknownOutcomeError  no answer, or one that does not say: what was sent may or may not have been taken
    ├── VersionError         the server does not serve notebooks of this version
    ├── KeyRefusedError      the key is missing, wrong or revoked, or may not do this (401, 403)
    ├── NotThereError        what was asked for does not exist (404)
    ├── StillRunningError    waiting ended before the entry did
    ├── StoppedError         a backtest was interrupted, or could not go on; nothing is kept of it
    └── RefusedError         the server refused the request; `problems` say why (400, 413, 422)
        ├── SqlError         Postgres refused the query; `position` is where
        ├── PublishError     the automation cannot be published as it is; problems name nodes
        └── StaleError       somebody changed the automation since it was loaded (409)
    ```
    """

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints instead of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class DraftError(WorkbenchError, ValueError):
    """An automation, an event or a call is written in a way that cannot work; nothing was sent."""


class NoSuchVerbError(DraftError, AttributeError):
    """There is no such verb here."""


class UnreachableError(WorkbenchError):
    """No connection to the server came about, so nothing was sent."""


class UnavailableError(WorkbenchError):
    """The server cannot take this now. Of an event (429) nothing was stored; of a change (5xx) look before repeating it."""


class UnknownOutcomeError(WorkbenchError):
    """Nobody can say whether it was taken: a 503, or no answer. Send an event again with the same idempotency key."""


class VersionError(WorkbenchError):
    """The server does not serve notebooks of this version; nothing was done."""


class KeyRefusedError(WorkbenchError):
    """The key is missing, wrong or revoked, or it may not do this."""


class NotThereError(WorkbenchError):
    """What was asked for does not exist."""


class StillRunningError(WorkbenchError):
    """Waiting ended before the entry did."""


class StoppedError(WorkbenchError):
    """A backtest was interrupted, or could not go on."""


class RefusedError(WorkbenchError):
    """The server refused the request. `problems` name every field, `request_id` finds it in the server's log."""

    def __init__(self, message: str, problems: tuple[Problem, ...] = (), request_id: str | None = None) -> None:
        super().__init__(message)
        self.problems = problems
        self.request_id = request_id


class SqlError(RefusedError):
    """Postgres refused the query. `position` counts characters of the query from 1, None when it is unknown."""

    position: int | None = None
    sqlstate: str | None = None


class PublishError(RefusedError):
    """The automation cannot be published as it is; every problem names its node."""


class StaleError(RefusedError):
    """Somebody changed the automation since it was loaded."""


F = TypeVar("F", bound=Callable[..., Any])


def spoken(usage: str) -> Callable[[F], F]:
    """Return a decorator: a call with the wrong arguments raises DraftError that shows `usage`.

    The keywords of `**asked: Unpack[…]` become part of the signature, and what is said of them part of the help.
    """

    def decorate(function: F) -> F:
        signature = _unpacked(function)

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise DraftError(f"{function.__name__}: {error}. Write it like this: {usage}") from None
            return function(*args, **kwargs)

        called.__signature__ = signature  # type: ignore[attr-defined]
        if (keywords := _keywords(function)) is not None:
            called.__doc__ = "\n\n".join(map(inspect.cleandoc, (function.__doc__ or "", keywords.__doc__ or "")))
        return called  # type: ignore[return-value]

    return decorate


def _keywords(function: Callable[..., Any]) -> Any:
    """Return the TypedDict of an `Unpack[…]`, None where there is none."""
    *_, last = inspect.signature(function).parameters.values()
    keywords = next(iter(get_args(last.annotation)), None)
    return keywords if last.kind is inspect.Parameter.VAR_KEYWORD and is_typeddict(keywords) else None


def _unpacked(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature, with the keywords of an `Unpack[…]` written out."""
    signature, keywords = inspect.signature(function), _keywords(function)
    if keywords is None:
        return signature
    *before, _ = signature.parameters.values()
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=hint)
        for name, hint in keywords.__annotations__.items()
    ]
    return signature.replace(parameters=[*before, *named])


class Helpful:
    """What answers for a verb that it does not have with those there are; `_instead` says it better where it can.

    Only for the ends of a path like `wb.events.send`: completion looks through no object that has a `__getattr__`.
    """

    _instead = ""

    if not TYPE_CHECKING:  # a type checker still sees which verbs there are

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise NoSuchVerbError(f"there is no .{name} here: {self._instead or _there(type(self), name)}")


def _there(kind: type, name: str) -> str:
    known = [each for each in dir(kind) if not each.startswith("_")]
    near = nearest(name, known)
    return f"did you mean .{near}?" if near else f"there are {', '.join(known)}"
