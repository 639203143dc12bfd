"""Errors a user can cause, as one sentence; anything else is a bug and keeps its traceback.

Errors are recognised by the name of their class, so that a command does not import what it does not use.
"""

_SPOKEN = {
    "api.access.AccessError",
    "api.commands.CommandError",
    "api.embedded.errors.EmbeddedError",
    "api.ingest.history.UnknownOrganizationError",
    "api.ingest.rejects.UnwritableError",
    "api.ingest.files.row.UnreadableFileError",
    "api.keychain.ChainError",
    "api.settings.SettingsError",
    "api.store.archive.LeftOutError",
    "api.store.checkup.UnfitServerError",
    "api.store.migrate.MigrationError",
}
_NOT_PREPARED = "the database has not been prepared for this version; run: workbench migrate"
_TRANSLATED = {  # the first that fits counts
    "psycopg.errors.UndefinedTable": _NOT_PREPARED,
    "psycopg.errors.InvalidSchemaName": _NOT_PREPARED,
    "api.store.database.UnavailableError": "the database cannot be reached: {}",
    "api.store.database.ConflictError": "somebody else held for long what this needs: {}",
    "psycopg.OperationalError": "the database cannot be reached: {}",
    "psycopg.Error": "the database refused: {}",
    "sqlalchemy.exc.ArgumentError": "DATABASE_URL is no database address; one looks like postgresql://user:word@host/name",
}
_EXTRAS = {
    "server": {
        "cryptography",
        "eth_keys",
        "prometheus_client",
        "psycopg",
        "psycopg_pool",
        "pyarrow",
        "rich",
        "sanic",
        "sqlalchemy",
        "websockets",
    },
    "otel": {"opentelemetry"},
    "lab": {"jupyterlab", "jupyter_server"},
}


def explain(error: BaseException) -> str | None:
    """Return the sentence for an error a user can cause, or None."""
    if isinstance(error, ModuleNotFoundError):
        return _missing(error.name or "")
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    if not _SPOKEN.isdisjoint(names):
        return str(error)
    return next((sentence.format(_first_line(error)) for name, sentence in _TRANSLATED.items() if name in names), None)


def _missing(module: str) -> str | None:
    package = module.split(".")[0]
    for extra, packages in _EXTRAS.items():
        if package in packages:
            return f"the package {package} is missing; install it with: pip install 'event-workbench[{extra}]'"
    return None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
