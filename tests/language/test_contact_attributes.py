"""Attributes beyond the bounds of a contact are left out, in simulations as in the store."""

from decimal import Decimal

from workbench.language.contact import (
    MAX_CONTACT_ATTRIBUTES,
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
