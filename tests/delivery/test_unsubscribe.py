"""Unsubscribe tokens: ours alone, and without the address."""

import pytest

from api.delivery.unsubscribe import Unsubscribed, make_token, make_url, read_token
from api.keyring import Keyring

KEYRING = Keyring("a secret of these tests")
WHO = Unsubscribed(7, KEYRING.of(7).digest("email", "zoe@acme.example"))


def test_a_token_says_whose_it_is() -> None:
    token = make_token(KEYRING, WHO)
    assert read_token(KEYRING, token) == WHO
    assert make_token(KEYRING, WHO) == token
    assert token.isascii()
    assert make_url("https://wb.example", KEYRING, WHO) == f"https://wb.example/api/v1/unsubscribe?token={token}"


@pytest.mark.parametrize("position", [0, 8, 20, 40, 53])
def test_a_token_with_another_letter_is_not_ours(position: int) -> None:
    token = make_token(KEYRING, WHO)
    other = "A" if token[position] != "A" else "B"
    assert read_token(KEYRING, token[:position] + other + token[position + 1 :]) is None


@pytest.mark.parametrize("token", ["", "x", "é", "AAAA" * 40, "=" * 54, "A" * 54, "../" * 18])
def test_nonsense_is_no_token(token: str) -> None:
    assert read_token(KEYRING, token) is None


def test_a_token_of_another_installation_is_not_ours() -> None:
    assert read_token(Keyring("another secret"), make_token(KEYRING, WHO)) is None
