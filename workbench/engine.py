"""`wb.engine()`: a SQLAlchemy engine on a direct login, for tools that want one. Both libraries are an extra of their own."""

from typing import TYPE_CHECKING

from workbench import surroundings
from workbench.errors import DraftError

if TYPE_CHECKING:
    from sqlalchemy import Engine

_VARIABLE = "WORKBENCH_DSN"


def engine() -> "Engine":
    """Return an engine on the login that WORKBENCH_DSN names; it connects while it is used. Raise DraftError."""
    dsn = surroundings.variable(_VARIABLE)
    if dsn is None:
        raise DraftError(
            f"there is no {_VARIABLE}: an operator makes a direct login with `workbench reader create --org NAME`, "
            f"which prints its address; set {_VARIABLE} to that before starting JupyterLab"
        )
    try:
        from sqlalchemy import NullPool, create_engine, make_url
        from sqlalchemy.exc import ArgumentError
    except ModuleNotFoundError:
        raise DraftError(_MISSING) from None
    try:
        url = make_url(dsn).set(drivername="postgresql+psycopg")
        # The organization's login has few sessions for everybody, so none is held between two uses.
        return create_engine(url, poolclass=NullPool, use_native_hstore=False)
    except ModuleNotFoundError:
        raise DraftError(_MISSING) from None
    except (ArgumentError, ValueError):
        raise DraftError(
            f"{_VARIABLE} is no address; it looks like postgresql://login:password@host:5432/workbench"
        ) from None


_MISSING = "wb.engine() needs SQLAlchemy and psycopg: pip install 'event-workbench[engine]'"
