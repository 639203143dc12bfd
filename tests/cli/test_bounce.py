"""`workbench bounce`: a mail server pipes its reports into it."""

import asyncio
import io
import os
import sys

import pytest

from api.auth import keys
from api.crypto import Keyring
from tests.channels.reports import bounce, email_to
from tests.cli.conftest import Here

SECRET = "a secret of these tests, which is long enough"
ID = "0193a1b2-0000-8000-8000-000000000001"


def test_a_report_suppresses_the_address_and_other_emails_are_ignored(
    run: Here, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def piped(raw: bytes) -> tuple[int, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        code, _, stderr = run("bounce", secret=SECRET)
        return code, stderr.strip()

    org_id = asyncio.run(keys.create_org(database_url, "acme"))
    report = bounce(email_to(Keyring(SECRET), org_id, ID, "zoe@example.com"))
    assert piped(report) == (0, "suppressed")
    assert piped(b"Subject: Out of office\n\nBack on Monday") == (0, "unknown")
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    code, _ = piped(report)
    assert code == os.EX_TEMPFAIL
