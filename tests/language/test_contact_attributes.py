"""Attributes beyond the bounds of a contact are left out, in simulations as in the store."""

from decimal import Decimal

from workbench.language.contact import (
    MAX_CONTACT_ATTRIBUTES,
    MAX_CONTACT_ATTRIBUTES_BYTES,
    TOO_LARGE_ATTRIBUTES,
    TOO_MANY_ATTRIBUTES,
    ContactState,
    apply_event,
    exceeds_attribute_limits,
    fit_attributes,
)
from workbench.language.event import Identifiers
from workbench.language.problem import Problem


def test_attributes_that_do_not_fit_are_left_out_in_their_order() -> None:
    full = {f"a{number}": 1 for number in range(MAX_CONTACT_ATTRIBUTES - 1)}
    kept, problems = fit_attributes(full, {"b": 1, "c": 1, "a0": 2})
    assert (kept, problems) == ({"b": 1, "a0": 2}, (Problem("attributes.c", TOO_MANY_ATTRIBUTES),))
    simulated = apply_event(ContactState("id", attributes=full), Identifiers(), {"b": 1, "c": 1, "a0": 2})
    assert simulated.attributes == {**full, "b": 1, "a0": 2}


def test_a_value_grows_while_there_is_room() -> None:
    large = {f"a{number}": "x" * 1_000 for number in range(259)}
    assert not exceeds_attribute_limits(large)
    assert fit_attributes(large, {"a0": "x" * 1_024, "b": "x" * 1_000, "a1": ""}) == (
        {"a0": "x" * 1_024, "a1": ""},
        (Problem("attributes.b", TOO_LARGE_ATTRIBUTES),),
    )


def test_a_number_counts_with_the_digits_that_postgres_writes() -> None:
    assert exceeds_attribute_limits({f"a{number}": Decimal("1e-300") for number in range(900)})
    assert not exceeds_attribute_limits({f"a{number}": Decimal("0.1") for number in range(900)})


def test_a_contact_keeps_attributes_up_to_their_number_and_size() -> None:
    many = {f"a{n:03}": n for n in range(MAX_CONTACT_ATTRIBUTES)}
    assert not exceeds_attribute_limits(many)
    assert exceeds_attribute_limits(many | {"more": 1})
    full = {"a": "x" * (MAX_CONTACT_ATTRIBUTES_BYTES - 9)}  # `{"a": ""}` has nine bytes more
    assert not exceeds_attribute_limits(full)
    assert exceeds_attribute_limits({"a": full["a"] + "x"})
    assert fit_attributes({}, full) == (full, ())
    half = "x" * (MAX_CONTACT_ATTRIBUTES_BYTES // 2)
    too_large = Problem("attributes.b", "left out: a contact has at most 256 KB of attributes")
    assert fit_attributes({}, {"a": half, "b": half, "c": 1}) == ({"a": half, "c": 1}, (too_large,))
