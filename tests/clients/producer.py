"""A backend that sends events with the Python client. Arguments: what to do, the URL, the key and the spool."""

import sys
import threading
import time

import msgspec

from workbench import Client


def track_three(client: Client) -> None:
    """Send three events of one contact; print what became of them."""
    keys = [client.track("order", external_id="c1", payload={"n": n, "text": "ä"}, unique_by="n") for n in range(3)]
    waiting = client.flush(timeout_s=60)
    failure = None if client.failure is None else str(client.failure)
    rejected = [rejected.error for rejected in client.rejected()]
    result = {"keys": keys, "waiting": waiting, "failure": failure, "rejected": rejected}
    sys.stdout.write(msgspec.json.encode(result).decode())


def track_until_stdin_ends(client: Client) -> None:
    """Print the key of each event after it was tracked, until stdin ends; then send all."""
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
    number = 0
    while not told.is_set():
        sys.stdout.write(client.track("endless", external_id=f"c{number % 9}") + "\n")
        sys.stdout.flush()
        number += 1
        time.sleep(0.01)
    if client.flush(timeout_s=240):
        raise SystemExit(str(client.failure))


if __name__ == "__main__":
    action, url, key, spool = sys.argv[1:]
    with Client(url, key, spool=spool) as client:
        {"three": track_three, "endless": track_until_stdin_ends}[action](client)
