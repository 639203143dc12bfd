"""Who may do what: organizations, their API keys, and the check of a request's key.

A key is shown once and stored as a keyed hash. Its last six characters are a checksum, so mistyped or made-up keys are
refused without asking the database.
"""


class AccessError(Exception):
    """An organization or key cannot be made, found or changed; the text says why, for the person who asked."""


class UnknownKeyError(AccessError):
    """There is no such key."""


class BeyondRightsError(AccessError):
    """A key may not give away what it does not have itself."""
