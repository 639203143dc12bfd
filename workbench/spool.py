"""The folder in which clients keep events until the service has accepted them.

    <key>.<stamp>-<lane>.events    the position of the first event that waits, then the events: a line of JSON each
    <key>.key                      the organization and the kind of a key
    rejected                       events that the service rejected, with their errors
    rejected.lock                  held by a client that writes one of the last two

An event is in its file when `add` returns, because it was given to the operating system: it survives the end of the
process. Files are forced to the disk once a second, so the last seconds may be lost when the machine loses power.

A file that is taken over is read while its events are sent, so a client starts at once, however many wait.

A file of events is locked by the client that writes it, until its process ends. Then another client of the same
organization and kind of key locks it, and sends what waits in it. `key` is the fingerprint of a key, `stamp` the moment
at which the file was made.
"""

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import sha256
from itertools import takewhile
from pathlib import Path

import msgspec

from workbench import environment
from workbench.errors import SpoolError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LANES = 4  # files that are written, and sent, at a time. Events with the same contact are in one lane, in their order
MAX_REJECTED_BYTES = 16_777_216  # the oldest are dropped, so that invalid events cannot fill the disk
_REJECTED_SLACK = 1.1  # the file is rewritten when it is 10 % over the limit
_FILE_BYTES = 16_777_216  # the size at which a new file begins
_MAX_FILES = 32  # of a lane that are open; a process that takes over more would run out of descriptors
_HEADER_BYTES = 20
_CHUNK_BYTES = 65_536
_BATCH_BYTES = 1_048_576  # events of this size together are sent without waiting for more
_LANE_NAMES = frozenset(map(str, range(LANES)))
_BINARY = getattr(os, "O_BINARY", 0)  # Windows would change the ends of lines
_LOCKED_BYTE = 2**40  # on Windows a locked byte cannot be written, so it is one beyond the end


class Rejection(msgspec.Struct, frozen=True):
    """An event that the service rejected."""

    key: str
    lane: int
    error: str
    event: msgspec.Raw


def fingerprint(key: str) -> str:
    """Return what file names keep of a key, which has 190 random bits."""
    return sha256(key.encode()).hexdigest()[:16]


