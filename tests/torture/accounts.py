"""Organizations, as those who ask the service know them."""

import msgspec

PATIENCE = 3.0  # seconds that whoever asks waits; the service promises two


class Account(msgspec.Struct, frozen=True):
    """An organization and its keys by kind; `admin`: a workbench key that may do everything but read addresses."""

    org: str
    keys: dict[str, str]
