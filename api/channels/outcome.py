"""Outcomes: the result of one attempt to send a message, the same for every transport.

An outcome has a reason from a closed set. Neither the reason nor its detail ever carries a secret, an address, or text
that the other side sent: they are stored and shown.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal, Protocol, TypeAlias

import msgspec

TEST_HEADER = "X-Event-Workbench-Test"  # of emails and webhooks that are sent to test an automation
MAX_RETRY_AFTER_S = 86_400.0  # as long as the longest delay of the retry schedules

Reason: TypeAlias = Literal[
    "accepted",  # the other side took the message
    "busy",  # too many deliveries are waiting for this endpoint, or for a connection: nothing was tried
    "unreachable",  # could not connect; also for an address that the guard forbids
    "tls_failed",  # the certificate is not valid for the name, or the server does not speak TLS
    "refused",  # the other side answered with an error
    "not_signed_in",  # the mail server rejected the login
    "no_answer",  # everything may have been sent, and no response came
    "gone",  # the endpoint answered 410
    "invalid_header",  # a header value could be read as another header
    "invalid_address",  # nothing can be delivered to the address
]


class Sent(msgspec.Struct, frozen=True):
    """The other side has the message. `detail`: its response, as a code."""

    detail: str = ""


class Retry(msgspec.Struct, frozen=True):
    """Not sent; a later attempt may succeed, not before `after_seconds` if the other side asked for that."""

    reason: Reason
    after_seconds: float | None = None
    detail: str = ""


class Failed(msgspec.Struct, frozen=True):
    """Not sent; no later attempt can succeed."""

    reason: Reason
    detail: str = ""


class Unknown(msgspec.Struct, frozen=True):
    """The message may have been delivered. It is sent again with the same id, so that the receiver can deduplicate."""

    reason: Reason
    detail: str = ""


Outcome: TypeAlias = Sent | Retry | Failed | Unknown

MayLeave: TypeAlias = Callable[[], bool]
"""Called at the last moment, after every wait for a slot or a connection.

False: nothing is sent, and the outcome is `Retry("busy")`.
"""


def always() -> bool:
    return True


class Mail(msgspec.Struct, frozen=True):
    """One email to one address.

    `created_at` is the time of the message, not of an attempt: every attempt has the same bytes. `html`: the body is
    HTML. `unsubscribe_url`: a POST to it unsubscribes the address. `test`: mark the email as a test in a header.
    """

    id: str
    created_at: datetime
    recipient: str
    subject: str
    body: str
    html: bool
    unsubscribe_url: str
    test: bool = False


class Mailer(Protocol):
    async def send(self, mail: Mail, may_leave: MayLeave = always) -> Outcome:
        """Send an email once, if `may_leave` still allows it when everything is ready."""

    async def close(self) -> None:
        """Close all connections."""


_SECONDS = re.compile(r"\d{1,12}", re.ASCII)


def parse_retry_after(text: str, now: datetime) -> float | None:
    """Return the seconds from `now` in a `Retry-After` header (RFC 9110, section 10.2.3), at most MAX_RETRY_AFTER_S.

    None for a value that is neither a number of seconds nor a date.
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), MAX_RETRY_AFTER_S)  # an untrusted server could ask for years
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:  # the zone is `-0000`: UTC, and the sender's zone is unknown
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - now).total_seconds(), 0.0), MAX_RETRY_AFTER_S)
