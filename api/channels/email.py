"""Sending emails: through the mail server of WORKBENCH_SMTP_URL, or into a maildir without one.

Over SMTP a few connections are kept open and reused. A failure before the text has been sent means that nothing was
delivered. From DATA on, a connection that breaks or falls silent leaves an unknown outcome, and the email is sent
again with the same `Message-ID`. In the maildir, which any mail program can read, a file has the id of its email as
name: another attempt is the same file, and `new/` only ever holds complete emails.
"""

import asyncio
import contextlib
import logging
import os
import re
import ssl
from collections.abc import AsyncIterator
from datetime import datetime
from email.headerregistry import Address
from pathlib import Path

from aiosmtplib import SMTP, SMTPAuthenticationError, SMTPException, SMTPRecipientRefused, SMTPResponseException

from api.channels.bounce import ADDRESS_CODES
from api.channels.mime import AddressError, HeaderError, compose, recipient_address, sender_address
from api.channels.outcome import (
    AddressRule,
    Delivery,
    Failed,
    MayLeave,
    NotSent,
    Outcome,
    OutgoingChannel,
    Reason,
    Retry,
    Sent,
    Unknown,
    always,
)
from api.clock import monotonic_ns
from api.settings import Settings, SmtpServer
from api.store.messages import find_suppressed, suppress
from workbench.language.channel import EMAIL
from workbench.language.event import normalize_email

MAILDIR = "mail"  # in the data directory
MAX_CONNECTIONS = 8  # to the mail server, per process
MAX_EMAILS_PER_CONNECTION = 100  # servers close a connection after a certain number of emails
MAX_IDLE_S = 20.0  # a connection is kept this long for the next email
RESPONSE_TIMEOUT_S = 30.0
CONNECTION_WAIT_S = 30.0  # an email waits this long for one of the connections

_START_TLS = {"implicit": False, "required": True, "offered": None, "never": False}

_ENHANCED_CODE = re.compile(r"5\.\d{1,3}\.\d{1,3}\b", re.ASCII)  # RFC 2034: at the beginning of the response

_log = logging.getLogger("workbench.delivery")


def open_mailer(settings: Settings) -> "MaildirMailer | SmtpMailer":
    """Return the mailer that the settings describe; the caller closes it."""
    if settings.smtp is None:
        return MaildirMailer(settings.data_dir / MAILDIR, settings.email_from)
    return SmtpMailer(settings.smtp, settings.email_from, return_path=settings.return_path)


class MaildirMailer:
    """Writes emails into a maildir. `sender`: as in a From header."""

    is_local = True

    def __init__(self, path: Path, sender: str) -> None:
        self._path, self._sender = path, sender_address(sender)

    async def send(self, delivery: Delivery, _: datetime, may_leave: MayLeave = always) -> Outcome:
        content = await _compose(delivery, self._sender)
        if isinstance(content, Failed):
            return content
        if not may_leave():
            return Retry("busy")
        # A maildir has the line ends of the system; CRLF belongs to SMTP.
        await asyncio.to_thread(self._write, delivery.id, content.replace(b"\r\n", b"\n"))
        return Sent("maildir")

    async def close(self) -> None:
        pass

    def _write(self, name: str, content: bytes) -> None:
        for folder in ("tmp", "new", "cur"):
            (self._path / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        # Written and synced in tmp/, then renamed: a reader of new/ never sees half an email.
        unfinished = self._path / "tmp" / f"{name}.{os.getpid()}"
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._path / "new" / name)


