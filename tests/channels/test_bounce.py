"""Reports of mail servers are read if they return the headers of an email that this installation sent."""

import time

import pytest

from api.channels.bounce import Bounce, read_bounce
from api.crypto import Keyring
from tests.channels.reports import bounce, complaint, email_to

KEYRING = Keyring("a secret of these tests")
ID = "0193a1b2-0000-8000-8000-000000000001"
SENT = email_to(KEYRING, 7, ID, "zoe@example.com")
DIGESTS = KEYRING.of(7).digests("email", "zoe@example.com")


@pytest.mark.parametrize("returned", ["text/rfc822-headers", "message/rfc822", "message/global"])
def test_a_bounce_names_the_address_the_email_and_the_status(returned: str) -> None:
    expected = Bounce(org_id=7, feedback="bounced", address_digests=DIGESTS, message_id=ID, status="5.1.1")
    assert read_bounce(KEYRING, bounce(SENT, returned=returned)) == expected
    assert expected.is_permanent


@pytest.mark.parametrize(
    ("status", "read", "is_permanent", "closes_address"),
    [
        ("4.2.2", "4.2.2", False, False),
        ("5.7.1 (spam)", "5.7.1", True, False),
        ("5.2.2", "5.2.2", True, False),
        ("5.3.4", "5.3.4", True, False),
        ("5.1.8", "5.1.8", True, False),
        ("5.2.1", "5.2.1", True, True),
        ("5.1.10", "5.1.10", True, True),
        ("?", None, True, True),
    ],
)
def test_a_status_of_class_5_is_permanent_and_may_be_about_the_address(
    status: str, read: str | None, is_permanent: bool, closes_address: bool
) -> None:
    found = read_bounce(KEYRING, bounce(SENT, status))
    assert found is not None
    assert (found.status, found.is_permanent, found.closes_address) == (read, is_permanent, closes_address)


def test_a_complaint_is_read_and_is_permanent() -> None:
    found = read_bounce(KEYRING, complaint(SENT))
    assert found == Bounce(org_id=7, feedback="complained", address_digests=DIGESTS, message_id=ID)
    assert found.is_permanent


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\x00",
        SENT,
        bounce(SENT, action="delayed"),
        bounce(SENT, action="delivered"),
        complaint(SENT, "not-spam"),
        bounce(SENT).replace(b"List-Unsubscribe: ", b"X-Removed: "),
        bounce(SENT).replace(b"multipart/report", b"multipart/mixed"),
        bounce(SENT)[:900],
        b"Content-Type: multipart/report; charset*=us-ascii''utf-8\n\n\xff",
        b"Content-Type: multipart/report; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\n--b--\n",
    ],
)
def test_other_emails_are_no_reports(raw: bytes) -> None:
    assert read_bounce(KEYRING, raw) is None


def test_a_report_about_an_email_of_another_installation_is_ignored() -> None:
    assert read_bounce(Keyring("another secret"), bounce(SENT)) is None


@pytest.mark.parametrize("depth", [300, 3_000])
def test_an_email_with_many_nested_parts_is_ignored_at_once(depth: int) -> None:
    nested = b"".join(b"Content-Type: multipart/report; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(depth))
    began = time.thread_time()
    assert read_bounce(KEYRING, nested + b"\n" * 500_000) is None
    assert time.thread_time() - began < 1


def test_a_report_that_returns_a_large_email_is_read() -> None:
    assert read_bounce(KEYRING, bounce(SENT).replace(b"Hello", b"Hello\r\n" * 100_000)) == read_bounce(
        KEYRING, bounce(SENT)
    )
