"""A builder that is killed, a full disk, and a database on which parts cannot be: nothing wrong is read afterwards."""

import asyncio
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count

import pytest

from api.contacts.erase import erase
from api.parts import files
from tests.parts.conftest import Parts, send
from tests.parts.test_touched import LATER, contact_ids, touched

pytestmark = pytest.mark.plain


async def build_and_kill(parts: Parts, stride: int) -> int:
    """Build in processes that are killed before one call after another, until one ends; return how many were killed."""
    arguments = (parts.org.intake.dsn, str(parts.folder), str(parts.org.id))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.parts.killed", *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for number in count():
        process.stdin.write(f"{number * stride} {parts.now.timestamp()}\n".encode())
        code = int(await process.stdout.readline())
        await parts.assert_exact()
        if code == 0:
            process.stdin.close()
            assert await process.wait() == 0
            return number
        assert code == -signal.SIGKILL
    raise AssertionError("unreachable")


async def test_a_builder_may_be_killed_at_any_step(parts: Parts) -> None:
    """The first build, then one that adds, rewrites, merges and deletes."""
    await send(parts.org, 30)
    assert await build_and_kill(parts, stride=1) >= 6
    for number in range(1, 3):
        await send(parts.org, 30, first=30 * number)
        await parts.build()
    await erase(parts.database, parts.org.author, (await contact_ids(parts))[0])
    await send(parts.org, 30, first=90)
    parts.now += LATER
    assert await build_and_kill(parts, stride=2) >= 4
    assert await touched(parts) == set()
    await parts.build(LATER)
    assert len(parts.paths()) == len(await parts.listed())


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow beyond 2,000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


async def test_a_full_disk_fails_the_build_and_nothing_else(parts: Parts) -> None:
    """Files that are no longer used are deleted all the same."""
    for first in (0, 15):
        await send(parts.org, 15, first)
        await parts.build()
    before = {files.path(parts.folder, parts.org.id, part.file).name for part in await parts.listed()}
    assert parts.paths() > before
    parts.now += LATER
    await send(parts.org, 300, first=30)
    with full_disk(), pytest.raises(OSError, match="File too large"):
        await parts.build()
    assert parts.paths() == before
    await parts.assert_exact()
    assert (await parts.build(timedelta(minutes=1))).added == 300
    await parts.assert_exact()
