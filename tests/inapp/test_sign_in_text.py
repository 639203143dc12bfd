"""The text of Sign-In with Ethereum (EIP-4361): valid messages, and invalid ones that look similar."""

from datetime import UTC, datetime, timedelta

import pytest

from api.inapp.sign_in import SignIn, format_message, parse_message

FULL = SignIn(
    scheme="https",
    domain="app.example.com:8443",
    address="0xC02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2",
    statement="I accept the terms: https://example.com/tos",
    uri="https://app.example.com:8443/login?next=%2F",
    chain_id=137,
    nonce="32891756ab",
    issued_at=datetime(2026, 3, 30, 16, 25, 24, tzinfo=UTC),
    expires_at=datetime(2026, 3, 30, 16, 30, 24, 500_000, tzinfo=UTC),
    not_before=datetime(2026, 3, 30, 16, 25, tzinfo=UTC),
    request_id="some-id",
    resources=(
        "ipfs://bafybeiemxf5abjwjbikoz4mcb3a3dla6ual3jsgpdr4cjr3oz3evfyavhq/",
        "https://example.com/my-claim.json",
    ),
)
TEXT = """\
https://app.example.com:8443 wants you to sign in with your Ethereum account:
0xC02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2

I accept the terms: https://example.com/tos

URI: https://app.example.com:8443/login?next=%2F
Version: 1
Chain ID: 137
Nonce: 32891756ab
Issued At: 2026-03-30T16:25:24.000Z
Expiration Time: 2026-03-30T16:30:24.500Z
Not Before: 2026-03-30T16:25:00.000Z
Request ID: some-id
Resources:
- ipfs://bafybeiemxf5abjwjbikoz4mcb3a3dla6ual3jsgpdr4cjr3oz3evfyavhq/
- https://example.com/my-claim.json"""
SHORT = SignIn(
    domain="localhost",
    address=FULL.address,
    uri="http://localhost",
    chain_id=1,
    nonce="12345678",
    issued_at=FULL.issued_at,
)


def test_a_message_has_the_form_of_the_standard() -> None:
    assert format_message(FULL) == TEXT


@pytest.mark.parametrize("message", [FULL, SHORT])
def test_a_formatted_message_is_parsed_again(message: SignIn) -> None:
    assert parse_message(format_message(message)) == message


def test_without_a_statement_there_are_two_empty_lines() -> None:
    assert format_message(SHORT).startswith(
        f"localhost wants you to sign in with your Ethereum account:\n{SHORT.address}\n\n\nURI: http://localhost\n"
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-03-30T16:25:24Z", FULL.issued_at),
        ("2026-03-30t18:25:24+02:00", FULL.issued_at),
        ("2026-03-30T16:25:24.123456789Z", FULL.issued_at.replace(microsecond=123_456)),
    ],
)
def test_dates_may_have_any_form_of_rfc_3339(text: str, meant: datetime) -> None:
    message = parse_message(format_message(SHORT).replace("2026-03-30T16:25:24.000Z", text))
    assert message is not None
    assert message.issued_at == meant


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Version: 1", "Version: 2"),
        ("Version: 1\n", ""),
        ("Version: 1\nChain ID: 137", "Chain ID: 137\nVersion: 1"),
        ("Chain ID: 137", "Chain ID: 0x89"),
        ("Chain ID: 137\n", ""),
        ("Nonce: 32891756ab", "Nonce: 1234567"),
        ("Nonce: 32891756ab", "Nonce: 1234 5678"),
        ("Nonce: 32891756ab\n", ""),
        ("Issued At: 2026-03-30T16:25:24.000Z\n", ""),
        ("2026-03-30T16:25:24.000Z", "2026-03-30 16:25:24Z"),
        ("2026-03-30T16:25:24.000Z", "2026-02-30T16:25:24Z"),
        ("2026-03-30T16:25:24.000Z", "2026-03-30T16:25:24"),
        ("2026-03-30T16:25:24.000Z", "Wed, 30 Mar 2026 16:25:24 GMT"),
        ("Expiration Time: 2026-03-30T16:30:24.500Z", "Expiration Time: never"),
        ("\nURI: ", "\n\nURI: "),
        ("\n\nI accept", "\nI accept"),
        ("\n\nI accept", "\n\n\nI accept"),
        ("URI: https://app.example.com:8443/login?next=%2F", "URI: no address"),
        ("URI: https://app.example.com:8443/login?next=%2F\n", ""),
        ("sign in with", "log in with"),
        ("https://app.example.com:8443 wants", "wants"),
        ("https://app.example.com:8443 wants", "https://app.example.com:8443/path wants"),
        ("https://app.example.com:8443 wants", "https://user@evil.example@ wants nothing and"),
        ("0xC02aaA39", "C02aaA39"),
        ("083C756Cc2", "083C756Cc"),
        ("083C756Cc2", "083C756CcZ"),
        ("I accept the terms", "I accept\nthe terms"),
        ("I accept", "I äccept"),
        ("Request ID: some-id", "Request ID: some id"),
        ("- https://example.com/my-claim.json", "https://example.com/my-claim.json"),
        ("- https://example.com/my-claim.json", "- my claim"),
        ("\n", "\r\n"),
        ("my-claim.json", "my-claim.json\n"),
        (
            "Not Before: 2026-03-30T16:25:00.000Z\nRequest ID: some-id",
            "Request ID: some-id\nNot Before: 2026-03-30T16:25:00Z",
        ),
    ],
)
def test_text_that_deviates_from_the_grammar_is_not_a_message(old: str, new: str) -> None:
    assert old in TEXT
    assert parse_message(TEXT.replace(old, new)) is None


@pytest.mark.parametrize(
    ("late", "holds"), [(timedelta(0), True), (timedelta(minutes=-6), False), (timedelta(minutes=6), False)]
)
def test_a_text_is_valid_only_around_the_time_it_was_issued(late: timedelta, holds: bool) -> None:
    assert SHORT.is_valid_at(SHORT.issued_at + late) is holds


def test_a_text_is_valid_within_its_own_bounds() -> None:
    assert FULL.expires_at is not None
    assert FULL.not_before is not None
    assert FULL.is_valid_at(FULL.not_before)
    assert not FULL.is_valid_at(FULL.not_before - timedelta(seconds=1))
    assert not FULL.is_valid_at(FULL.expires_at)
