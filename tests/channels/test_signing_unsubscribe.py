"""Unsubscribe tokens: they cannot be forged, and do not contain the address."""

import pytest

from api.channels.signing import Unsubscription, read_unsubscribe_token, unsubscribe_token, unsubscribe_url
from api.crypto import Keyring

KEYRING = Keyring("a secret of these tests")
UNSUBSCRIPTION = Unsubscription(7, KEYRING.of(7).digest("email", "zoe@acme.example"))


def test_a_token_contains_its_organization_and_address() -> None:
    token = unsubscribe_token(KEYRING, UNSUBSCRIPTION)
    assert read_unsubscribe_token(KEYRING, token) == UNSUBSCRIPTION
    assert unsubscribe_token(KEYRING, UNSUBSCRIPTION) == token
    assert token.isascii()
    assert (
        unsubscribe_url("https://wb.example", KEYRING, UNSUBSCRIPTION)
        == f"https://wb.example/api/v1/unsubscribe?token={token}"
    )


@pytest.mark.parametrize("position", [0, 8, 20, 40, 53])
def test_a_token_with_a_changed_letter_is_rejected(position: int) -> None:
    token = unsubscribe_token(KEYRING, UNSUBSCRIPTION)
    other = "A" if token[position] != "A" else "B"
    assert read_unsubscribe_token(KEYRING, token[:position] + other + token[position + 1 :]) is None


@pytest.mark.parametrize("token", ["", "x", "é", "AAAA" * 40, "=" * 54, "A" * 54, "../" * 18])
def test_a_malformed_token_is_rejected(token: str) -> None:
    assert read_unsubscribe_token(KEYRING, token) is None


def test_a_token_of_another_installation_is_rejected() -> None:
    assert read_unsubscribe_token(Keyring("another secret"), unsubscribe_token(KEYRING, UNSUBSCRIPTION)) is None
