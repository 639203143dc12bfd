"""Texts of messages for somebody who may not see addresses: a text is told, or the template that an address went into."""

import pytest

from api.language.action import Action, Exit, SendEmail, SendInapp, SendWebhook
from api.language.unfilled import Texts, unfilled


@pytest.mark.parametrize(
    ("template", "tells"),
    [
        ("Hello {{ contact.tier }}", False),
        ("Hello {{ payload.email }}", False),  # what an event carried is in its payload for everybody
        ("{% for tag in contact.tags %}{{ tag }}{% endfor %}", False),
        ("{{ contact.email | urlencode }}", True),
        ("{{ contact['email'] }}", True),
        ("{{ email | replace('@', ' at ') }}", True),
        ("{{ contact }}", True),
        ("{{ contact[payload.key] }}", True),
        ("{% for each in [contact] %}{{ each.email }}{% endfor %}", True),
        ("{% if contact.tier %}{{ contact.email }}{% endif %}", True),
    ],
)
def test_a_text_is_told_unless_its_template_looks_at_an_address(template: str, tells: bool) -> None:
    told = unfilled(SendInapp(template, "plain"), Texts("filled in", "plain"))
    assert told == Texts(template if tells else "filled in", "plain")
    assert unfilled(SendEmail("plain", template), Texts("plain", "filled in")).body == told.subject


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"a": ["{{ contact.tier }}"]}, "as sent"),
        ({"a": ["{{ contact.email | upper }}"]}, '{"a":["{{ contact.email | upper }}"]}'),
        ("{{ email }}", "{{ email }}"),
        ("{{ tier }}", "as sent"),
    ],
)
def test_bodies_of_webhooks_are_told_in_the_same_way(body: object, told: str) -> None:
    url = "https://x.example/{{ email | urlencode }}"
    assert unfilled(SendWebhook(url, body), Texts(None, "as sent", "https://x.example/a")) == Texts(None, told, url)


def test_an_event_that_was_sent_on_as_it_came_has_its_address_masked() -> None:
    sent = '{"type":"a","data":{"contactId":"c","email":"ann@example.com","payload":{"n":1.50}}}'
    told = unfilled(SendWebhook("https://x.example/"), Texts(None, sent, "https://x.example/"))
    assert told.body == sent.replace("ann@", "a•••@")


@pytest.mark.parametrize("action", [None, Exit()])
def test_nothing_is_told_of_a_message_whose_template_nobody_knows(action: Action | None) -> None:
    assert unfilled(action, Texts("s", None, None)) == Texts("•••", None, None)


def test_what_was_erased_stays_away() -> None:
    assert unfilled(SendInapp("{{ email }}", "{{ email }}"), Texts(None, None)) == Texts(None, None)
