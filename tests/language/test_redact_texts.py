"""Redacted texts of stored messages show no addresses."""

import pytest

from workbench.language.actions import Action, Exit, SendEmail, SendInapp, SendWebhook
from workbench.language.redact import MessageTexts, redact_texts


@pytest.mark.parametrize(
    ("template", "is_hidden"),
    [
        ("Hello {{ contact.tier }}", False),
        ("Hello {{ payload.email }}", False),  # payloads are visible to all readers
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
def test_a_text_is_shown_unless_its_template_reads_an_address(template: str, is_hidden: bool) -> None:
    redacted = redact_texts(SendInapp(template, "plain"), MessageTexts("filled in", "plain"))
    assert redacted == MessageTexts(template if is_hidden else "filled in", "plain")
    assert redact_texts(SendEmail("plain", template), MessageTexts("plain", "filled in")).body == redacted.subject


@pytest.mark.parametrize(
    ("body", "redacted"),
    [
        ({"a": ["{{ contact.tier }}"]}, "as sent"),
        ({"a": ["{{ contact.email | upper }}"]}, '{"a":["{{ contact.email | upper }}"]}'),
        ("{{ email }}", "{{ email }}"),
        ("{{ tier }}", "as sent"),
    ],
)
def test_webhook_bodies_follow_the_same_rule(body: object, redacted: str) -> None:
    url = "https://x.example/{{ email | urlencode }}"
    assert redact_texts(SendWebhook(url, body), MessageTexts(None, "as sent", "https://x.example/a")) == MessageTexts(
        None, redacted, url
    )


def test_the_default_webhook_body_has_its_address_masked() -> None:
    sent = '{"type":"a","data":{"contactId":"c","email":"ann@example.com","payload":{"n":1.50}}}'
    redacted = redact_texts(SendWebhook("https://x.example/"), MessageTexts(None, sent, "https://x.example/"))
    assert redacted.body == sent.replace("ann@", "a•••@")


@pytest.mark.parametrize("action", [None, Exit()])
def test_texts_of_an_unknown_template_are_hidden(action: Action | None) -> None:
    assert redact_texts(action, MessageTexts("s", None, None)) == MessageTexts("•••", None, None)


def test_erased_texts_stay_empty() -> None:
    assert redact_texts(SendInapp("{{ email }}", "{{ email }}"), MessageTexts(None, None)) == MessageTexts(None, None)
