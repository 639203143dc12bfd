"""A contact gets the texts of its locale, and publication refuses texts that cannot be chosen or rendered."""

from typing import Any

import msgspec
import pytest

from tests.language.test_check_catalog import graph, path_to, trigger, warnings
from tests.language.test_nodes import ANN, FACTS, at, detail
from workbench.language.actions import InvalidAction, SendEmail, SendInapp, read_action, templates_in
from workbench.language.channel import EMAIL, EmailMessage
from workbench.language.check import CatalogFacts, Need, check, needs_of
from workbench.language.codec import Json
from workbench.language.graph import AutomationSettings, read_settings
from workbench.language.locales import choose_locale, locale_tag
from workbench.language.redact import redact_texts
from workbench.language.run import State

GERMAN = {"subject": "Hallo {{ contact.tier }}", "body": "<b>{{ html }}</b>"}
EMAILS = SendEmail("Hi", "{{ html }}", locales={"de": GERMAN, "de-AT": {"subject": "Servus", "body": "{{ nope }}"}})


@pytest.mark.parametrize(
    ("written", "tag"),
    [
        ("de", "de"),
        ("DE_at", "de-AT"),
        ("zh_hant_tw", "zh-Hant-TW"),
        ("es-419", "es-419"),
        ("de-1996", "de-1996"),
        ("sl-Rozaj", "sl-rozaj"),
        ("en-x-shop", "en-x-shop"),
        (f"en-x{'-abcdefgh' * 6}-abcde", f"en-x{'-abcdefgh' * 6}-abcde"),  # 64 characters
        ("de-DE-u-co-phonebk", "de-DE-u-co-phonebk"),
    ],
)
def test_a_tag_may_have_any_case_and_separator(written: str, tag: str) -> None:
    assert locale_tag(written) == tag


@pytest.mark.parametrize(
    "written",
    ["", "d", "german", "default", "de-", "-de", "de--AT", "de AT", "de-AT-u", "de.UTF-8", "dé", "de\n", "de-" * 40, 5],
)  # fmt: skip
def test_any_other_value_has_no_tag(written: Json) -> None:
    assert locale_tag(written) is None


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("de-AT", "de-AT"),
        ("de_at", "de-AT"),
        ("de-CH", "de"),
        ("de-AT-1996", "de-AT"),
        ("zh-Hant-TW", "zh-Hant"),
        ("zh-TW", None),
        ("d", None),
        (None, None),
    ],
)
def test_the_nearest_locale_is_chosen(wanted: Json, chosen: str | None) -> None:
    assert choose_locale({"de": {}, "de-AT": {}, "zh-Hant": {}}, wanted) == chosen


def email_to(own: Json, **settings: Any) -> tuple[EmailMessage, str]:
    contact = msgspec.structs.replace(ANN, attributes={**ANN.attributes, "locale": own})
    decision = at(EMAILS, msgspec.structs.replace(FACTS, contact=contact), settings=AutomationSettings(**settings))
    (message,) = decision.effects
    assert isinstance(message, EmailMessage)
    return message, detail(decision)["locale"]


def test_a_message_has_the_texts_of_the_contacts_locale_and_its_step_names_the_locale() -> None:
    message, locale = email_to("DE-ch")
    assert (message.subject, message.body, message.html, locale) == ("Hallo gold", "<b>&lt;b&gt;</b>", True, "de")
    message, locale = email_to("fr")
    assert (message.subject, message.body, message.html, locale) == ("Hi", "<b>", False, "default")


def test_the_settings_name_the_attribute_and_the_locale_of_the_default_texts() -> None:
    assert email_to("fr", locale_attribute="tier")[1] == "default"
    assert email_to("de-CH", default_locale="de-CH")[1] == "de-CH"
    assert email_to("de-CH", default_locale="de-CH")[0].subject == "Hi"
    assert email_to("fr", preview_locale="de")[0].subject == "Hallo gold"  # a preview
    assert email_to("de", preview_locale="default")[0].subject == "Hi"
    settings = read_settings({"localeAttribute": "tongue", "defaultLocale": "en_us"}, "s")
    assert settings == AutomationSettings(locale_attribute="tongue", default_locale="en-US")
    problems = read_settings({"localeAttribute": "", "defaultLocale": "english"}, "s").problems
    assert [problem.field for problem in problems] == ["s.localeAttribute", "s.defaultLocale"]


def test_a_message_without_other_locales_names_none() -> None:
    assert "locale" not in detail(at(SendEmail("s", "b")))


