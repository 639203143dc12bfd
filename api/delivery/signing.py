"""Standard Webhooks 1.0: how a delivery is signed, and the secrets it is signed with.

Signed is `id.timestamp.body`, by HMAC-SHA256. While a roll is under way a delivery carries a signature by each secret, so that
a receiver with either of them can verify it.
"""

import base64
import hmac
from collections.abc import Sequence
from datetime import timedelta

PREFIX = "whsec_"
SECRET_BYTES = 32  # the specification asks for 24 to 64
OVERLAP = timedelta(hours=24)


def new_secret(chance: bytes) -> str:
    """Return the text of a secret made of `SECRET_BYTES` bytes of cryptographic chance."""
    return PREFIX + base64.b64encode(chance).decode()


def headers(secrets: Sequence[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers of a delivery; `timestamp` is in seconds since the epoch."""
    signatures = [signature(secret, message_id, timestamp, body) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature with its version, `v1,…`."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    digest = hmac.digest(key, b"%b.%d.%b" % (message_id.encode(), timestamp, body), "sha256")
    return "v1," + base64.b64encode(digest).decode()
