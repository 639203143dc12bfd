"""Addresses are returned in clear only for a key with `pii:read`, and never sealed."""

import pytest

ARROW = "application/vnd.apache.arrow.stream"


async def test_an_address_is_clear_or_masked(service):
    assert await service.pia.rows("SELECT email, email_domain FROM contacts") == [["ann@example.com", "example.com"]]
    assert await service.ann.rows("SELECT email, email_domain FROM contacts") == [["a•••@example.com", "example.com"]]


@pytest.mark.parametrize("accept", ["application/json", "text/csv", ARROW])
@pytest.mark.parametrize(
    "expression",
    [
        "email",
        "array_agg(email)",
        "jsonb_build_object('email', email)",
        "'<' || email || '>'",
        "row(email, 1)",
        "max(email)",
    ],
)
async def test_sealed_addresses_are_never_returned(service, accept, expression):
    response = await service.ann.post(f"SELECT {expression} AS x FROM contacts GROUP BY email", accept=accept)
    assert response.status_code == 200
    assert b"enc1_" not in response.content
    assert "a•••@example.com".encode() in response.content


@pytest.mark.parametrize("address", ["ann@example.com", "ANN@Example.com"])
async def test_a_parameter_that_is_an_address_finds_the_contact(service, address):
    statement = "SELECT external_id FROM contacts WHERE email = :address"
    assert await service.ann.rows(statement, {"address": address}) == [["canary_a"]]
    assert await service.ben.rows(statement, {"address": address}) == []
    many = "SELECT external_id FROM contacts WHERE email = ANY ($1)"
    assert await service.ann.rows(many, [[address, "other@example.com"]]) == [["canary_a"]]


async def test_an_address_in_the_statement_stays_text(service):
    assert await service.ann.rows("SELECT 'ann@example.com'") == [["ann@example.com"]]


async def test_text_that_looks_sealed_is_not_changed(service):
    assert await service.pia.rows("SELECT 'enc1_00ff'") == [["enc1_00ff"]]