def test_a_value_that_only_the_texts_of_one_locale_need_skips_only_their_messages() -> None:
    austrian = msgspec.structs.replace(ANN, attributes={"locale": "de-AT"})
    facts = msgspec.structs.replace(FACTS, contact=austrian)
    skipped = at(msgspec.structs.replace(EMAILS, on_missing="skip"), facts)
    assert detail(skipped) == {"cause": "missing_value", "error": "the value 'nope' is missing"}
    assert at(EMAILS, facts).run.state is State.DEAD


@pytest.mark.parametrize(
    ("locales", "problems"),
    [
        ([], ["n.data.locales"]),
        ({"german": GERMAN}, ["n.data.locales.german"]),
        ({"de-AT": GERMAN, "de_at": GERMAN}, ["n.data.locales.de_at"]),
        ({"de": "Hallo"}, ["n.data.locales.de"]),
        (
            {"de": {"subject": "Hallo"}, "fr": GERMAN | {"body": "{{ x"}},
            ["n.data.locales.de.body", "n.data.locales.fr.body"],
        ),
        ({f"de-{number}": GERMAN for number in range(1_000, 1_101)}, ["n.data.locales"]),
    ],
)  # fmt: skip
def test_a_locale_that_cannot_be_sent_is_refused_with_its_field(locales: Any, problems: list[str]) -> None:
    action = read_action("send_email", {"subject": "s", "body": "b", "locales": locales}, "n")
    assert isinstance(action, InvalidAction)
    assert [problem.field for problem in action.problems] == problems


def test_locales_are_read_by_their_tags_and_all_their_texts_are_templates_of_the_action() -> None:
    data = {"title": "t", "body": "b", "locales": {"DE_at": {"title": "{{ a }}", "body": "{{ b }}", "note": 5}}}
    action = read_action("send_inapp", data, "n")
    assert action == SendInapp("t", "b", locales={"de-AT": {"title": "{{ a }}", "body": "{{ b }}"}})
    assert [*templates_in(action)] == ["t", "b", "{{ a }}", "{{ b }}"]


def message(locales: dict[str, Any], **texts: str) -> dict[str, Any]:
    data = {"subject": "s", "body": "{{ a }}", "onMissing": "skip", "locales": locales} | texts
    return {"type": "send_email", "data": data}


def test_a_message_without_the_locale_of_another_message_is_reported() -> None:
    shape = graph(message({"de": GERMAN, "fr": GERMAN}), message({"de-AT": GERMAN}), message({}), defaultLocale="fr")
    remarks = [item for item in check(trigger(), shape) if "texts in" in item.message]
    assert {item.level for item in remarks} == {"warning"}
    assert [(item.node_id, item.message) for item in remarks] == [
        ("1", "has no texts in de, as another message has"),
        ("2", "has no texts in de, de-AT, as another message has"),
    ]


def test_contacts_without_texts_in_their_locale_and_values_that_these_texts_need_are_counted() -> None:
    shape = path_to(message({"de": {"subject": "s", "body": "{{ contact.b }}"}}))
    needs = needs_of(trigger(), shape)
    assert needs == (Need("1", ""), Need("1", "a"), Need("1", "contact.b"), Need("1", "email"))
    sampled = {"de_CH": 10, "fr": 20, "FR": 1, "pt-BR": 5, "nonsense": 3, None: 1}
    counts = {locale: (1, number) for locale, number in sampled.items()}
    catalog = CatalogFacts(("deposit",), {"deposit": frozenset("a")}, missing=dict.fromkeys(needs, counts))
    assert [text for _, _, text in warnings(trigger(), shape, catalog)] == [
        "has no texts in the locales of 26 of the 40 contacts of the newest events: fr (21), pt-BR (5)."
        " They get the default texts; set defaultLocale if that is their locale",
        "is skipped for 5 of the 40 contacts of the newest events: a is missing",
        "is skipped for 1 of the 40 contacts of the newest events: contact.b is missing",
        "is skipped for 6 of the 40 contacts of the newest events: email is missing",
    ]


def test_the_text_of_a_stored_message_is_hidden_if_one_of_its_locales_reads_an_address() -> None:
    action = SendEmail("Hi", "Hi", locales={"de": {"subject": "Hallo", "body": "An {{ email }}"}})
    stored: dict[str, str | None] = {"subject": "Hallo", "body": "An ann@b.co"}
    assert redact_texts(EMAIL, action, stored) == {"subject": "Hallo", "body": "An {{ email }}"}