class SmtpMailer:
    """Sends emails through one mail server. `tls`: the trusted certificates; by default those of the system.

    `return_path`: the address for reports of mail servers; by default that of the sender.
    """

    is_local = False

    def __init__(
        self,
        server: SmtpServer,
        sender: str,
        tls: ssl.SSLContext | None = None,
        *,
        return_path: str | None = None,
        response_timeout_s: float = RESPONSE_TIMEOUT_S,
    ) -> None:
        self._server, self._sender = server, sender_address(sender)
        self._return_path = sender_address(return_path or sender)
        self._tls = tls or ssl.create_default_context()
        self._timeout_s = response_timeout_s
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._idle: list[_Connection] = []

    async def send(self, delivery: Delivery, _: datetime, may_leave: MayLeave = always) -> Outcome:
        """Send an email once, if `may_leave` still allows it when a connection is ready."""
        content = await _compose(delivery, self._sender)
        if isinstance(content, Failed):
            return content
        try:
            async with self._connection() as connection:
                connection.emails += 1
                return await self._transmit(
                    connection.client, recipient_address(delivery).addr_spec, content, may_leave
                )
        except _NoConnectionError as error:
            reason, detail = error.outcome.reason, error.outcome.detail
            _log.warning("mail_server_unavailable", extra={"reason": reason, "detail": detail})
            return error.outcome

    async def close(self) -> None:
        while self._idle:
            client = self._idle.pop().client
            with contextlib.suppress(SMTPException, OSError):
                await client.quit(timeout=1)
            client.close()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator["_Connection"]:
        """Lend a working connection, and keep it afterwards if it still works; raise _NoConnectionError."""
        try:
            async with asyncio.timeout(CONNECTION_WAIT_S):
                await self._slots.acquire()
        except TimeoutError:
            raise _NoConnectionError(Retry("busy")) from None
        try:
            connection = await self._idle_connection() or _Connection(await self._connect())
            try:
                yield connection
            except BaseException:
                connection.client.close()
                raise
            connection.used_ns = monotonic_ns()
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.client.close()
        finally:
            self._slots.release()

    async def _idle_connection(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                with contextlib.suppress(SMTPException):
                    await connection.client.rset()  # also tells whether the server has closed it
                    return connection
            connection.client.close()
        return None

    async def _connect(self) -> SMTP:
        client = SMTP(
            hostname=self._server.host,
            port=self._server.port,
            local_hostname=self._sender.domain,
            timeout=self._timeout_s,
            use_tls=self._server.encryption == "implicit",
            start_tls=_START_TLS[self._server.encryption],
            tls_context=self._tls,
        )
        try:
            async with asyncio.timeout(2 * self._timeout_s):
                await client.connect()
                if self._server.username is not None:
                    if client.is_ehlo_or_helo_needed:
                        await client.ehlo()
                    if not client.supports_extension("auth"):
                        raise _NoConnectionError(Retry("not_signed_in"))
                    await client.login(self._server.username, self._server.password or "")
        except SMTPResponseException as error:
            client.close()
            # Always a retry: the server rejected the connection or the login, not an email.
            reason: Reason = "not_signed_in" if isinstance(error, SMTPAuthenticationError) else "refused"
            raise _NoConnectionError(Retry(reason, detail=f"SMTP {error.code}")) from None
        except (SMTPException, OSError) as error:  # among them TimeoutError and ssl.SSLError
            client.close()
            # The library raises its plain SMTPException if the server does not offer STARTTLS.
            is_tls = isinstance(error.__cause__ or error, ssl.SSLError) or type(error) is SMTPException
            raise _NoConnectionError(Retry("tls_failed" if is_tls else "unreachable")) from None
        except BaseException:
            client.close()
            raise
        return client

    async def _transmit(self, client: SMTP, recipient: str, content: bytes, may_leave: MayLeave) -> Outcome:
        try:
            await client.mail(self._return_path.addr_spec)
            await client.rcpt(recipient)
        except SMTPRecipientRefused as error:
            code = _ENHANCED_CODE.match(error.message)
            if code is not None and code[0] in ADDRESS_CODES:
                return Failed("gone", f"SMTP {error.code} {code[0]}")
            return _rejected(error)
        except SMTPResponseException as error:
            return _rejected(error)
        except (SMTPException, OSError):
            client.close()
            return Retry("unreachable")
        if not may_leave():
            return Retry("busy")
        try:
            # From DATA on, a failure is an unknown outcome: the server may have accepted the email.
            async with asyncio.timeout(2 * self._timeout_s):
                response = await client.data(content)
        except SMTPResponseException as error:
            if error.code >= 400:
                return _rejected(error)
            client.close()  # neither success nor an error code: not a valid response
            return Unknown("no_answer")
        except (SMTPException, OSError):
            client.close()
            return Unknown("no_answer")
        return Sent(f"SMTP {response.code}")


class _Connection:
    def __init__(self, client: SMTP) -> None:
        self.client = client
        self.emails = 0
        self.used_ns = monotonic_ns()

    @property
    def is_reusable(self) -> bool:
        is_recent = monotonic_ns() - self.used_ns < MAX_IDLE_S * 1e9
        return is_recent and self.emails < MAX_EMAILS_PER_CONNECTION and self.client.is_connected


class _NoConnectionError(Exception):
    """The mail server could not be reached or rejected the login; `outcome` has the reason."""

    def __init__(self, outcome: Retry) -> None:
        super().__init__()
        self.outcome = outcome


async def _compose(delivery: Delivery, sender: Address) -> bytes | Failed:
    try:
        if delivery.attachment is None:
            return compose(delivery, sender)
        return await asyncio.to_thread(compose, delivery, sender)  # a large page takes a second
    except HeaderError:
        return Failed("invalid_header")
    except AddressError:
        return Failed("invalid_address")


def _rejected(error: SMTPResponseException) -> Outcome:
    """Return the outcome for an email that the server rejected: 5xx is permanent."""
    detail = f"SMTP {error.code}"
    return Failed("refused", detail) if error.code >= 500 else Retry("refused", detail=detail)


EMAILS = OutgoingChannel(
    channel=EMAIL,
    address=AddressRule(
        index="email",
        read=normalize_email,
        reason="not a valid email address",
        names=lambda address: (address, address.rpartition("@")[2]),
        identifier="email",
        is_used=None,
        unknown="does not belong to any of your contacts",
    ),
    open=open_mailer,
    find_closed=lambda tx, org_id, digests: find_suppressed(tx, org_id, EMAIL.name, digests),
    closed=NotSent("skipped", "opted_out"),
    close=lambda org_id, digests, _, at: suppress(org_id, EMAIL.name, digests, at, "opted_out", "bounced"),
    find_secrets=None,
    prepare=None,
)
