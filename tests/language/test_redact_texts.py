"""Redacted texts of stored messages show no addresses."""

import pytest

from workbench.language.actions import Action, Exit, SendEmail, SendInapp, SendWebhook, UpdateContact
from workbench.language.channel import EMAIL, INAPP, WEBHOOK
from workbench.language.filter import Filter, Where
from workbench.language.redact import UNSEEN, compares_address, prints_address, redact_texts


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
        ("{% for contact in [contact] %}{{ contact.email }}{% endfor %}", True),
        ("{% for email in contact.tags %}{{ email }}{% endfor %}", False),
        ("{% if contact.tier %}{{ contact.email }}{% endif %}", True),
    ],
)
def test_a_text_is_shown_unless_its_template_reads_an_address(template: str, is_hidden: bool) -> None:
    shown = template if is_hidden else "filled in"
    texts = redact_texts(INAPP, SendInapp(template, "plain"), {"subject": "filled in", "body": "plain"})
    assert texts == {"subject": shown, "body": "plain"}
    texts = redact_texts(EMAIL, SendEmail("plain", template), {"subject": "plain", "body": "filled in"})
    assert texts == {"subject": "plain", "body": shown}


def test_the_texts_of_all_locales_follow_the_same_rule_and_those_of_another_channel_are_hidden() -> None:
    action = SendInapp("Hi", "Hi", locales={"de": {"title": "{{ email }}", "body": "Hallo"}})
    stored = {"subject": "a@example.com", "body": "Hallo"}
    assert redact_texts(INAPP, action, stored) == {"subject": "{{ email }}", "body": "Hallo"}
    assert redact_texts(EMAIL, action, stored) == {"subject": UNSEEN, "body": UNSEEN}


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
    stored = {"subject": None, "body": "as sent", "recipient": "https://x.example/a"}
    assert redact_texts(WEBHOOK, SendWebhook(url, body), stored) == {"body": redacted, "recipient": url}


def test_the_default_webhook_body_has_its_address_masked() -> None:
    sent = '{"type":"a","data":{"contactId":"c","email":"ann@example.com","payload":{"n":1.50}}}'
    texts = redact_texts(WEBHOOK, SendWebhook("https://x.example/"), {"body": sent, "recipient": "https://x.example/"})
    assert texts["body"] == sent.replace("ann@", "a•••@")


@pytest.mark.parametrize("action", [None, Exit(), SendEmail("s", "b")])
def test_texts_of_an_unknown_template_are_hidden(action: Action | None) -> None:
    assert redact_texts(INAPP, action, {"subject": "s", "body": None}) == {"subject": "•••"}


def test_erased_texts_stay_empty() -> None:
    action = SendInapp("{{ email }}", "{{ email }}")
    assert redact_texts(INAPP, action, {"subject": None, "body": None}) == {}
    assert redact_texts(INAPP, action, {"subject": None, "body": "a@x.co"}) == {"body": "{{ email }}"}


@pytest.mark.parametrize(
    ("action", "prints"),
    [
        (SendWebhook("https://x.example/"), True),  # the event with its identifiers
        (SendWebhook("https://x.example/", "plain"), False),
        (SendWebhook("https://x.example/", {"a": ["{{ email }}"]}), True),
        (SendEmail("Hi", "{{ contact.tier }}"), False),
        (SendEmail("Hi", "b", locales={"de": {"subject": "{{ contact.email }}"}}), True),
        (UpdateContact({"copy": "{{ contact }}"}), True),
        (SendInapp("{{ broken", "b"), True),
        (Exit(), False),
    ],
)
def test_an_action_that_reads_an_address_may_print_it(action: Action, prints: bool) -> None:
    assert prints_address(action) is prints


@pytest.mark.parametrize(
    ("filters", "compares"),
    [
        ([], False),
        ([Filter("plan", "eq", "pro"), Filter("contact.email", "contains", "@x")], True),
        ([Filter("email", "eq", "a@x.co")], True),
        ([Filter("email", "exists", None)], False),
        ([Where("contact.email == 'a@x.co'")], True),
        ([Where("contact.emails == 1")], False),
    ],
)
def test_a_filter_may_depend_on_the_address(filters: list[Filter], compares: bool) -> None:
    assert compares_address(filters) is compares