class EventFile:
    """The events of a lane in one file, of which those before `position` are settled. Only its lane uses it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.position = self.size = _HEADER_BYTES
        self.added = 0  # events, by this process
        self.is_synced = True
        self._waiting: int | None = 0  # None if they were not counted
        self._may_be_damaged = False

    @classmethod
    def create(cls, path: Path) -> "EventFile | None":
        """Return a new file; None if another client took it for one of an ended process."""
        descriptor = _open_locked(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        if descriptor is None:
            return None
        file = cls(path, descriptor)
        try:
            _require_lock(path)
            file._write_position()
        except OSError:  # such as a full disk
            file.delete()
            raise
        return file

    @classmethod
    def take_over(cls, path: Path) -> "EventFile | None":
        """Return a file whose process has ended; None if it has not, or another client was faster."""
        try:
            descriptor = _open_locked(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        if descriptor is None:
            return None
        file = cls(path, descriptor)
        file._waiting = None
        file._may_be_damaged = True
        header = file._read(0, _HEADER_BYTES).strip()
        # Without a position that can be right all its events are sent again, with the same keys.
        if header.isdigit() and _HEADER_BYTES <= int(header) <= file.end():
            file.position = int(header)
        return file

    def end(self) -> int:
        return os.lseek(self.descriptor, 0, os.SEEK_END)

    @property
    def waiting(self) -> int:
        """The number of events that wait; a damaged one counts until it is skipped."""
        if self._waiting is None:
            waiting, position = 0, self.position
            while chunk := self._read(position, _BATCH_BYTES):
                waiting += chunk.count(b"\n")
                position += len(chunk)
            self._waiting = waiting
        return self._waiting

    def append(self, event: bytes) -> None:
        line, end = event + b"\n", self.end()
        if end != self.size:  # the last one was interrupted, and may have written a part
            line = b"\n" + line
            self._may_be_damaged = True
        self._count(1)
        self.added += 1
        added = self.added
        try:
            if os.write(self.descriptor, line) != len(line):
                raise OSError("the disk is full")
        except OSError:
            if self.added == added:  # otherwise a signal handler has added one meanwhile
                os.ftruncate(self.descriptor, end)
            self._count(-1)
            self.added -= 1
            raise
        self.size = end + len(line)
        self.is_synced = False

    def oldest(self, limit: int) -> list[bytes]:
        """Return up to `limit` events that wait."""
        end = self.end()
        while lines := self._lines(self.position, limit):
            if not self._may_be_damaged:
                return lines
            if valid := list(takewhile(_is_json, lines)):
                return valid
            self._skip(lines[:1])  # the machine had lost power
        self.position = max(self.position, end)  # the last line was cut off
        self._waiting = None
        return []

    def settle(self, events: Sequence[bytes]) -> None:
        """Note that the oldest events were accepted or rejected. If this is lost, they are sent again."""
        self._skip(events)
        with contextlib.suppress(OSError):  # the disk is full. It gets room when the file is deleted
            self._write_position()

    def close(self) -> None:
        os.close(self.descriptor)
        self.descriptor = -1  # a thread that is not done with it must not write into another file of that number

    def delete(self) -> None:
        # A lock ends with `close`: another client must then find no file, but Windows deletes no open one.
        if sys.platform == "win32":
            self.close()
        with contextlib.suppress(OSError):  # another client deletes it later
            self.path.unlink(missing_ok=True)
        if sys.platform != "win32":
            self.close()

    def _lines(self, position: int, limit: int) -> list[bytes]:
        chunks: list[bytes] = []
        size = count = 0
        while count < limit and (size < _BATCH_BYTES or not count):
            chunk = self._read(position + size, _CHUNK_BYTES)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
            count += chunk.count(b"\n")
        return b"".join(chunks).split(b"\n", limit)[:-1]  # the last one is not complete

    def _skip(self, lines: Sequence[bytes]) -> None:
        self.position += sum(map(len, lines)) + len(lines)
        self._count(-len(lines))

    def _count(self, change: int) -> None:
        if self._waiting is not None:
            self._waiting += change

    # These leave the position of the descriptor as it is, on Windows excepted: a signal handler may interrupt `append`.

    def _read(self, position: int, size: int) -> bytes:
        if sys.platform == "win32":
            os.lseek(self.descriptor, position, os.SEEK_SET)
            return os.read(self.descriptor, size)
        else:  # noqa: RET505  one of them is unreachable for mypy otherwise
            return os.pread(self.descriptor, size, position)

    def _write_position(self) -> None:
        header = b"%019d\n" % self.position
        if sys.platform == "win32":
            os.lseek(self.descriptor, 0, os.SEEK_SET)
            os.write(self.descriptor, header)
        else:
            os.pwrite(self.descriptor, header, 0)


class Lane:
    """Events that are sent one after the other. Any thread may add some; one thread sends and settles them."""

    def __init__(self, new_file: Callable[[], EventFile]) -> None:
        self.lock = threading.RLock()  # a signal handler may track an event while it is held
        self.sending = threading.Lock()  # held by the thread that sends
        self.files: list[EventFile] = []  # oldest first
        self.current: EventFile | None = None  # the one that gets new events
        self._new_file = new_file

    def add(self, event: bytes, max_file_bytes: int) -> None:
        with self.lock:
            current = self.current
            if current is None or current.size >= max_file_bytes:
                current = self._new_file()
                self.current = current  # before it is in `files`: a signal handler that adds one may drop settled files
                self.files.append(current)
                self._drop_settled()
            current.append(event)

    def oldest(self, limit: int) -> tuple[EventFile, list[bytes]] | None:
        """Return a file and up to `limit` events of it; None if no event waits."""
        with self.lock:
            for file in [*self.files]:
                if events := file.oldest(limit):
                    return file, events
            self._drop_settled()
            return None

    def settle(self, file: EventFile, events: Sequence[bytes]) -> None:
        """Note that the oldest events of a file were accepted or rejected."""
        with self.lock:
            file.settle(events)
            self._drop_settled()

    def add_file(self, file: EventFile) -> None:
        """Add a file that was taken over; its events are sent before those that this process stores."""
        with self.lock:
            self.files.insert(sum(other is not self.current for other in self.files), file)
            self._drop_settled()

    def close(self) -> None:
        with self.lock:
            self.current = None
            self._drop_settled()
            self._close_files()

    def forget(self) -> None:
        """Drop files and locks after a fork: the files are the parent's, and its threads may have held the locks."""
        self.lock, self.sending = threading.RLock(), threading.Lock()
        self.current = None
        self._close_files()

    def _close_files(self) -> None:
        for file in self.files:
            file.close()
        self.files.clear()

    def _drop_settled(self) -> None:
        for file in [file for file in self.files if file is not self.current and file.position >= file.end()]:
            with contextlib.suppress(ValueError):  # a signal handler was faster
                self.files.remove(file)
                file.delete()


