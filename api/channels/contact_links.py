"""Links in emails that belong to one contact: its preferences, and the confirmation of a topic.

Texts are rendered with a placeholder for each (`workbench.language.topics`), which is replaced when an email leaves. A
test has no contact, so its placeholders stay.
"""

import re

import msgspec

from api.channels.outcome import Delivery
from api.channels.signing import ContactLink, contact_token, contact_url
from api.crypto import Keyring
from workbench.language.body import SLUG
from workbench.language.topics import CONFIRM_PLACEHOLDER, PREFERENCES_PLACEHOLDER

_PLACEHOLDER = re.compile(
    f"{re.escape(PREFERENCES_PLACEHOLDER)}|{re.escape(CONFIRM_PLACEHOLDER)}(?P<topic>{SLUG.pattern})"
)


def with_contact_links(public_url: str, keyring: Keyring, delivery: Delivery) -> Delivery:
    """Return a delivery with the links of its contact. One click withdraws the topic of the message, if it has one."""
    contact_id = delivery.contact_id
    if contact_id is None:
        return delivery

    def link(match: re.Match[str]) -> str:
        topic = match["topic"]
        target = ContactLink("confirm" if topic else "preferences", delivery.org_id, contact_id, topic or "")
        return contact_url(public_url, keyring, target)

    body, unsubscribe_url = _PLACEHOLDER.sub(link, delivery.body), delivery.unsubscribe_url
    if unsubscribe_url and delivery.topic is not None:
        # Reports of bounces are recognised by the token of the address, so it stays.
        withdrawal = ContactLink("withdraw", delivery.org_id, contact_id, delivery.topic)
        unsubscribe_url += f"&topic={contact_token(keyring, withdrawal)}"
    return msgspec.structs.replace(delivery, body=body, unsubscribe_url=unsubscribe_url)
