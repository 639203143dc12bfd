"""`Client` keeps every event that `track` returned from, and the service stores each of them once."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NoReturn

import pytest

from tests.running import Running, free_port
from workbench import AuthenticationError, Client, InvalidArgumentError, Receipt, SpoolError
from workbench.client import _lane
from workbench.spool import EventFile, Spool

KILLS = int(os.environ.get("KILLED_PRODUCERS", "5"))


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def client(running: Running, spool: Path) -> Iterator[Client]:
    with Client(running.url, running.keys["live"], spool=spool) as client:
        yield client


def stored_keys(running: Running, event: str) -> list[str]:
    frame = running.workbench().sql("SELECT idempotency_key FROM app_events WHERE event = :event", event=event)
    return sorted(frame["idempotency_key"])


def test_each_tracked_event_is_stored_once_with_its_moment(running: Running, client: Client) -> None:
    keys = [client.track("client:first", external_id=f"c{number % 7}", payload={"n": number}) for number in range(250)]
    assert client.flush() == 0
    assert stored_keys(running, "client:first") == sorted(keys)
    assert (client.waiting, client.failure, client.rejected()) == (0, None, [])


def test_events_of_a_contact_are_in_one_lane_whatever_else_it_has() -> None:
    contacts = [{"externalId": "c1"}, {"email": "a@example.com", "externalId": "c1"}, {"externalId": "c1", "x": 1}]
    assert len({_lane(contact) for contact in contacts}) == 1
    counts = Counter(_lane({"externalId": f"c{number}"}) for number in range(1_000))
    assert sorted(counts) == [0, 1, 2, 3]
    assert min(counts.values()) > 200


def test_events_of_one_contact_arrive_in_order(running: Running, client: Client) -> None:
    for number in range(300):
        client.track("client:ordered", external_id="one", payload={"n": number})
    client.flush()
    query = "SELECT (payload->>'n')::int AS n FROM app_events WHERE event = 'client:ordered' ORDER BY created_at, id"
    assert running.workbench().sql(query)["n"].to_list() == list(range(300))


def test_a_key_from_business_fields_counts_an_event_once(running: Running, client: Client) -> None:
    for _ in range(3):
        client.track("client:order", external_id="c1", payload={"orderId": 7}, unique_by="orderId")
    client.track("client:order", external_id="c1", payload={"orderId": 8}, unique_by=["orderId"])
    client.flush()
    assert len(stored_keys(running, "client:order")) == 2
    with pytest.raises(InvalidArgumentError, match="the payload has no 'orderId'"):
        client.track("client:order", external_id="c1", unique_by="orderId")


def test_a_rejected_event_is_kept_with_its_error_and_stops_no_other(running: Running, spool: Path) -> None:
    receipts: list[Receipt] = []
    with Client(running.url, running.keys["live"], spool=spool, on_receipt=receipts.append) as client:
        client.track("not a name", external_id="c1")
        client.track("client:good", external_id="c1")
        assert client.flush() == 0
        (rejected,) = client.rejected()
        assert rejected.event["event"] == "not a name"
        assert rejected.error.startswith("event: ")
        client.discard_rejected()
        assert client.rejected() == []
    assert sorted(receipt.accepted for receipt in receipts) == [False, True]
    assert all(receipt.idempotency_key for receipt in receipts)


def test_rejected_events_are_logged_with_those_that_were_deleted(
    running: Running, spool: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("workbench.spool.MAX_REJECTED_BYTES", 1_500)
    monkeypatch.setattr("workbench.spool._REJECTED_SLACK", 2)
    with Client(f"http://127.0.0.1:{free_port()}", running.keys["live"], spool=spool) as client:
        for _ in range(15):
            client.track("not a name", external_id="c1")
        client.close(timeout_s=0)
    with Client(running.url, running.keys["live"], spool=spool) as client:
        for _ in range(2):  # within a minute, so that the end of the client logs both
            client.flush()
            client.track("not a name", external_id="c1")
        error = client.rejected(1)[0].error
    deleted = 17 - len(client.rejected())
    logged = [message for message in caplog.messages if message.startswith("rejected")]
    assert logged == [
        f"rejected events in {spool}: 15 ({deleted} older ones were deleted): {error}",
        f"rejected events in {spool}: 2: {error}",
    ]


def test_events_wait_without_a_service_and_are_sent_by_a_later_client(running: Running, spool: Path) -> None:
    with Client(f"http://127.0.0.1:{free_port()}", running.keys["live"], spool=spool) as offline:
        key = offline.track("client:later", external_id="c1")
        assert offline.flush(timeout_s=1) == 1
        assert "no response from" in str(offline.failure)
        assert offline.close(timeout_s=0) == 1
        with pytest.raises(SpoolError, match="the client is closed"):
            offline.track("client:later", external_id="c1")
    with Client(running.url, running.keys["live"], spool=spool) as online:
        assert online.flush() == 0
    assert stored_keys(running, "client:later") == [key]


def test_clients_of_one_file_send_with_keys_of_their_own_organization_and_kind(running: Running, spool: Path) -> None:
    with (
        Client(running.url, running.keys["live"], spool=spool) as live,
        Client(running.url, running.keys["test"], spool=spool) as test,
    ):
        live_key = live.track("client:mine", external_id="live")
        test.track("client:mine", external_id="test")
        assert (live.flush(), test.flush()) == (0, 0)
    assert stored_keys(running, "client:mine") == [live_key]


def test_a_key_that_the_service_refuses_leaves_the_file_to_others(running: Running, spool: Path) -> None:
    refused = running.keys["live"][:-1] + ("0" if running.keys["live"][-1] != "0" else "1")
    with (
        Client(running.url, refused, spool=spool) as old,
        Client(running.url, running.keys["live"], spool=spool) as new,
    ):
        old.track("client:rolled", external_id="c1")
        key = new.track("client:rolled", external_id="c1")
        assert new.flush() == 0
        assert old.flush(timeout_s=1) == 1
        assert isinstance(old.failure, AuthenticationError)
        old.close(timeout_s=0)
    assert stored_keys(running, "client:rolled") == [key]


def test_a_refused_key_takes_over_no_events_of_other_keys(running: Running, spool: Path) -> None:
    refused = running.keys["live"][:-1] + ("0" if running.keys["live"][-1] != "0" else "1")
    for key in (refused, running.keys["live"]):
        Spool(spool, key, 1_000_000).register("demo", "live")
    with Client(f"http://127.0.0.1:{free_port()}", running.keys["live"], spool=spool) as offline:
        key = offline.track("client:kept", external_id="c1")
        offline.close(timeout_s=0)
    with Client(running.url, refused, spool=spool) as old:
        assert (old.flush(), old.waiting) == (0, 0)
        with Client(running.url, running.keys["live"], spool=spool) as new:
            assert new.flush() == 0
    assert stored_keys(running, "client:kept") == [key]


def test_flush_notes_whose_key_it_is(client: Client, spool: Path) -> None:
    client.track("client:short", external_id="c1")
    client.flush()
    assert [path.read_bytes() for path in spool.glob("*.key")] == [b'["demo","live"]']


def lanes() -> int:
    """Return how many threads send."""
    return sum(thread.name.startswith("workbench-client-") for thread in threading.enumerate())


def test_threads_that_track_first_at_once_share_the_threads_that_send(running: Running, spool: Path) -> None:
    barrier, before, keys = threading.Barrier(4), lanes(), []

    def track(number: int) -> None:
        barrier.wait()
        keys.extend(client.track("client:threads", external_id=f"c{number}") for _ in range(100))

    with Client(running.url, running.keys["live"], spool=spool) as client:
        threads = [threading.Thread(target=track, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert lanes() - before == 4
        assert client.flush() == 0
    assert stored_keys(running, "client:threads") == sorted(keys)


@pytest.mark.parametrize("name", ["workbench-client-2", "workbench-client"])
def test_events_wait_while_no_thread_can_start(
    running: Running, spool: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with Client(running.url, running.keys["live"], spool=spool) as client:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            keys = [client.track(f"client:{name}", external_id=f"c{number}") for number in range(50)]
            assert str(client.failure) == "can't start new thread"
        keys += [client.track(f"client:{name}", external_id=f"c{number}") for number in range(50)]
        assert (client.flush(), client.failure) == (0, None)
    assert stored_keys(running, f"client:{name}") == sorted(keys)


def test_the_threads_that_send_survive_errors_of_the_disk_and_of_receipts(
    running: Running, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError("input/output error")

    receipts: list[Receipt] = []

    def exit_after_receipt(receipt: Receipt) -> NoReturn:
        receipts.append(receipt)
        raise SystemExit

    with Client(running.url, running.keys["live"], spool=spool, on_receipt=exit_after_receipt) as client:
        with monkeypatch.context() as patch:
            patch.setattr(EventFile, "oldest", fail)
            keys = [client.track("client:disk", external_id="c1")]
            assert client.flush(timeout_s=0.5) == 1
            assert "input/output error" in str(client.failure)
        for _ in range(2):
            keys.append(client.track("client:disk", external_id="c1"))
            assert client.flush() == 0
    assert stored_keys(running, "client:disk") == sorted(keys)
    assert sorted(receipt.idempotency_key for receipt in receipts) == sorted(keys)


def test_a_disk_without_room_for_a_rejected_event_takes_the_accepted_ones_before_it(
    running: Running, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise SpoolError("no space left on device")

    with Client(f"http://127.0.0.1:{free_port()}", running.keys["live"], spool=spool) as client:
        keys = [client.track(name, external_id="c1") for name in ("client:one", "not a name", "client:two")]
        client.close(timeout_s=0)
    receipts: list[Receipt] = []
    with Client(running.url, running.keys["live"], spool=spool, on_receipt=receipts.append) as client:
        with monkeypatch.context() as patch:
            patch.setattr(Spool, "reject", fail)
            assert client.flush(timeout_s=2) == 2
            assert str(client.failure) == "no space left on device"
            assert [receipt.idempotency_key for receipt in receipts] == keys[:1]
        assert client.flush() == 0
    assert [(receipt.idempotency_key, receipt.accepted) for receipt in receipts] == [
        (key, key != keys[1]) for key in keys
    ]


def test_rejected_events_do_not_keep_a_file_full(running: Running, spool: Path) -> None:
    url, key = f"http://127.0.0.1:{free_port()}", running.keys["live"]
    with Client(url, key, spool=spool, max_spool_bytes=300_000) as client:
        fill(client, "not a name")
        client.close(timeout_s=0)
    with Client(running.url, key, spool=spool, max_spool_bytes=300_000) as client:
        assert client.flush(timeout_s=60) == 0
        assert len(client.rejected()) > 100
        client.retry_rejected()
        assert client.flush(timeout_s=60) == 0
        client.discard_rejected()
        client.track("client:room", external_id="c1")
        assert client.flush() == 0


def fill(client: Client, event: str) -> int:
    """Track an event until the file is full; return how many were stored."""
    tracked = 0
    with contextlib.suppress(SpoolError):
        while tracked < 10_000:
            client.track(event, external_id="c1", payload={"text": "x" * 200})
            tracked += 1
    return tracked


def test_a_full_file_refuses_events_and_keeps_the_others(running: Running, spool: Path) -> None:
    with Client(f"http://127.0.0.1:{free_port()}", "sk_live_x", spool=spool, max_spool_bytes=200_000) as client:
        assert fill(client, "client:much") == client.waiting > 100
        with pytest.raises(SpoolError, match="full"):
            client.track("client:much", external_id="c1", payload={"text": "x" * 200})
        client.close(timeout_s=0)


@pytest.mark.parametrize(("key", "words"), [(None, "is missing"), ("wb_x", "wb_… cannot send events")])
def test_a_key_that_cannot_send_is_refused_at_once(
    key: str | None, words: str, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORKBENCH_EVENTS_KEY", raising=False)
    with pytest.raises(AuthenticationError, match=words):
        Client("http://127.0.0.1:9", key, spool=spool)


def test_the_file_is_readable_by_its_user_only(client: Client, spool: Path) -> None:
    client.track("client:private", external_id="c1")
    client.track("not a name", external_id="c1")
    client.flush()
    assert {path.stat().st_mode & 0o777 for path in spool.iterdir()} == {0o600}


async def test_asyncio_closes_without_blocking(running: Running, spool: Path) -> None:
    async with Client(running.url, running.keys["live"], spool=spool) as client:
        key = client.track("client:async", external_id="c1")
        assert await client.aflush() == 0
    assert stored_keys(running, "client:async") == [key]


def producer(running: Running, spool: Path, body: str) -> "subprocess.Popen[str]":
    """Start a process with a `client` that runs `body`."""
    code = f"""
        import os, sys, time
        from workbench import Client
        client = Client({running.url!r}, {running.keys["live"]!r}, spool={str(spool)!r})
        """
    program = textwrap.dedent(code) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", program], env=running.environment(), stdout=subprocess.PIPE, text=True
    )


def test_killed_producers_lose_and_double_nothing(running: Running, spool: Path) -> None:
    tracked: list[str] = []
    program = """
        number = 0
        while True:
            print(client.track("client:killed", external_id=f"c{number % 9}"), flush=True)
            number += 1
        """
    for kill in range(KILLS):
        with producer(running, spool, program) as process:
            assert process.stdout is not None
            tracked += [process.stdout.readline().strip() for _ in range(40 + 7 * (kill % 30))]
            process.send_signal(signal.SIGKILL)
            # The last line may be cut off; its event may be stored or not
            tracked += [line.strip() for line in process.stdout if line.endswith("\n")]
    with Client(running.url, running.keys["live"], spool=spool) as client:
        assert client.flush(timeout_s=60) == 0
    stored = stored_keys(running, "client:killed")
    assert set(tracked) <= set(stored)
    assert len(stored) == len(set(stored))
    assert len(set(stored) - set(tracked)) <= KILLS  # one at most from each killed process


def test_forked_processes_share_a_client(running: Running, spool: Path) -> None:
    process = producer(
        running,
        spool,
        """
        client.track("client:forked", external_id="parent")
        children = []
        for number in range(3):
            child = os.fork()
            if child == 0:
                for _ in range(20):
                    client.track("client:forked", external_id=f"child{number}")
                left = client.flush(30)
                os._exit(1 if left else 0)
            children.append(child)
        for _ in range(20):
            client.track("client:forked", external_id="parent")
        codes = [os.waitpid(child, 0)[1] for child in children]
        print(codes, client.close())
        """,
    )
    output, _ = process.communicate(timeout=90)
    assert output == "[0, 0, 0] 0\n"
    assert len(stored_keys(running, "client:forked")) == 81


def test_a_process_forked_after_the_import_makes_a_client_of_its_own(running: Running, spool: Path) -> None:
    program = f"""
