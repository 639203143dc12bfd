"""What a contact gains from another, and what is left when that is taken back."""

from hypothesis import given
from hypothesis import strategies as st

from api.language.contact import MOST_ATTRIBUTES
from api.language.merging import Person, gain, identifiers_in, later, with_gain, without_gain

_WORDS = st.sampled_from(["a", "b", "c"])
_MAYBE = st.none() | _WORDS
_SETS = st.lists(_WORDS, unique=True).map(tuple)
_VALUES = st.sampled_from([0, 1, True, "1", "x", None])


@st.composite
def people(draw: st.DrawFn) -> Person:
    wallet, email = draw(_MAYBE), draw(_MAYBE)
    return Person(
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
def test_what_is_gained_and_taken_back_leaves_what_was(keep: Person, absorbed: Person) -> None:
    gained = gain(keep, absorbed).gained
    merged = with_gain(keep, gained)
    assert merged is not None
    rest = without_gain(merged, gained)
    assert (rest.person, rest.stays) == (keep, ())


@given(people(), people())
def test_nothing_the_contact_has_is_overwritten_and_nothing_is_forgotten(keep: Person, absorbed: Person) -> None:
    found = gain(keep, absorbed)
    merged = with_gain(keep, found.gained)
    assert merged is not None
    assert merged.attributes == {**absorbed.attributes, **keep.attributes}
    assert set(merged.tags) == {*keep.tags, *absorbed.tags}
    assert (keep.wallet or absorbed.wallet) == merged.wallet
    own = {*identifiers_in(keep), *identifiers_in(absorbed)}
    assert set(identifiers_in(merged)) == own
    assert set(found.hidden) <= {*identifiers_in(keep)}
    assert {*found.lost, *found.gained.attributes} <= {*absorbed.attributes}


def test_the_kinds_of_value_count() -> None:
    found = gain(Person(attributes={"n": 1, "same": 1}), Person(attributes={"n": True, "same": 1, "new": "x"}))
    assert (found.gained.attributes, found.lost) == ({"new": "x"}, {"n": True})


def test_an_attribute_with_another_value_since_stays() -> None:
    gained = Person(attributes={"plan": "pro", "city": "Rome"}, tags=("vip",))
    rest = without_gain(Person(attributes={"plan": "gold", "city": "Rome", "own": 1}, tags=("own", "vip")), gained)
    assert (rest.person.attributes, rest.person.tags, rest.stays) == ({"plan": "gold", "own": 1}, ("own",), ("plan",))


def test_two_halves_that_are_too_much_are_not_one() -> None:
    keep = Person(attributes={f"a{number}": 1 for number in range(MOST_ATTRIBUTES)})
    assert with_gain(keep, Person(attributes={"b": 1})) is None


def test_what_was_written_later() -> None:
    assert later({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == {"b": 3, "c": 4}
