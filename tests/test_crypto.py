"""Chains of secrets: at each step of a rotation, processes can read what those of the steps beside it write."""

from itertools import pairwise

import pytest

from api.channels.signing import Unsubscription, read_unsubscribe_token, unsubscribe_token
from api.crypto import ChainError, Keyring, next_chain, read_chain

OLD, NEW = "the old secret of tests", "the new secret of tests"


def parts() -> list[str]:
    """Return the texts of a whole rotation."""
    texts = [OLD]
    while len(texts) < 4:
        texts.append(next_chain(texts[-1], NEW))
    return texts


def test_a_rotation_has_three_phases() -> None:
    assert [text.replace(OLD, "old").replace(NEW, "new").split("retired:")[0] for text in parts()] == [
        "old",
        "old,next:new",
        "former:old,new",
        "",
    ]
    assert [read_chain(text).part for text in parts()] == ["settled", "next", "former", "settled"]
    assert OLD not in parts()[-1]


def test_processes_in_adjacent_phases_find_what_the_other_writes() -> None:
    rings = [Keyring(text).of(7) for text in parts()]
    for before, after in pairwise(rings):
        assert before.digest("email", "ann@example.com") in after.digests("email", "ann@example.com") or (
            after.digest("email", "ann@example.com") in before.digests("email", "ann@example.com")
        )
        assert set(Keyring(OLD).api_key_hashes("sk")) <= set(Keyring(parts()[1]).api_key_hashes("sk"))
    assert rings[0].digest("email", "a") == rings[1].digest("email", "a") != rings[2].digest("email", "a")
    assert (
        rings[2].digest("email", "a")
        == rings[3].digest("email", "a")
        == rings[3].digests_from(rings[0].digest("email", "a"))
    )


@pytest.mark.parametrize(
    "text", ["next:a,b", "a,b,next:c", "former:a", "a,former:b", "retired:xyz,b", "a,next:", "former:a,b,next:c"]
)
def test_an_invalid_chain_of_secrets_is_refused(text: str) -> None:
    with pytest.raises(ChainError):
        read_chain(text)


def test_a_secret_may_contain_any_characters() -> None:
    assert read_chain("a,b:c,d").part == "settled"


def test_emails_are_read_while_their_secret_is_known() -> None:
    old, begun, former, over = [Keyring(text).of(7) for text in parts()]
    sealed = old.seal_email("ann@example.com")
    assert begun.seal_email("ann@example.com") == sealed
    assert former.open_email(sealed) == "ann@example.com"
    assert former.reseal(f'{{"a":"{sealed}"}}') == f'{{"a":"{over.seal_email("ann@example.com")}"}}'
    assert begun.open_email(over.seal_email("ann@example.com")) == "ann@example.com"
    with pytest.raises(ValueError, match="not an email sealed"):
        over.open_email(sealed)


def test_an_unsubscribe_link_in_an_old_email_still_works() -> None:
    for before, after in pairwise(map(Keyring, parts())):
        digest = before.of(7).digest("email", "ann@example.com")
        read = read_unsubscribe_token(after, unsubscribe_token(before, Unsubscription(7, digest)))
        assert read is not None
        assert read.address_digest[:32] == after.of(7).digest("email", "ann@example.com")


def test_sessions_of_both_secrets_are_valid_while_both_are_configured() -> None:
    old, _, former, over = map(Keyring, parts())
    mac = old.inapp_session_mac(b"session")
    assert (former.is_inapp_session_mac(mac, b"session"), over.is_inapp_session_mac(mac, b"session")) == (True, False)


def test_keyless_events_are_the_same_under_every_secret() -> None:
    assert len({Keyring(text).of(7).derive_key("deposit", "0x", None, "u1") for text in parts()}) == 1
    assert len({Keyring(text).direct_role(7) for text in parts()}) == 1


def test_a_second_rotation_follows_the_first() -> None:
    text = parts()[-1]
    for _ in range(3):
        text = next_chain(text, "a third secret of tests")
    chain = read_chain(text)
    assert ([generation.root is None for generation in chain.generations], chain.current.number) == (
        [True, True, False],
        3,
    )
    keys = Keyring(text).of(7)
    assert keys.digest("email", "a") == keys.digests_from(Keyring(OLD).of(7).digest("email", "a"))
