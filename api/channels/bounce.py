"""Reports of mail servers about emails: bounces (RFC 3464) and complaints (RFC 5965), both as `multipart/report`.

A report returns the headers of the email that it is about. The token of its unsubscribe link proves that this
installation sent the email, and says for which organization and to which address; `Message-ID` names the message. A
message without such headers proves nothing, so it is ignored.
"""

import email
import re
from email.message import Message

import msgspec

from api.channels.signing import read_unsubscribe_token
from api.crypto import Keyring
from api.store.messages import Feedback

MAX_REPORT_BYTES = 131_072  # what follows is the body of the email that the report is about
MAX_MULTIPARTS = 16  # the library searches each line for the ends of all parts around it

# RFC 3463, 3.1-3.3, and RFC 7505: the address or its mailbox does not exist, or is disabled. Other codes of class 5 are
# about this email or this moment: a mailbox that is full (5.2.2), a message that is too big (5.3.4), a policy (5.7.1).
ADDRESS_CODES = {"5.0.0", "5.1.0", "5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10", "5.2.1"}

_STATUS_KINDS = ("message/delivery-status", "message/global-delivery-status")
_HEADERS = ("message/rfc822", "message/global", "text/rfc822-headers", "message/global-headers")
_STATUS = re.compile(r"\b[245]\.\d{1,3}\.\d{1,3}\b", re.ASCII)
_TOKEN = re.compile(r"[?&]token=([\w-]+)", re.ASCII)
_MESSAGE_ID = re.compile(r"<([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:\.(\d{1,4}))?@", re.ASCII)


class Bounce(msgspec.Struct, frozen=True, kw_only=True):
    """A bounce of an email, or a complaint about it.

    `address_digests`: the blind indexes of its recipient (`OrgKeys.digests`). `message_id`, `address`: if known.
    `page_recipient`: the number of the recipient, if `message_id` is the run of a scheduled page. `status`: a code of
    RFC 3463; without one, a bounce is permanent, and about the address.
    """

    org_id: int
    feedback: Feedback
    address_digests: str
    message_id: str | None = None
    page_recipient: int | None = None
    address: str | None = None
    status: str | None = None

    @property
    def is_permanent(self) -> bool:
        return self.feedback == "complained" or self.status is None or self.status.startswith("5")

    @property
    def closes_address(self) -> bool:
        """Whether the address gets no more emails."""
        return self.feedback == "complained" or self.status is None or self.status in ADDRESS_CODES


def read_bounce(keyring: Keyring, raw: bytes) -> Bounce | None:
    """Return the bounce or the complaint in an email from a mail server; None for every other email."""
    raw = raw[:MAX_REPORT_BYTES]
    if raw.lower().count(b"multipart/") > MAX_MULTIPARTS:
        return None
    try:
        report = email.message_from_bytes(raw)
        parts = _parts_of(report) if report.get_content_type() == "multipart/report" else []
        result = next(filter(None, map(_read_result, parts)), None)
        returned = next(part for part in parts if part.get_content_type() in _HEADERS)
        text = returned.get_payload(decode=True)  # of a whole email, which is a part of its own, None
        headers = email.message_from_bytes(text) if isinstance(text, bytes) else _parts_of(returned)[0]
    except (LookupError, RecursionError, StopIteration, TypeError, ValueError):  # also for hostile emails
        return None
    if result is None:
        return None
    token = _TOKEN.search("".join(str(headers.get("List-Unsubscribe", "")).split()))
    unsubscription = None if token is None else read_unsubscribe_token(keyring, token[1])
    if unsubscription is None:
        return None
    feedback, status = result
    message_id = _MESSAGE_ID.search(str(headers.get("Message-ID", "")))
    return Bounce(
        org_id=unsubscription.org_id,
        feedback=feedback,
        address_digests=unsubscription.address_digest,
        message_id=None if message_id is None else message_id[1],
        page_recipient=None if message_id is None or message_id[2] is None else int(message_id[2]),
        status=status,
    )


def _read_result(part: Message) -> tuple[Feedback, str | None] | None:
    """Return what a machine-readable part reports; None for a delay or a success, and for other parts."""
    kind = part.get_content_type()
    for fields in _parts_of(part):  # of a bounce, those of the report, then those of its only recipient
        if kind in _STATUS_KINDS and str(fields.get("Action", "")).strip().lower() == "failed":
            status = _STATUS.search(str(fields.get("Status", "")))
            return "bounced", None if status is None else status[0]
        if kind == "message/feedback-report" and str(fields.get("Feedback-Type", "")).strip().lower() == "abuse":
            return "complained", None
    return None


def _parts_of(message: Message) -> list[Message]:
    payload = message.get_payload()
    return [part for part in payload if isinstance(part, Message)] if isinstance(payload, list) else []
