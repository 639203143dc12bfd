"""Errors that users can cause are recognized by the full names of their classes."""

import errno
from pkgutil import resolve_name

import pytest

from api.cli.errors import MESSAGES, USER_ERRORS, explain


@pytest.mark.parametrize("name", sorted(USER_ERRORS | MESSAGES.keys()))
def test_every_name_is_that_of_an_exception(name: str) -> None:
    kind = resolve_name(name)
    assert issubclass(kind, Exception)
    # Errors are compared by the module that defines them, so a re-exported name would never match.
    assert f"{kind.__module__}.{kind.__qualname__}" == name


def test_a_full_or_read_only_disk_is_one_sentence() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/data/log")
    assert explain(full) == "/data/log cannot be read or written: No space left on device"
    assert explain(OSError(errno.EBADF, "Bad file descriptor", "/data/log")) is None
