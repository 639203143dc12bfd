"""What can go wrong with the embedded Postgres, each said in one sentence for the user.

EmbeddedError
├── BinariesMissingError    no usable Postgres programs on this machine
├── HomeUnusableError       the home folder, or what belongs to it, cannot be used
├── WrongVersionError       the data was made by another major version
└── StartFailedError        initdb or the server itself gave up
"""


class EmbeddedError(Exception):
    """The embedded Postgres cannot be used; the text says why and what to do."""


class BinariesMissingError(EmbeddedError):
    """No usable Postgres programs were found."""


class HomeUnusableError(EmbeddedError):
    """The home folder, or something that belongs to it, cannot be used."""


class WrongVersionError(EmbeddedError):
    """The data folder belongs to another major version of Postgres."""


class StartFailedError(EmbeddedError):
    """The server, or initdb, gave up."""
