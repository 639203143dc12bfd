"""A merge adds missing values to a contact, and undoing it restores the contact."""

from hypothesis import assume, given
from hypothesis import strategies as st

from workbench.language.contact import (
    MAX_CONTACT_ATTRIBUTES,
    ContactRecord,
    apply_merge,
    attributes_since_merge,
    identifier_names,
    plan_merge,
    undo_merge,
)

_WORDS = st.sampled_from(["a", "b", "c"])
_MAYBE = st.none() | _WORDS
_SETS = st.lists(_WORDS, unique=True).map(tuple)
_VALUES = st.sampled_from([0, 1, True, "1", "x", None])


@st.composite
def people(draw: st.DrawFn) -> ContactRecord:
    wallet, email = draw(_MAYBE), draw(_MAYBE)
    return ContactRecord(
        wallet,
        wallet and wallet.upper(),
        email,
        email and f"{email}.example",
        draw(_MAYBE),
        draw(st.dictionaries(_WORDS, _VALUES)),
        draw(_SETS),
        draw(_SETS),
        draw(_SETS),
    )


@given(people(), people())
def test_a_merge_that_is_undone_restores_the_contact(keep: ContactRecord, absorbed: ContactRecord) -> None:
    for name in ("wallet", "email", "external_id"):
        assume(getattr(keep, name) is None or getattr(keep, name) != getattr(absorbed, name))
    gained = plan_merge(keep, absorbed).gained
    merged = apply_merge(keep, gained)
    assert merged is not None
    rest = undo_merge(merged, absorbed, gained)
    assert (rest.contact, rest.kept_attributes) == (keep, ())


@given(people(), people())
def test_a_merge_overwrites_nothing_and_loses_nothing(keep: ContactRecord, absorbed: ContactRecord) -> None:
    plan = plan_merge(keep, absorbed)
    merged = apply_merge(keep, plan.gained)
    assert merged is not None
    assert merged.attributes == {**absorbed.attributes, **keep.attributes}
    assert set(merged.tags) == {*keep.tags, *absorbed.tags}
    assert (keep.wallet or absorbed.wallet) == merged.wallet
    own = {*identifier_names(keep), *identifier_names(absorbed)}
    assert set(identifier_names(merged)) == own
    assert set(plan.hidden) <= {*identifier_names(keep)}
    assert {*plan.lost, *plan.gained.attributes} <= {*absorbed.attributes}


def test_the_kinds_of_value_count() -> None:
    plan = plan_merge(
        ContactRecord(attributes={"n": 1, "same": 1}), ContactRecord(attributes={"n": True, "same": 1, "new": "x"})
    )
    assert (plan.gained.attributes, plan.lost) == ({"new": "x"}, {"n": True})


def test_an_attribute_that_changed_since_the_merge_stays() -> None:
    gained = ContactRecord(attributes={"plan": "pro", "city": "Rome"}, tags=("vip",))
    keep = ContactRecord(attributes={"plan": "gold", "city": "Rome", "own": 1}, tags=("own", "vip"))
    rest = undo_merge(keep, gained, gained)
    assert (rest.contact.attributes, rest.contact.tags, rest.kept_attributes) == (
        {"plan": "gold", "own": 1},
        ("own",),
        ("plan",),
    )


def test_an_email_of_the_absorbed_contact_that_came_with_the_wallet_goes_back() -> None:
    keep = ContactRecord("w", "W", "b@x.io", "x.io")
    absorbed = ContactRecord(email="a@x.io", email_domain="x.io")
    rest = undo_merge(apply_merge(keep, ContactRecord()) or keep, absorbed, ContactRecord())
    assert rest.contact == keep
    since = ContactRecord("w", "W", "a@x.io", "x.io")
    assert undo_merge(since, absorbed, ContactRecord()).contact == ContactRecord("w", "W")


def test_a_merge_over_the_attribute_limit_is_refused() -> None:
    keep = ContactRecord(attributes={f"a{number}": 1 for number in range(MAX_CONTACT_ATTRIBUTES)})
    assert apply_merge(keep, ContactRecord(attributes={"b": 1})) is None


def test_attributes_written_after_the_merge_are_found() -> None:
    assert attributes_since_merge({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == {"b": 3, "c": 4}


def test_a_merge_hides_what_both_have_and_gains_the_rest() -> None:
    keep, absorbed = (
        ContactRecord(wallet="0xa", external_id="u"),
        ContactRecord(wallet="0xb", email="a@b.co", external_id="u"),
    )
    plan = plan_merge(keep, absorbed)
    assert (plan.hidden, plan.gained) == (("walletAddress",), ContactRecord(email="a@b.co"))
