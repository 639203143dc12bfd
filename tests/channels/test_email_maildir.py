"""Emails without a mail server: files that any mail program reads."""

import mailbox
import stat
from pathlib import Path

import msgspec

from api.channels.email import MaildirMailer, open_mailer
from api.channels.outcome import Failed, Sent
from api.settings import Settings
from tests.channels.test_mime import AT, MAIL


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_an_email_is_stored_in_the_folder_new(tmp_path: Path) -> None:
    transport = open_mailer(Settings(data_dir=tmp_path, email_from="Acme <news@acme.example>"))
    assert await transport.send(MAIL, AT) == Sent("maildir")
    await transport.close()
    (message,) = mailbox.Maildir(tmp_path / "mail", create=False)
    assert message["Message-ID"] == "<0193-1@acme.example>"
    assert message["From"] == "Acme <news@acme.example>"
    assert names(tmp_path / "mail" / "new") == ["0193-1"]
    assert names(tmp_path / "mail" / "tmp") == []


async def test_a_second_attempt_writes_the_same_file(tmp_path: Path) -> None:
    transport = MaildirMailer(tmp_path, "news@acme.example")
    await transport.send(MAIL, AT)
    await transport.send(MAIL, AT)
    (kept,) = (tmp_path / "new").iterdir()
    assert b"\r" not in kept.read_bytes()


async def test_only_the_owner_can_read_an_email(tmp_path: Path) -> None:
    await MaildirMailer(tmp_path / "mail", "news@acme.example").send(MAIL, AT)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "mail").rglob("*")}
    assert modes == {"tmp": 0o700, "new": 0o700, "cur": 0o700, "0193-1": 0o600}


async def test_a_header_that_could_become_two_is_refused(tmp_path: Path) -> None:
    transport = MaildirMailer(tmp_path, "news@acme.example")
    assert await transport.send(msgspec.structs.replace(MAIL, subject="a\nBcc: b@c"), AT) == Failed("invalid_header")
    assert await transport.send(msgspec.structs.replace(MAIL, address="nobody"), AT) == Failed("invalid_address")
    assert names(tmp_path) == []
