"""Organizations, their API keys, and the authentication of requests.

A key is shown once and stored as a keyed hash. Its last six characters are a checksum, so mistyped and made-up keys are
refused without a database lookup.
"""


class AccessError(Exception):
    """An organization or key cannot be created, found or changed; the message tells the user why."""

    status_code = 400


class UnknownKeyError(AccessError):
    """The key does not exist."""

    status_code = 404


class BeyondRightsError(AccessError):
    """A key cannot grant rights that it does not have."""

    status_code = 403
