"""Errors of the embedded Postgres. The message of each is one sentence for the user: what is wrong and what to do."""


class EmbeddedError(Exception):
    """The embedded Postgres cannot be used."""


class BinariesMissingError(EmbeddedError):
    """No usable Postgres programs were found on this machine."""


class HomeUnusableError(EmbeddedError):
    """The home folder, or something that belongs to it, cannot be used."""


class WrongVersionError(EmbeddedError):
    """The data folder was made by another major version of Postgres."""


class StartFailedError(EmbeddedError):
    """initdb or the server failed."""