import os
from workbench import Client
if os.fork() == 0:
    client = Client({running.url!r}, {running.keys["live"]!r}, spool={str(spool)!r})
    client.track("client:import", external_id="c1")
    os._exit(client.flush(30))
print(os.wait()[1])
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "0\n"
    assert len(stored_keys(running, "client:import")) == 1


def test_workers_of_uwsgi_send_their_own_events(running: Running, spool: Path) -> None:
    """With `py-call-osafterfork` it tells Python of a fork afterwards only, while threads of the parent send."""
    process = producer(
        running,
        spool,
        """
        import ctypes
        for number in range(50):
            client.track("client:prefork", external_id=f"parent{number}")
        workers = []
        for worker in range(3):
            child = ctypes.PyDLL(None).fork()
            if child == 0:
                ctypes.pythonapi.PyOS_AfterFork_Child()
                for number in range(20):
                    client.track("client:prefork", external_id=f"worker{number}")
                os._exit(client.close(30))
            workers.append(child)
        codes = [os.waitpid(worker, 0)[1] for worker in workers]
        print(codes, client.close(30))
        """,
    )
    output, _ = process.communicate(timeout=90)
    assert output == "[0, 0, 0] 0\n"
    assert len(stored_keys(running, "client:prefork")) == 110


def test_signal_handlers_may_track_while_track_runs(running: Running, spool: Path) -> None:
    process = producer(
        running,
        spool,
        """
        import signal
        handled = []
        def handle(*_):
            handled.append(client.track("client:signal", external_id="c1"))
            signal.setitimer(signal.ITIMER_REAL, 0.0001)
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.0001)
        for _ in range(500):
            client.track("client:signal", external_id="c1")
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        print(len(handled), client.close(60))
        """,
    )
    output, _ = process.communicate(timeout=90)
    handled, left = map(int, output.split())
    assert (handled > 0, left) == (True, 0)
    assert len(stored_keys(running, "client:signal")) == 500 + handled


