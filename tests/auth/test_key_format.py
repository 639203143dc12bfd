import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.auth.key_format import KINDS, RANDOM_BYTES, Kind, make, parse

chances = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)
kinds = st.sampled_from(KINDS)


@given(kinds, chances)
def test_a_generated_key_has_its_kind(kind: Kind, chance: bytes) -> None:
    assert parse(make(kind, "acme-1", chance)) == kind


@given(kinds, chances, st.data())
def test_one_changed_character_is_detected(kind: Kind, chance: bytes, data: st.DataObject) -> None:
    key = make(kind, "acme", chance)
    at = data.draw(st.integers(0, len(key) - 1))
    other = data.draw(st.sampled_from("aZ9_-é ").filter(lambda c: c != key[at]))
    assert parse(key[:at] + other + key[at + 1 :]) is None


def test_keys_carry_their_prefix_and_38_characters() -> None:
    chance = bytes(range(RANDOM_BYTES))
    assert {kind: make(kind, "acme", chance)[:-38] for kind in KINDS} == {
        "live": "sk_live_",
        "test": "sk_test_",
        "publishable": "pk_live_acme_",
        "workbench": "wb_",
    }


def test_random_keys_differ_over_their_whole_length() -> None:
    keys = {make("live", "", bytes([n]) * RANDOM_BYTES)[8:40] for n in range(256)}
    assert len(keys) == 256
    assert all(len({key[at] for key in keys}) > 20 for at in range(32))


@pytest.mark.parametrize(
    "text", ["", "sk_live_", "sk_live_" + "0" * 38, "pk_live_" + "a" * 38, "wb_" + "0" * 39, "sk_live_\n"]
)
def test_other_text_is_not_a_key(text: str) -> None:
    assert parse(text) is None
