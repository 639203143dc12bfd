"""`wb.engine()` reports a missing login, and keeps no session between two uses."""

import pytest
from sqlalchemy import NullPool

from workbench import InvalidArgumentError, Workbench


@pytest.mark.parametrize(
    ("dsn", "sentence"),
    [
        ("", r"WORKBENCH_DSN is not set. .* `workbench reader create --org NAME`"),
        ("acme", "WORKBENCH_DSN is not a database URL; it looks like postgresql://login:password@host:5432/workbench"),
    ],
)
def test_a_missing_or_invalid_dsn_is_reported(dsn: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_DSN", dsn)
    with pytest.raises(InvalidArgumentError, match=sentence):
        Workbench().engine()


def test_no_session_is_kept_between_two_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_DSN", "postgresql://reader:x@127.0.0.1:9/workbench")
    assert isinstance(Workbench("http://127.0.0.1:9").engine().pool, NullPool)
