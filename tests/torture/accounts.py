"""The organizations of a run and their keys."""

import msgspec

CLIENT_TIMEOUT_S = 3.0  # seconds that a client waits; the service promises an answer within two


class Account(msgspec.Struct, frozen=True):
    """An organization and its keys by kind.

    `admin` is a workbench key with every scope except the one for addresses; `strict` a live key that refuses unknown
    fields.
    """

    org: str
    keys: dict[str, str]
