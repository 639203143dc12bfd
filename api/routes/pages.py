"""Pages for contacts: to unsubscribe, to choose topics and channels, and to confirm a topic.

They need no script and no login, and are in the language of the contact, as far as there are texts in it. Nothing in
them comes from another host. A page is never cached, and sends no referrer, because its URL is a credential.
"""

import html as escaping
from typing import Self

import msgspec
from sanic import HTTPResponse
from sanic.response import html

from workbench.language.codec import Json
from workbench.language.locales import LOCALE_ATTRIBUTE, choose_locale
from workbench.language.responses import ContactView, TopicView


class PageTexts(msgspec.Struct, frozen=True, kw_only=True):
    """The texts of the pages in one language; `{}` stands for the label of a topic."""

    title: str
    intro: str
    about: str
    topics: str
    channels: str
    email: str
    inapp: str
    connection: str
    save: str
    stop_all: str
    saved: str
    changed: str
    sent_link: str
    gone: str
    unsubscribe: str
    stop_emails: str
    stop_topic: str
    emails_stopped: str
    topic_stopped: str
    confirm: str
    ask: str
    confirmed: str


DEFAULT_LANGUAGE = "en"
TEXTS = {
    "en": PageTexts(
        title="Your preferences",
        intro="Choose what you want to receive.",
        about="These preferences are for {}.",
        topics="Topics",
        channels="Channels",
        email="Emails",
        inapp="Messages in the app",
        connection="Chat and text messages",
        save="Save",
        stop_all="Stop everything",
        saved="Your preferences are saved.",
        changed="This page has changed. Please choose once more.",
        sent_link="Please confirm “{}”: open the link in the email that you get.",
        gone="This link is no longer valid.",
        unsubscribe="Unsubscribe",
        stop_emails="Stop these emails?",
        stop_topic="Stop messages on “{}”?",
        emails_stopped="You are unsubscribed.",
        topic_stopped="You are unsubscribed from “{}”.",
        confirm="Confirm",
        ask="Do you want to receive messages on “{}”?",
        confirmed="Thank you. You receive messages on “{}” from now on.",
    ),
    "de": PageTexts(
        title="Ihre Einstellungen",
        intro="Wählen Sie, was Sie erhalten möchten.",
        about="Diese Einstellungen gelten für {}.",
        topics="Themen",
        channels="Kanäle",
        email="E-Mails",
        inapp="Nachrichten in der App",
        connection="Nachrichten per Chat und SMS",
        save="Speichern",
        stop_all="Alles abbestellen",
        saved="Ihre Einstellungen sind gespeichert.",
        changed="Diese Seite hat sich geändert. Bitte wählen Sie noch einmal.",
        sent_link="Bitte bestätigen Sie „{}“: Öffnen Sie den Link in der E-Mail, die Sie erhalten.",
        gone="Dieser Link ist nicht mehr gültig.",
        unsubscribe="Abbestellen",
        stop_emails="Diese E-Mails abbestellen?",
        stop_topic="Nachrichten zu „{}“ abbestellen?",
        emails_stopped="Sie haben die E-Mails abbestellt.",
        topic_stopped="Sie haben „{}“ abbestellt.",
        confirm="Bestätigen",
        ask="Möchten Sie Nachrichten zu „{}“ erhalten?",
        confirmed="Vielen Dank. Sie erhalten ab jetzt Nachrichten zu „{}“.",
    ),
    "es": PageTexts(
        title="Sus preferencias",
        intro="Elija lo que desea recibir.",
        about="Estas preferencias son para {}.",
        topics="Temas",
        channels="Canales",
        email="Correos electrónicos",
        inapp="Mensajes en la aplicación",
        connection="Mensajes de chat y SMS",
        save="Guardar",
        stop_all="Cancelar todo",
        saved="Sus preferencias se han guardado.",
        changed="Esta página ha cambiado. Elija de nuevo, por favor.",
        sent_link="Confirme «{}»: abra el enlace del correo que va a recibir.",
        gone="Este enlace ya no es válido.",
        unsubscribe="Darse de baja",
        stop_emails="¿Desea dejar de recibir estos correos?",
        stop_topic="¿Desea dejar de recibir mensajes sobre «{}»?",
        emails_stopped="Se ha dado de baja.",
        topic_stopped="Se ha dado de baja de «{}».",
        confirm="Confirmar",
        ask="¿Desea recibir mensajes sobre «{}»?",
        confirmed="Gracias. A partir de ahora recibirá mensajes sobre «{}».",
    ),
    "fr": PageTexts(
        title="Vos préférences",
        intro="Choisissez ce que vous souhaitez recevoir.",
        about="Ces préférences concernent {}.",
        topics="Thèmes",
        channels="Canaux",
        email="E-mails",
        inapp="Messages dans l\u2019application",
        connection="Messages par chat et SMS",
        save="Enregistrer",
        stop_all="Tout arrêter",
        saved="Vos préférences sont enregistrées.",
        changed="Cette page a changé. Veuillez choisir à nouveau.",
        sent_link="Veuillez confirmer « {} » : ouvrez le lien dans l\u2019e-mail que vous allez recevoir.",
        gone="Ce lien n\u2019est plus valable.",
        unsubscribe="Se désabonner",
        stop_emails="Ne plus recevoir ces e-mails ?",
        stop_topic="Ne plus recevoir de messages sur « {} » ?",
        emails_stopped="Vous êtes désabonné.",
        topic_stopped="Vous êtes désabonné de « {} ».",
        confirm="Confirmer",
        ask="Souhaitez-vous recevoir des messages sur « {} » ?",
        confirmed="Merci. Vous recevrez désormais des messages sur « {} ».",
    ),
}

HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",  # the URL is the credential
    "x-robots-tag": "noindex",
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
}
_PAGE = """<!doctype html>
<html lang="{language}">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 1.0625rem/1.5 system-ui, sans-serif; margin: 12vh auto; max-width: 30rem; padding: 0 1.25rem }}
h1 {{ font-size: 1.5rem; margin: 0 0 .5rem }}
fieldset {{ border: 1px solid #8886; border-radius: .5rem; margin: 1.5rem 0; padding: .5rem 1rem 1rem }}
legend {{ font-weight: 600; padding: 0 .4rem }}
label {{ display: flex; gap: .75rem; align-items: baseline; padding: .4rem 0; min-height: 1.75rem }}
input {{ flex: none; width: 1.15rem; height: 1.15rem; transform: translateY(.15rem) }}
button {{ font: inherit; padding: .6rem 1.2rem; margin: .25rem .5rem .25rem 0; cursor: pointer }}
button {{ border: 1px solid #3b41b8; border-radius: .5rem }}
button.main {{ background: #3b41b8; color: #fff }}
button.other {{ background: transparent; color: inherit; border-color: #888 }}
[role=status] {{ border-left: .25rem solid #1a7f4b; padding: .25rem .9rem; margin: 1rem 0 }}
</style>
<main>
{content}
</main>
</html>
"""


class Page(msgspec.Struct, frozen=True):
    """Pages in one language. `wanted`: the locale of the contact, which chooses the labels of topics."""

    language: str
    texts: PageTexts
    wanted: Json

    @classmethod
    def of(cls, contact: ContactView | None) -> Self:
        wanted = None if contact is None else contact.attributes.get(LOCALE_ATTRIBUTE)
        language = choose_locale(TEXTS, wanted) or DEFAULT_LANGUAGE
        return cls(language, TEXTS[language], wanted)

    def label(self, topic: TopicView) -> str:
        """Return the label of a topic in the locale of the contact: of de-AT, otherwise de, otherwise the default."""
        chosen = choose_locale(topic.labels, self.wanted)
        return topic.label if chosen is None else topic.labels[chosen]

    def message(self, text: str, status: int = 200) -> HTTPResponse:
        return self.answer(text, f"<h1>{escaping.escape(text)}</h1>", status)

    def question(self, text: str, button: str, hidden: str = "") -> HTTPResponse:
        """Return a page that asks before it does something, because scanners of mail open every link."""
        form = f'<form method="post">{hidden}<button class="main">{escaping.escape(button)}</button></form>'
        return self.answer(text, f"<h1>{escaping.escape(text)}</h1>\n{form}")

    def answer(self, title: str, content: str, status: int = 200) -> HTTPResponse:
        text = _PAGE.format(language=self.language, title=escaping.escape(title), content=content)
        return html(text, status=status, headers=HEADERS)
