"""Reports of mail servers, as Postfix, Exchange and feedback loops write them, about emails of ours."""

from datetime import UTC, datetime

from api.channels.mime import compose, sender_address
from api.channels.outcome import Delivery
from api.channels.signing import Unsubscription, unsubscribe_url
from api.crypto import Keyring


def email_to(keyring: Keyring, org_id: int, message_id: str, address: str) -> bytes:
    """Return an email as it was sent."""
    digest = keyring.of(org_id).digest("email", address)
    url = unsubscribe_url("https://workbench.acme.example", keyring, Unsubscription(org_id, digest))
    delivery = Delivery(org_id, message_id, datetime.now(UTC), address, "Hi", "Hello", unsubscribe_url=url)
    return compose(delivery, sender_address("Acme <news@acme.example>"))


def _headers(sent: bytes) -> str:
    return sent.decode().partition("\r\n\r\n")[0]


def bounce(sent: bytes, status: str = "5.1.1", action: str = "failed", returned: str = "text/rfc822-headers") -> bytes:
    """Return a delivery status notification (RFC 3464) about an email."""
    folded = _headers(sent).replace("?token=", "?token=\r\n ") if returned == "text/rfc822-headers" else _headers(sent)
    text = f"""\
Return-Path: <>
From: MAILER-DAEMON@mx.example (Mail Delivery System)
To: news@acme.example
Subject: Undelivered Mail Returned to Sender
Auto-Submitted: auto-replied
MIME-Version: 1.0
Content-Type: multipart/report; report-type=delivery-status;
	boundary="9B095B5ADSN=_01"

This is a MIME-encapsulated message.

--9B095B5ADSN=_01
Content-Type: text/plain; charset=us-ascii

I'm sorry to have to inform you that your message could not be delivered.

--9B095B5ADSN=_01
Content-Description: Delivery report
Content-Type: message/delivery-status

Reporting-MTA: dns; mx.example
X-Postfix-Queue-ID: 9B095B5A
Arrival-Date: Fri, 27 Nov 2026 10:00:00 +0000 (UTC)

Final-Recipient: rfc822; zoe@example.com
Original-Recipient: rfc822;zoe@example.com
Action: {action}
Status: {status}
Remote-MTA: dns; mail.example.com
Diagnostic-Code: smtp; 550 5.1.1 <zoe@example.com>: Recipient address rejected

--9B095B5ADSN=_01
Content-Type: {returned}

{folded}

Hello
--9B095B5ADSN=_01--
"""
    return text.replace("\r\n", "\n").replace("\n", "\r\n").encode()


def complaint(sent: bytes, feedback_type: str = "abuse") -> bytes:
    """Return the report of a feedback loop (RFC 5965) about an email."""
    text = f"""\
From: <abusedesk@example.com>
To: <abuse@acme.example>
Subject: FW: Hi
MIME-Version: 1.0
Content-Type: multipart/report; report-type=feedback-report;
     boundary="part1_13d.2e68ed54_boundary"

--part1_13d.2e68ed54_boundary
Content-Type: text/plain; charset="US-ASCII"
Content-Transfer-Encoding: 7bit

This is an email abuse report for an email message.

--part1_13d.2e68ed54_boundary
Content-Type: message/feedback-report

Feedback-Type: {feedback_type}
User-Agent: SomeGenerator/1.0
Version: 1

--part1_13d.2e68ed54_boundary
Content-Type: message/rfc822
Content-Disposition: inline

{sent.decode()}
--part1_13d.2e68ed54_boundary--
"""
    return text.replace("\r\n", "\n").encode()