def test_a_forked_process_ends_although_a_thread_of_its_parent_held_a_lock(running: Running, spool: Path) -> None:
    process = producer(
        running,
        spool,
        """
        client.track("client:ended", external_id="parent")
        with client._sender._lanes[0].at_once._cond:  # as a thread that is setting it
            if (child := os.fork()) == 0:
                sys.exit(0)
            print(os.waitpid(child, 0)[1])
        """,
    )
    output, _ = process.communicate(timeout=60)
    assert output == "0\n"


def test_a_forked_process_keeps_and_sends_events_after_its_parent(running: Running, spool: Path) -> None:
    process = producer(
        running,
        spool,
        """
        client.track("client:daemon", external_id="parent")
        if os.fork() == 0:
            os.setsid()
            time.sleep(3)  # the parent is gone
            for _ in range(10):
                client.track("client:daemon", external_id="child")
            left = client.flush(30)
            print("left", left, flush=True)
            for _ in range(5):
                client.track("client:daemon", external_id="child")
            os.kill(os.getpid(), 9)
        client.close()
        """,
    )
    output, _ = process.communicate(timeout=90)
    assert output == "left 0\n"
    with Client(running.url, running.keys["live"], spool=spool) as client:
        assert client.flush() == 0
    assert len(stored_keys(running, "client:daemon")) == 16


