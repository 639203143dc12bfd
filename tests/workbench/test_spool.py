"""What a spool keeps when its process ends at any moment, and who may send it."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench import spool as spools
from workbench.errors import SpoolError
from workbench.spool import Spool

LANE = 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def open_spool(folder: Path, key: str = "sk_live_a", max_bytes: int = 1_000_000) -> Spool:
    return Spool(folder, key, max_bytes)


def drain(spool: Spool, batch_size: int = 3) -> list[bytes]:
    """Return all events of the lane, and settle them."""
    events: list[bytes] = []
    while batch := spool.lanes[LANE].oldest(batch_size):
        file, some = batch
        events += some
        spool.lanes[LANE].settle(file, some)
    return events


def events(count: int) -> list[bytes]:
    return [b'{"n":%d}' % number for number in range(count)]


def add(spool: Spool, some: list[bytes]) -> None:
    for event in some:
        spool.add(LANE, event)


def test_the_next_client_has_what_was_not_settled(folder: Path) -> None:
    first = open_spool(folder)
    add(first, events(5))
    batch = first.lanes[LANE].oldest(3)
    assert batch is not None
    first.lanes[LANE].settle(batch[0], batch[1][:2])
    first.close()
    second = open_spool(folder)
    assert second.backlog().count() == 3
    assert drain(second) == events(5)[2:]
    assert [path.suffix for path in folder.iterdir()] == []


def test_the_file_of_a_running_client_is_its_own(folder: Path) -> None:
    first, second = open_spool(folder), open_spool(folder)
    add(first, events(1))
    assert (second.take_over(of_other_keys=True), second.backlog().count(), first.backlog().count()) == (False, 0, 1)
    first.close()
    assert (second.take_over(of_other_keys=True), second.backlog().count()) == (True, 1)


def test_files_of_many_ended_clients_are_taken_over_some_at_a_time(folder: Path) -> None:
    for number in range(40):
        spool = Spool(folder / str(number), "sk_live_a", 1_000_000)
        add(spool, [b"%d" % number])
        spool.close()
    for path in folder.glob("*/*.events"):
        path.rename(folder / path.name)
    later = open_spool(folder)
    assert later.backlog().count() == 32
    assert drain(later) == [b"%d" % number for number in range(32)]
    assert (later.take_over(of_other_keys=True), drain(later)) == (True, [b"%d" % number for number in range(32, 40)])


def test_a_client_takes_over_events_of_keys_of_the_same_organization_and_kind(folder: Path) -> None:
    owners = {"a": ("demo", "live"), "b": ("demo", "test"), "c": ("other", "live"), "d": ("demo", "live")}
    for key, owner in owners.items():
        spool = open_spool(folder, key)
        spool.register(*owner)
        add(spool, [b'"%b"' % key.encode()])
        spool.close()
    new = open_spool(folder, "new")
    assert (new.take_over(of_other_keys=True), drain(new)) == (False, [])
    new.register("demo", "live")
    assert (new.take_over(of_other_keys=True), drain(new)) == (True, [b'"a"', b'"d"'])


@pytest.mark.parametrize("content", [b"", b"\0" * 15], ids=["empty", "zeros"])
def test_keys_whose_organization_was_lost_have_none_in_common(folder: Path, content: bytes) -> None:
    for key in ("a", "b"):
        spool = open_spool(folder, key)
        spool.register("demo", "live")
        add(spool, events(1))
        spool.close()
    for path in folder.glob("*.key"):
        path.write_bytes(content)
    later = open_spool(folder, "a")
    assert (later.take_over(of_other_keys=True), later.backlog().count()) == (False, 1)


def test_a_file_that_cannot_be_opened_does_not_keep_the_others(folder: Path) -> None:
    first = open_spool(folder)
    add(first, events(2))
    first.close()
    (path,) = folder.glob("*.events")
    path.with_name(f"{first._key}.0-{LANE}.events").mkdir()
    assert drain(open_spool(folder)) == events(2)


def test_a_client_that_takes_a_new_file_over_deletes_it_before_it_unlocks_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_spool(folder), open_spool(folder)
    lock, taken = spools._lock, []

    def lock_after_the_other_client(descriptor: int) -> bool:
        if not taken:
            taken.append(None)
            taken.append(second.take_over(of_other_keys=False))
        return lock(descriptor)

    monkeypatch.setattr(spools, "_lock", lock_after_the_other_client)
    add(first, events(1))
    first.close()
    assert (taken, drain(open_spool(folder))) == ([None, True], events(1))


def test_a_file_system_whose_locks_are_those_of_the_process_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", fcntl.lockf)  # as the kernel does on NFS
    spool = open_spool(folder)
    with pytest.raises(SpoolError, match=r"does not lock files.*The event was not stored"):
        add(spool, events(1))
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize("bytes_written", [0, 4, 8])
def test_an_interrupted_add_does_not_uncount_other_events(
    folder: Path, monkeypatch: pytest.MonkeyPatch, bytes_written: int
) -> None:
    spool, write = open_spool(folder), os.write
    first, interrupted, last = events(3)
    add(spool, [first])

    def interrupt(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:bytes_written])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            add(spool, [interrupted])
    add(spool, [last])
    expected = [first, interrupted, last] if bytes_written == len(interrupted) + 1 else [first, last]
    assert (drain(spool, 1), spool.backlog().count()) == (expected, 0)


def test_a_signal_handler_may_add_while_an_event_is_added(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, write, others = open_spool(folder), os.write, events(6)[3:]

    def add_another(descriptor: int, data: bytes) -> int:
        if others and not data.startswith(others[0][:6]):
            add(spool, [others.pop(0)])
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", add_another)
    add(spool, events(3))
    assert sorted(drain(spool, 1)) == events(6)


def test_a_failed_write_changes_no_event(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, write = open_spool(folder), os.write
    add(spool, events(3))
    batch = spool.lanes[LANE].oldest(1)
    assert batch is not None

    def fail(descriptor: int, data: bytes, *_: int) -> int:
        write(descriptor, data[:4])
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        spool.lanes[LANE].settle(*batch)  # its position is not stored
    add(spool, [b'{"n":3}'])
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(SpoolError, match="no space left"):
            add(spool, [b'{"n":"not stored"}'])
    add(spool, [b'{"n":4}'])
    spool.close()
    assert drain(open_spool(folder)) == events(5)


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda data: data[:-3], events(4)),
        (lambda data: data.replace(b'{"n":1}', b"\0" * 7), [events(5)[0], *events(5)[2:]]),
        (lambda data: b"?" * 19 + data[19:], events(5)),
        (lambda data: b"9" * 19 + data[19:], events(5)),
        (lambda data: b"", []),
    ],
    ids=["cut off", "lost sector", "lost header", "position beyond the end", "empty"],
)
def test_a_damaged_file_gives_what_can_be_read(folder: Path, damage: object, kept: list[bytes]) -> None:
    spool = open_spool(folder)
    add(spool, events(5))
    spool.close()
    (path,) = folder.glob("*.events")
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    later = open_spool(folder)
    assert drain(later) == kept
    assert (later.backlog().count(), list(folder.glob("*.events"))) == (0, [])


def test_events_are_in_order_over_many_files(folder: Path) -> None:
    spool = open_spool(folder, max_bytes=64_000)
    add(spool, events(3_000))
    assert len(list(folder.glob("*.events"))) > 5
    assert spool.backlog().count() == 3_000
    assert drain(spool) == events(3_000)
    assert len(list(folder.glob("*.events"))) == 1  # the one that gets new events


def test_an_event_of_megabytes_is_kept(folder: Path) -> None:
    large = [b'"%b"' % (letter * 3_000_000) for letter in (b"x", b"y")]
    spool = open_spool(folder, max_bytes=100_000_000)
    add(spool, large)
    assert drain(spool) == large


def test_the_newest_rejected_events_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spools, "MAX_REJECTED_BYTES", 250)
    monkeypatch.setattr(spools, "_REJECTED_SLACK", 2)
    spool, other = open_spool(folder), open_spool(folder, "sk_live_other")
    other.reject(0, [(b"{}", "other")])
    for number in range(7):
        spool.reject(LANE, [(b"%d" % number, f"error {number}")])
        with (folder / "rejected").open("ab") as file:
            file.write(b'\n{"key":')  # a process ended here
    assert [rejected.error for rejected in spool.rejected(3)] == ["error 6", "error 5", "error 4"]
    spool.retry_rejected()
    assert drain(spool)[-2:] == [b"5", b"6"]
    assert (spool.rejected(9), len((folder / "rejected").read_bytes())) == ([], 0)


def test_a_full_folder_keeps_the_rejected_events_that_it_cannot_take(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, append = open_spool(folder), spools.EventFile.append
    spool.reject(LANE, [(event, "no") for event in events(3)])

    def fail_at_the_second(file: spools.EventFile, event: bytes) -> None:
        if event == events(2)[1]:
            raise OSError("no space left on device")
        append(file, event)

    with monkeypatch.context() as patch:
        patch.setattr(spools.EventFile, "append", fail_at_the_second)
        with pytest.raises(SpoolError, match="no space left"):
            spool.retry_rejected()
    assert [bytes(rejected.event) for rejected in spool.rejected(9)] == events(3)[:0:-1]
    assert drain(spool) == events(1)


def test_rejected_events_are_bounded_by_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spools, "MAX_REJECTED_BYTES", 10_000)
    spool = open_spool(folder)
    sizes = []
    for number in range(50):
        spool.reject(LANE, [(b'"%b"' % (b"x" * 900), f"error {number}")])
        sizes.append((folder / "rejected").stat().st_size)
    assert (max(sizes) < 11_000 + 1_000, [rejected.error for rejected in spool.rejected(2)]) == (
        True,
        ["error 49", "error 48"],
    )
    spool.reject(LANE, [(b'"%b"' % (b"x" * 20_000), "too large")])
    assert [rejected.error for rejected in spool.rejected(2)] == ["too large"]


def test_a_backlog_takes_neither_time_nor_memory_at_the_start(folder: Path) -> None:
    folder.mkdir()
    count = int(os.environ.get("WAITING_EVENTS", "200000"))
    line = b'{"event":"deposit","payload":{"text":"%b"}}\n' % (b"x" * 156)
    with (folder / f"{spools.fingerprint('sk_live_a')}.20260101T000000000000-0-{LANE}.events").open("wb") as file:
        file.write(b"%019d\n" % 20)
        for _ in range(count // 1_000):
            file.write(line * 1_000)
    program = f"""
import resource, time
from pathlib import Path
from workbench.spool import Spool
def peak_mb(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before_mb, before_s = peak_mb(), time.process_time()
spool = Spool(Path({str(folder)!r}), "sk_live_a", 2**30)
file, some = spool.lanes[{LANE}].oldest(100)
started_s, started_mb = time.process_time() - before_s, peak_mb() - before_mb
count = spool.backlog().count()
print(len(some), count, started_s, started_mb, peak_mb() - before_mb)
"""
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    batch, waiting, started_s, started_mb, counted_mb = output.split()
    assert (int(batch), int(waiting)) == (100, count)
    assert float(started_s) < 0.2, output
    assert (float(started_mb) < 2, float(counted_mb) < 5) == (True, True), output


def test_a_forked_process_does_not_keep_the_lock_of_its_parent(folder: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from workbench.spool import Spool
spool = Spool(Path({str(folder)!r}), "sk_live_a", 1_000_000)
spool.add({LANE}, b"1")
if os.fork() == 0:
    spool.add({LANE}, b"2")
    print(spool.backlog().count(), flush=True)
    sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], text=True, **pipes) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "1\n"
        assert parent.wait(30) == 0
        assert drain(open_spool(folder)) == [b"1"]