class Backlog:
    """The events of some lanes that waited at a moment."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._files: list[tuple[Lane, EventFile, int, int]] = []
        for lane in lanes:
            with lane.lock:
                self._files += [(lane, file, file.end(), file.added) for file in lane.files]

    def is_settled(self) -> bool:
        return all(file.position >= end for _, file, end, _ in self._files)

    def count(self) -> int:
        """Return how many still wait. Reads the files that were taken over, once."""
        count = 0
        for lane, file, end, added in self._files:
            with lane.lock:
                if file.position < end and file in lane.files:
                    count += max(0, file.waiting - (file.added - added))
        return count


class Spool:
    """The waiting and the rejected events in one folder, as a client with `key` sees them.

    Threads and forked processes may share it. Raises SpoolError if the folder cannot be used, or has reached
    `max_bytes`.
    """

    def __init__(self, folder: Path, key: str, max_bytes: int) -> None:
        self.folder = folder
        self._key = fingerprint(key)
        self._max_bytes = max_bytes
        # 16 to 64 files fill the folder: fewer waste space, more need descriptors.
        self._file_bytes = max(min(_FILE_BYTES, max_bytes // 16), max_bytes // 64)
        self.lanes = self._new_lanes()
        _spools.add(self)  # before it has files, which a forked process has to close
        with self._errors():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_over({self._key})

    def add(self, lane: int, event: bytes) -> None:
        """Store an event, which survives the end of the process when this returns."""
        try:
            self.lanes[lane].add(event, self._file_bytes)
        except (OSError, ValueError) as error:
            raise SpoolError(f"{self.folder}: {error}. The event was not stored") from None

    def backlog(self) -> Backlog:
        """Return the events that wait now in files of this process."""
        return Backlog(self.lanes)

    def register(self, organization: str, kind: str) -> None:
        """Note to which organization and kind the key belongs."""
        with self._locked():
            _replace(self.folder / f"{self._key}.key", msgspec.json.encode([organization, kind]))

    def take_over(self, *, of_other_keys: bool) -> bool:
        """Take over the files of ended processes with this key; return whether there were any.

        `of_other_keys`: also those with other keys of the same organization and kind.
        """
        with self._errors():
            return self._take_over(self._own_keys() if of_other_keys else {self._key})

    def sync(self) -> None:
        """Force what was added to the disk."""
        for lane in self.lanes:
            for file in [*lane.files]:
                if not file.is_synced:
                    file.is_synced = True
                    with contextlib.suppress(OSError, ValueError):  # it was deleted: all its events are settled
                        os.fsync(file.descriptor)

    def reject(self, lane: int, rejected: Sequence[tuple[bytes, str]]) -> int:
        """Keep events with their errors; return how many older ones were deleted for them."""
        with self._locked() as path:
            with os.fdopen(_open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
                for event, error in rejected:
                    # The line before it may have been cut off.
                    file.write(b"\n" + msgspec.json.encode(Rejection(self._key, lane, error, msgspec.Raw(event))))
            if path.stat().st_size > MAX_REJECTED_BYTES * _REJECTED_SLACK:
                rejections = _read_rejections(path)
                newest = _newest(rejections)
                _write_rejections(path, newest)
                return len(rejections) - len(newest)
            return 0

    def rejected(self, limit: int) -> list[Rejection]:
        """Return rejected events, newest first."""
        with self._locked() as path:
            own, _ = self._own_rejections(path)
        return own[::-1][:limit]

    def retry_rejected(self) -> None:
        """Let the rejected events wait again, behind the others."""
        with self._locked() as path:
            own, others = self._own_rejections(path)
            added = 0
            try:
                for rejection in own:
                    self.add(rejection.lane, bytes(rejection.event))
                    added += 1
            finally:  # a full folder may have taken some of them only
                _write_rejections(path, [*others, *own[added:]])

    def discard_rejected(self) -> None:
        with self._locked() as path:
            _, others = self._own_rejections(path)
            _write_rejections(path, others)

    def forget(self) -> None:
        """Leave the files to the parent of this process."""
        for lane in self.lanes:
            lane.forget()

    def close(self) -> None:
        """Leave what waits to a later client."""
        self.sync()
        for lane in self.lanes:
            lane.close()

    def _new_lanes(self) -> list[Lane]:
        return [Lane(lambda number=number: self._new_file(number)) for number in range(LANES)]  # type: ignore[misc]

    def _new_file(self, lane: int) -> EventFile:
        size = 0
        for path in self.folder.glob("*.events"):
            with contextlib.suppress(FileNotFoundError):  # another process has just deleted it
                size += path.stat().st_size
        if size + self._file_bytes > self._max_bytes:
            raise OSError(f"it is full: max_spool_bytes is {self._max_bytes}")
        while True:
            stamp = f"{environment.now():%Y%m%dT%H%M%S%f}-{environment.new_uuid()[:8]}"
            file = EventFile.create(self.folder / f"{self._key}.{stamp}-{lane}.events")
            if file is not None:
                return file

    def _take_over(self, keys: Collection[str]) -> bool:
        took_any = False
        with fork_lock():
            for path in sorted(self.folder.glob("*.events"), key=lambda path: path.name.partition(".")[2]):
                key, _, name = path.stem.partition(".")
                lane = self.lanes[int(name[-1])] if name[-1:] in _LANE_NAMES else None
                if key not in keys or lane is None or len(lane.files) >= _MAX_FILES:
                    continue
                with contextlib.suppress(OSError):  # one that cannot be opened must not keep the others
                    if (file := EventFile.take_over(path)) is not None:
                        lane.add_file(file)
                        took_any = True
        return took_any

    def _own_keys(self) -> set[str]:
        """Return the keys of the same organization and kind as the key of this client, and this one itself."""
        owners: dict[str, bytes] = {}
        for path in self.folder.glob("*.key"):
            with contextlib.suppress(OSError):
                if _is_json(owner := path.read_bytes()):  # otherwise the machine had lost power
                    owners[path.stem] = owner
        return {self._key} | {key for key, owner in owners.items() if owner == owners.get(self._key)}

    def _own_rejections(self, path: Path) -> tuple[list[Rejection], list[Rejection]]:
        """Return the rejected events of this organization and kind of key, and those of others, oldest first."""
        keys = self._own_keys()
        own: list[Rejection] = []
        others: list[Rejection] = []
        for rejection in _read_rejections(path):
            (own if rejection.key in keys else others).append(rejection)
        return own, others

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Path]:
        """Yield the path of the rejected events, which no other process or thread changes meanwhile."""
        with self._errors():
            descriptor = _open_private(self.folder / "rejected.lock", os.O_RDWR | os.O_CREAT)
            try:
                _lock(descriptor, wait=True)
                yield self.folder / "rejected"
            finally:
                _unlock(descriptor)  # a forked process may have a copy, which would keep it locked
                os.close(descriptor)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SpoolError(f"{self.folder}: {error}. Nothing was changed in it") from None


def _read_rejections(path: Path) -> list[Rejection]:
    rejections: list[Rejection] = []
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        with contextlib.suppress(ValueError):  # it was cut off
            rejections.append(msgspec.json.decode(line, type=Rejection))
    return rejections


def _newest(rejections: Sequence[Rejection]) -> Sequence[Rejection]:
    """Return as many of the newest as MAX_REJECTED_BYTES hold, but at least one."""
    size, first = 0, len(rejections)
    for rejection in reversed(rejections):
        size += len(msgspec.json.encode(rejection)) + 1
        if size > MAX_REJECTED_BYTES and first < len(rejections):
            break
        first -= 1
    return rejections[first:]


def _write_rejections(path: Path, rejections: Sequence[Rejection]) -> None:
    _replace(path, b"\n".join(map(msgspec.json.encode, rejections)))


def _replace(path: Path, content: bytes) -> None:
    """Write a file, of which others see the former or the new content; the caller has locked the folder."""
    new = path.with_name(f"{path.name}.new")
    with os.fdopen(_open_private(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)
    new.replace(path)


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except ValueError:
        return False
    except RecursionError:
        pass
    return True


def _open_private(path: Path, flags: int) -> int:
    """Open a file that only the user can read, because it has personal data."""
    return os.open(path, flags | _BINARY, 0o600)


def _open_locked(path: Path, flags: int) -> int | None:
    """Open a file and lock it; None if another client has locked or deleted it."""
    descriptor = _open_private(path, flags)
    is_locked = False
    try:
        is_locked = _lock(descriptor) and os.fstat(descriptor).st_nlink > 0
    finally:
        if not is_locked:
            os.close(descriptor)
    return descriptor if is_locked else None


def _require_lock(path: Path) -> None:
    """Raise OSError if this process could lock its own file again, and so would take it over, as on NFS."""
    if (descriptor := _open_locked(path, os.O_RDWR)) is not None:
        os.close(descriptor)
        raise OSError("its file system, such as NFS, does not lock files: choose a folder on a disk of this machine")


if sys.platform == "win32":

    def _lock(descriptor: int, *, wait: bool = False) -> bool:
        """Lock a file until it is closed or the process ends; return whether no other client has it."""
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except OSError:
            if wait:
                raise
            return False
        os.lseek(descriptor, 0, os.SEEK_END)
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:

    def _lock(descriptor: int, *, wait: bool = False) -> bool:
        """Lock a file until it is closed or the process ends; return whether no other client has it."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


_spools: "weakref.WeakSet[Spool]" = weakref.WeakSet()
_fork_lock = threading.RLock()
_held_locks: list["threading.RLock"] = []


def fork_lock() -> contextlib.AbstractContextManager[bool]:
    """Return the lock that a fork waits for. Hold it while importing, or while taking files over.

    Otherwise a child would have half a module, or the lock of a file that it does not know. (A function, because a
    child gets a new lock.)
    """
    return _fork_lock


def _before_fork() -> None:
    for lock in (_fork_lock, *(lane.lock for spool in list(_spools) for lane in spool.lanes)):
        lock.acquire()
        _held_locks.append(lock)


def _after_fork() -> None:
    locks = _held_locks[::-1]
    _held_locks.clear()
    for lock in locks:
        lock.release()


def _after_fork_in_child() -> None:
    # A new lock, because the thread that held it is in the parent only. uWSGI calls this without `_before_fork`.
    global _fork_lock  # noqa: PLW0603
    _fork_lock = threading.RLock()
    _held_locks.clear()
    for spool in list(_spools):
        spool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
