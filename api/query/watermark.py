"""The word for what a query saw, which brings it back later: `2026-11-21T12:00:00.000000Z~…`, moment and sealed snapshot.

The snapshot is sealed because its numbers count the transactions of all organizations. The moment is for people; it is
bound to the seal.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime

from api.keyring import OrgKeys
from api.store.snapshots import Snapshot


def written(snapshot: Snapshot, keys: OrgKeys) -> str:
    """Return the watermark of a snapshot."""
    at = snapshot.at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    numbers = (snapshot.system_identifier, snapshot.first_number, snapshot.end, *snapshot.open)
    return f"{at}~{urlsafe_b64encode(keys.seal_snapshot(' '.join(map(str, numbers)), at)).decode().rstrip('=')}"


def read(watermark: str, keys: OrgKeys) -> Snapshot:
    """Return the snapshot of a watermark; raise ValueError when the organization was not given it."""
    at, _, sealed = watermark.partition("~")
    padded = sealed + "=" * (-len(sealed) % 4)
    numbers = keys.open_snapshot(urlsafe_b64decode(padded.encode("ascii")), at)
    system_identifier, first_number, end, *still_open = map(int, numbers.split(" "))
    return Snapshot(system_identifier, first_number, end, tuple(still_open), datetime.fromisoformat(at))
