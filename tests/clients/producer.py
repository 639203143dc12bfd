"""A backend that sends events with the Python client. Arguments: what to do, the URL, the key and the spool."""

import os
import sys
import threading
import time
import uuid
from datetime import timedelta

import msgspec

from workbench import Client, environment

_LONGEST_PAUSE_S = 0.2  # so that a test need not wait for the client when the service is back


def track_three(client: Client) -> None:
    """Send three events of one contact; print what became of them."""
    keys = [client.track("order", external_id="c1", payload={"n": n, "text": "ä"}, unique_by="n") for n in range(3)]
    waiting = client.flush(timeout_s=60)
    failure = None if client.failure is None else str(client.failure)
    rejected = [rejected.error for rejected in client.rejected()]
    result = {"keys": keys, "waiting": waiting, "failure": failure, "rejected": rejected}
    sys.stdout.write(msgspec.json.encode(result).decode())


def track_until_stdin_ends(client: Client) -> None:
    """Print the serial number of each event after it was tracked, until stdin ends; then send all."""
    environment.wait = lambda event, seconds: event.wait(min(seconds, _LONGEST_PAUSE_S))
    stdin_ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stdin_ended.set()), daemon=True).start()
    number, process = 0, uuid.uuid4()
    while not stdin_ended.is_set():
        serial = f"{process}-{number}"
        client.track("endless", external_id=f"c{number % 9}", payload={"serial": serial})
        sys.stdout.write(serial + "\n")
        sys.stdout.flush()
        number += 1
        time.sleep(0.01)
    if client.flush(timeout_s=240):
        raise SystemExit(str(client.failure))


def track_for_a_day(client: Client) -> None:
    """Track an event an hour while nothing answers; then send all.

    The pauses between attempts take no time, but the clock goes on by them. It begins so many hours ago.
    """
    hours = int(os.environ["OFFLINE_HOURS"])
    now = start = environment.now() - timedelta(hours=hours)
    pauses_s: list[float] = []

    def pass_time(_: threading.Event, seconds: float) -> None:
        nonlocal now
        now += timedelta(seconds=seconds)
        pauses_s.append(seconds)

    environment.now, environment.wait = lambda: now, pass_time
    moments = []
    for hour in range(hours):
        moments.append(now.isoformat(timespec="milliseconds"))
        client.track("hourly", external_id="c1", payload={"hour": hour}, occurred_at=moments[-1])
        while now < start + timedelta(hours=hour + 1):
            time.sleep(0.001)
    result = {"moments": moments, "attempts": len(pauses_s), "longestPauseS": max(pauses_s)}
    sys.stdout.write("a day later\n")
    sys.stdout.flush()
    result |= {"waiting": client.flush(timeout_s=100), "rejected": len(client.rejected())}
    sys.stdout.write(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    action, url, key, spool = sys.argv[1:]
    with Client(url, key, spool=spool) as client:
        {"three": track_three, "endless": track_until_stdin_ends, "day": track_for_a_day}[action](client)
