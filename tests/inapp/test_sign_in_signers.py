"""Recovering the signer of a text: known keys, and malformed signatures."""

import pytest
from eth_keys.datatypes import PrivateKey

from api.inapp.sign_in import recover_signer
from tests.inapp.wallet import Wallet
from workbench.language.abi import checksum_address

WALLET = Wallet(b"\x01" * 32)
OTHER = Wallet(b"\x02" * 32)


def test_the_signer_of_a_known_signature_is_found() -> None:
    # web3.js documentation: eth.accounts.sign("Some data", …)
    signature = (
        "0xb91467e570a6466aa9e9876cbcd013baba02900b8979d43fe208a4a4f339f5fd"
        "6007e74cd82e037b800186422fc2da167c747ef045e5d18a5f5d4300f8e1a0291c"
    )
    assert recover_signer("Some data", signature) == "0x2c7536e3605d9c16a7a3d7b1898e529396a65c23"


def test_the_signer_of_any_text_is_found() -> None:
    assert recover_signer("grüße\n", WALLET.sign("grüße\n")) == WALLET.address


def test_parity_may_be_written_as_0_and_1() -> None:
    signature = WALLET.sign("hello")
    short = signature[:-2] + ("00" if signature.endswith("1b") else "01")
    assert recover_signer("hello", short) == WALLET.address


def test_another_text_has_another_signer() -> None:
    assert recover_signer("hello!", WALLET.sign("hello")) != WALLET.address


@pytest.mark.parametrize(
    "signature",
    ["", "0x", "0x" + "0" * 130, "0x" + "f" * 130, "0x" + "f" * 128 + "1b", WALLET.sign("a")[2:],
     WALLET.sign("a") + "00", WALLET.sign("a")[:-2] + "1d", "0x" + "é" * 130],
)  # fmt: skip
def test_a_malformed_signature_has_no_signer(signature: str) -> None:
    assert recover_signer("a", signature) is None


def test_addresses_are_shown_in_mixed_case() -> None:
    assert (
        checksum_address("0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed") == "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
    )
    assert PrivateKey(b"\x01" * 32).public_key.to_checksum_address() == checksum_address(WALLET.address)