class _RedirectingServer(BaseHTTPRequestHandler):
    """Answers `/me` like the service, and everything else like a proxy during maintenance."""

    answers = ((302, b""), (200, b'{"status": "maintenance"}'), (404, b"{}"))
    requests = 0

    def do_GET(self) -> None:
        body = b'{"organization": "demo", "key": {"kind": "live"}}'
        self._answer(200, body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).requests += 1
        self._answer(*self.answers[self.requests % len(self.answers)])

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Location", "https://example.com/")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_answers_that_are_not_of_the_service_reject_nothing(running: Running, spool: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _RedirectingServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with Client(f"http://127.0.0.1:{server.server_address[1]}", "sk_live_x", spool=spool) as client:
            for number in range(20):
                client.track("client:moved", external_id=f"c{number}")
            assert client.flush(timeout_s=4) == 20
            assert client.failure is not None
            assert client.rejected() == []
            client.close(timeout_s=0)
    finally:
        server.shutdown()
        server.server_close()
    assert _RedirectingServer.requests > len(_RedirectingServer.answers)


def test_the_end_of_a_process_sends_what_waits(running: Running, spool: Path) -> None:
    process = producer(
        running,
        spool,
        """
        first = client.track("client:exit", external_id="c1")
        client.flush()
        print(first, client.track("client:exit", external_id="c1"))
        """,
    )
    output, _ = process.communicate(timeout=60)
    assert stored_keys(running, "client:exit") == sorted(output.split())


