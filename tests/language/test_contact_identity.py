"""Identifiers select the contact of an event (docs/contract.md 4.5 and docs/trust.md H1-H4)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.language.contact import (
    Conflict,
    ContactState,
    IdentifierKey,
    IdentifierKind,
    Resolution,
    apply_event,
    identifier_values,
    resolve_identity,
)
from workbench.language.event import Identifiers

WALLET, EMAIL, EXTERNAL = (IdentifierKind.WALLET, "w"), (IdentifierKind.EMAIL, "e"), (IdentifierKind.EXTERNAL_ID, "x")
OTHER_EMAIL = (IdentifierKind.EMAIL, "e2")


def contact_kinds(**kinds: set[IdentifierKind]) -> dict[str, frozenset[IdentifierKind]]:
    return {contact: frozenset(kind_set) for contact, kind_set in kinds.items()}


def test_unknown_identifiers_are_a_new_contact() -> None:
    assert resolve_identity((EXTERNAL, WALLET), {}, {}) == Resolution(None, (WALLET, EXTERNAL))


def test_h4_a_wallet_is_enough_for_a_contact() -> None:
    assert resolve_identity((WALLET,), {}, {}) == Resolution(None, (WALLET,))


def test_the_first_match_wins_in_the_order_wallet_email_external_id() -> None:
    owners = {WALLET: "a", EMAIL: "b", EXTERNAL: "c"}
    kinds = contact_kinds(a={IdentifierKind.WALLET}, b={IdentifierKind.EMAIL}, c={IdentifierKind.EXTERNAL_ID})
    assert resolve_identity((EXTERNAL, EMAIL, WALLET), owners, kinds).contact_id == "a"
    assert resolve_identity((EXTERNAL, EMAIL), owners, kinds).contact_id == "b"
    assert resolve_identity((EXTERNAL,), owners, kinds).contact_id == "c"


def test_h1_an_email_moves_to_the_contact_of_the_wallet_sent_with_it() -> None:
    resolution = resolve_identity(
        (WALLET, EMAIL), {WALLET: "a", EMAIL: "b"}, contact_kinds(a={IdentifierKind.WALLET}, b={IdentifierKind.EMAIL})
    )
    assert resolution == Resolution("a", (EMAIL,), (Conflict(EMAIL, "moved", "b"),))


def test_h2_an_email_with_a_matching_wallet_replaces_the_contacts_email() -> None:
    resolution = resolve_identity(
        (WALLET, EMAIL), {WALLET: "a"}, contact_kinds(a={IdentifierKind.WALLET, IdentifierKind.EMAIL})
    )
    assert resolution == Resolution("a", (EMAIL,), (Conflict(EMAIL, "replaced", None),))


def test_h2_a_moved_email_that_replaces_one_is_two_conflicts() -> None:
    kinds = contact_kinds(a={IdentifierKind.WALLET, IdentifierKind.EMAIL}, b={IdentifierKind.EMAIL})
    resolution = resolve_identity((WALLET, EMAIL), {WALLET: "a", EMAIL: "b"}, kinds)
    assert resolution == Resolution("a", (EMAIL,), (Conflict(EMAIL, "moved", "b"), Conflict(EMAIL, "replaced", None)))


def test_h3_an_external_id_is_not_overwritten() -> None:
    resolution = resolve_identity(
        (WALLET, EXTERNAL), {WALLET: "a"}, contact_kinds(a={IdentifierKind.WALLET, IdentifierKind.EXTERNAL_ID})
    )
    assert resolution == Resolution("a", (), (Conflict(EXTERNAL, "kept", None),))


def test_an_external_id_of_another_contact_is_left_there() -> None:
    owners = {WALLET: "a", EXTERNAL: "b"}
    resolution = resolve_identity(
        (WALLET, EXTERNAL), owners, contact_kinds(a={IdentifierKind.WALLET}, b={IdentifierKind.EXTERNAL_ID})
    )
    assert resolution == Resolution("a", (), (Conflict(EXTERNAL, "left", "b"),))


def test_a_new_wallet_does_not_replace_that_of_the_contact_its_email_matched() -> None:
    resolution = resolve_identity(
        (WALLET, EMAIL), {EMAIL: "a"}, contact_kinds(a={IdentifierKind.EMAIL, IdentifierKind.WALLET})
    )
    assert resolution == Resolution("a", (), (Conflict(WALLET, "kept", None),))


def test_another_email_with_a_matching_external_id_is_not_added() -> None:
    resolution = resolve_identity(
        (OTHER_EMAIL, EXTERNAL), {EXTERNAL: "a"}, contact_kinds(a={IdentifierKind.EMAIL, IdentifierKind.EXTERNAL_ID})
    )
    assert resolution == Resolution("a", (), (Conflict(OTHER_EMAIL, "kept", None),))


def test_an_email_that_was_replaced_is_stored_again_with_the_wallet_or_where_there_is_none() -> None:
    owners, both = {WALLET: "a", EMAIL: "a"}, contact_kinds(a={IdentifierKind.WALLET, IdentifierKind.EMAIL})
    stored = Resolution("a", (EMAIL,), (Conflict(EMAIL, "replaced", None),))
    assert resolve_identity((WALLET, EMAIL), owners, both, [EMAIL]) == stored
    assert resolve_identity((EMAIL,), owners, both, [EMAIL]) == Resolution("a")
    assert resolve_identity((EMAIL,), owners, contact_kinds(a=set()), [EMAIL]) == Resolution("a", (EMAIL,))


def test_missing_identifiers_are_added() -> None:
    resolution = resolve_identity((WALLET, EMAIL, EXTERNAL), {EMAIL: "a"}, contact_kinds(a={IdentifierKind.EMAIL}))
    assert resolution == Resolution("a", (WALLET, EXTERNAL))


def test_identifiers_that_the_contact_has_change_nothing() -> None:
    owners = {WALLET: "a", EMAIL: "a"}
    kinds = contact_kinds(a={IdentifierKind.WALLET, IdentifierKind.EMAIL})
    assert resolve_identity((WALLET, EMAIL), owners, kinds) == Resolution("a", (), ())


keys = st.sampled_from([(kind, name) for kind in IdentifierKind for name in "pqr"])
arrivals = st.lists(st.lists(keys, min_size=1, max_size=3, unique_by=lambda key: key[0]).map(tuple), max_size=25)


@given(arrivals)
def test_an_identifier_has_one_owner_and_the_first_match_wins(events: list[tuple[IdentifierKey, ...]]) -> None:
    owners: dict[IdentifierKey, str] = {}
    kinds: dict[str, frozenset[IdentifierKind]] = {}
    for number, sent in enumerate(events):
        before = dict(owners)
        resolution = resolve_identity(sent, before, kinds)
        contact = resolution.contact_id or f"c{number}"
        owners.update(dict.fromkeys(resolution.gained, contact))
        kinds[contact] = kinds.get(contact, frozenset()) | {key[0] for key in resolution.gained}
        matched = [before[key] for key in sorted(sent) if key in before]
        assert contact == (matched[0] if matched else f"c{number}")
        assert set(resolution.gained) <= set(sent)
        assert all(before.get(key) != contact for key in resolution.gained)
        assert all(key in owners for key in sent if not _was_kept(key, resolution))
        assert _only_emails_moved(resolution, before, contact)


@given(arrivals)
def test_the_same_event_again_changes_nothing(events: list[tuple[IdentifierKey, ...]]) -> None:
    owners: dict[IdentifierKey, str] = {}
    kinds: dict[str, frozenset[IdentifierKind]] = {}
    for number, sent in enumerate(events):
        for _ in range(2):
            resolution = resolve_identity(sent, owners, kinds)
            contact = resolution.contact_id or f"c{number}"
            owners.update(dict.fromkeys(resolution.gained, contact))
            kinds[contact] = kinds.get(contact, frozenset()) | {key[0] for key in resolution.gained}
        again = resolve_identity(sent, owners, kinds)
        assert again.contact_id is not None
        assert again.gained == ()


def _was_kept(key: IdentifierKey, resolution: Resolution) -> bool:
    return any(conflict.key == key and conflict.outcome == "kept" for conflict in resolution.conflicts)


def _only_emails_moved(resolution: Resolution, before: dict[IdentifierKey, str], contact: str) -> bool:
    taken = {key for key in resolution.gained if before.get(key) not in (None, contact)}
    moved = {conflict.key for conflict in resolution.conflicts if conflict.outcome == "moved"}
    return taken == moved and all(key[0] is IdentifierKind.EMAIL for key in moved)


OWN = ContactState("c", Identifiers("0xa"))


@pytest.mark.parametrize(
    ("sent", "owners", "identifiers"),
    [
        (Identifiers("0xa", "a@b.co", "u"), {}, Identifiers("0xa", "a@b.co", "u")),
        (Identifiers("0xa", "a@b.co"), {(IdentifierKind.EMAIL, "a@b.co"): "d"}, Identifiers("0xa", "a@b.co")),
        (Identifiers(None, "a@b.co", "u"), {(IdentifierKind.EMAIL, "a@b.co"): "d"}, Identifiers("0xa", None, "u")),
        (Identifiers(None, "a@b.co", "u"), {(IdentifierKind.EMAIL, "a@b.co"): "c"}, Identifiers("0xa", "a@b.co", "u")),
        (Identifiers(None, None, "u"), {(IdentifierKind.EXTERNAL_ID, "u"): "d"}, Identifiers("0xa")),
        (
            Identifiers("0xb", "a@b.co"),
            {(IdentifierKind.WALLET, "0xb"): "c", (IdentifierKind.EMAIL, "a@b.co"): "d"},
            Identifiers("0xa", "a@b.co"),
        ),
        (
            Identifiers("0xb", "a@b.co"),
            {(IdentifierKind.WALLET, "0xb"): "d", (IdentifierKind.EMAIL, "a@b.co"): "d"},
            Identifiers("0xa"),
        ),
    ],
)
def test_an_event_adds_the_identifiers_that_belong_to_no_other_contact(
    sent: Identifiers, owners: Any, identifiers: Identifiers
) -> None:
    assert apply_event(OWN, sent, {}, owners).identifiers == identifiers


def test_the_identifiers_that_were_sent() -> None:
    assert identifier_values(Identifiers("0xa", None, "u")) == [
        (IdentifierKind.WALLET, "0xa"),
        (IdentifierKind.EXTERNAL_ID, "u"),
    ]
