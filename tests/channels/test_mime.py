"""Emails as bytes: parts and headers, and what may not become a header (docs/trust.md J8, J9)."""

import email
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import default
from typing import Any

import msgspec
import pytest

from api.channels.mime import AddressError, HeaderError, compose, plain_text, sender_address
from api.channels.outcome import Attachment, Delivery

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MAIL = Delivery(
    7, "0193-1", AT, "zoe@acme.example", "Hello", "Hi Zoë\n", unsubscribe_url="https://wb.example/u?token=abc"
)
SENDER = sender_address("Acme News <news@acme.example>")


def composed(**changes: Any) -> EmailMessage:
    mail = msgspec.structs.replace(MAIL, **changes)
    parsed = email.message_from_bytes(compose(mail, SENDER), policy=default)
    assert isinstance(parsed, EmailMessage)
    return parsed


def test_a_message_has_exactly_these_headers() -> None:
    message = composed()
    assert [(name, str(value)) for name, value in message.items()] == [
        ("From", "Acme News <news@acme.example>"),
        ("To", "zoe@acme.example"),
        ("Subject", "Hello"),
        ("Date", "Sat, 21 Nov 2026 12:00:00 +0000"),
        ("Message-ID", "<0193-1@acme.example>"),
        ("List-Unsubscribe", "<https://wb.example/u?token=abc>"),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
        ("Auto-Submitted", "auto-generated"),
        ("Content-Type", 'text/plain; charset="utf-8"'),
        ("Content-Transfer-Encoding", "quoted-printable"),
        ("MIME-Version", "1.0"),
    ]
    assert message.get_content() == "Hi Zoë\r\n"


def test_an_html_body_has_a_text_part_before_it() -> None:
    message = composed(body="<h1>Hi</h1><p>Zoë &amp; <a href='https://a.example'>all</a></p>", html=True)
    text, html = message.iter_parts()
    assert (message.get_content_type(), text.get_content_type(), html.get_content_type()) == (
        "multipart/alternative",
        "text/plain",
        "text/html",
    )
    assert text.get_content().replace("\r\n", "\n") == "Hi\n\nZoë & all (https://a.example)\n"
    assert "<h1>Hi</h1>" in html.get_content()


def test_no_boundary_of_an_email_with_an_attachment_is_a_prefix_of_another() -> None:
    message = composed(body="<p>Hi</p>", html=True, attachment=Attachment("page.html", "<p>Hi</p>"))
    boundaries = [part.get_boundary() for part in message.walk() if part.is_multipart()]
    assert boundaries == ["=_mixed_0193-1", "=_0193-1"]
    assert [part.get_content_type() for part in message.iter_parts()] == ["multipart/alternative", "text/html"]


def test_long_addresses_stay_in_one_piece() -> None:
    url = "https://workbench.acme.example/api/v1/unsubscribe?token=" + 54 * "a"
    recipient = 64 * "z" + "@" + 60 * "d" + ".example"
    content = compose(msgspec.structs.replace(MAIL, unsubscribe_url=url, address=recipient), SENDER).decode()
    assert f"\r\nList-Unsubscribe: <{url}>\r\n" in content
    assert f"\r\nTo: {recipient}\r\n" in content


def test_another_attempt_has_the_same_bytes() -> None:
    mail = msgspec.structs.replace(MAIL, body="<p>Hi</p>", html=True)
    assert compose(mail, SENDER) == compose(mail, SENDER)


@pytest.mark.parametrize(
    "subject", ["Grüße, Zoë 🎉", "1 =? 2", "a" * 900, "two  spaces", "comma, <angle> \"quote\" 'x'"]
)
def test_a_subject_is_read_back_unchanged(subject: str) -> None:
    assert composed(subject=subject)["Subject"] == subject


@pytest.mark.parametrize(
    "bad",
    [
        "\r\nBcc: v@x.example",
        "\nBcc: v",
        "\rBcc: v",
        "\x0bBcc: v",
        "\u2028Bcc: v",
        "\u2029",
        "\x85",
        "\x00",
        "\x1c",
        "\x0c",
        "=?utf-8?q?=0D=0ABcc:_v?=",
        "=?ISO-8859-1?B?QmNjOg==?=",
        "\ud800",
    ],
)
@pytest.mark.parametrize("field", ["subject", "address", "id", "unsubscribe_url"])
def test_text_that_could_become_another_header_is_rejected(field: str, bad: str) -> None:
    with pytest.raises(HeaderError):
        composed(**{field: getattr(MAIL, field) + bad})


def test_a_sender_that_could_become_another_header_is_refused() -> None:
    with pytest.raises(HeaderError):
        sender_address("Acme\r\nBcc: v@x.example <news@acme.example>")


@pytest.mark.parametrize(
    "address", ["", "zoe", "zoe@", "@acme.example", "a@b.example, c@d.example", "a@b@c", "zöe@b.example"]
)
def test_a_recipient_that_is_not_one_address_is_rejected(address: str) -> None:
    with pytest.raises(AddressError):
        composed(address=address)


def test_an_international_domain_is_written_in_ascii() -> None:
    assert composed(address="zoe@bücher.example")["To"] == "zoe@xn--bcher-kva.example"


@pytest.mark.parametrize("body", [".", "a\n.\nb", "a\r.\rb", "a\n.\r\nMAIL FROM:<x@y>", "x" * 5_000, "\x00"])
def test_every_line_of_a_body_is_short_and_ends_with_crlf(body: str) -> None:
    content = compose(msgspec.structs.replace(MAIL, body=body), SENDER)
    lines = content.split(b"\r\n")
    assert not any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines)
    assert max(map(len, lines)) <= 998


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a<p>b", "a\nb\n"),
        ("<style>p{}</style><script>x()</script>a &lt;b&gt;", "a <b>\n"),
        ("<ul><li>one</li><li>two</li></ul>", "one\n\ntwo\n"),
        ("a\n   b<br>c", "a b\nc\n"),
        ("<!-- hidden -->seen", "seen\n"),
    ],
)
def test_html_becomes_plain_text(html: str, text: str) -> None:
    assert plain_text(html) == text