class _LosingServer(BaseHTTPRequestHandler):
    """Forwards requests, and closes every second connection in place of the answer."""

    target = ""
    requests = 0

    def do_GET(self) -> None:
        self._forward(b"")

    def do_POST(self) -> None:
        self._forward(self.rfile.read(int(self.headers["Content-Length"])))

    def _forward(self, body: bytes) -> None:
        import httpx

        headers = {name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers}
        answer = httpx.request(self.command, self.target + self.path, content=body, headers=headers)
        type(self).requests += 1
        if self.command == "POST" and self.requests % 2:
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        pass


def test_lost_answers_double_nothing(running: Running, spool: Path) -> None:
    _LosingServer.target = running.url
    server = ThreadingHTTPServer(("127.0.0.1", 0), _LosingServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with Client(url, running.keys["live"], spool=spool) as client:
            keys = [client.track("client:lost", external_id=f"c{number % 5}") for number in range(150)]
            assert client.flush(timeout_s=60) == 0
    finally:
        server.shutdown()
        server.server_close()
    assert stored_keys(running, "client:lost") == sorted(keys)


def test_importing_the_client_loads_no_http_library() -> None:
    code = "import sys; from workbench import Client; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert {"httpx", "jinja2", "asyncio.events", "polars"}.isdisjoint(run.stdout.split())
