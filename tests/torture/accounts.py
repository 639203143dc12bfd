"""The organizations of a run and their keys."""

import msgspec

CLIENT_TIMEOUT_S = 3.0  # seconds that an impatient client waits; the service promises an answer to events within two
PATIENT_TIMEOUT_S = 20.0  # the service promises an answer to every request within five


class Account(msgspec.Struct, frozen=True):
    """An organization and its keys by kind.

    `admin` is a workbench key with every scope except the one for addresses; `strict` a live key that refuses unknown
    fields.
    """

    org: str
    keys: dict[str, str]
