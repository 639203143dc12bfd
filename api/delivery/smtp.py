"""Emails through the mail server of `WORKBENCH_SMTP_URL`.

A few connections are kept and used again. Until the text has been sent, a failure means that nothing happened; from then on a
connection that breaks or falls silent leaves an unknown outcome, and the email comes again with the same `Message-ID`.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator

from aiosmtplib import (
    SMTP,
    SMTPAuthenticationError,
    SMTPException,
    SMTPResponseException,
)

from api.clock import monotonic_ns
from api.delivery.mail import Mail
from api.delivery.mime import AddressError, HeaderError, compose, recipient_address, sender_address
from api.delivery.outcome import Failed, MayLeave, Outcome, Reason, Retry, Sent, Unknown, always
from api.settings import SmtpServer

CONNECTIONS = 8  # to the mail server, per process
USES = 100  # emails per connection: servers end a connection after some number of them
IDLE = 20.0  # seconds a connection is kept for the next email
TIMEOUT = 30.0  # seconds for each answer of the server
PATIENCE = 30.0  # seconds an email waits for a connection

_log = logging.getLogger("workbench.delivery")


class _Line:
    """A connection, and how often and when it was used."""

    def __init__(self, client: SMTP) -> None:
        self.client = client
        self.uses = 0
        self.used_ns = monotonic_ns()

    @property
    def is_fresh(self) -> bool:
        young = monotonic_ns() - self.used_ns < IDLE * 1e9
        return young and self.uses < USES and self.client.is_connected


class Smtp:
    """The transport to one mail server. `tls`: whose certificates are believed; default: the machine's."""

    def __init__(
        self, server: SmtpServer, sender: str, tls: ssl.SSLContext | None = None, *, timeout: float = TIMEOUT
    ) -> None:
        self._server, self._sender = server, sender_address(sender)
        self._tls = tls or ssl.create_default_context()
        self._timeout = timeout
        self._places = asyncio.Semaphore(CONNECTIONS)
        self._idle: list[_Line] = []

    async def send(self, mail: Mail, may_leave: MayLeave = always) -> Outcome:
        """Hand an email over once, if it still may leave when a connection is ready for it."""
        try:
            content = compose(mail, self._sender)
        except HeaderError:
            return Failed("invalid_header")
        except AddressError:
            return Failed("invalid_address")
        try:
            async with self._line() as line:
                return await self._hand_over(line, recipient_address(mail).addr_spec, content, may_leave)
        except _NoLineError as error:
            _log.warning("mail_server_away", extra={"reason": error.outcome.reason, "detail": error.outcome.detail})
            return error.outcome

    async def close(self) -> None:
        """Say goodbye on every idle connection."""
        while self._idle:
            await _part(self._idle.pop())

    @contextlib.asynccontextmanager
    async def _line(self) -> AsyncIterator[_Line]:
        """Give a connection that works, and keep it afterwards if it still does; raise _NoLineError."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._places.acquire()
        except TimeoutError:
            raise _NoLineError(Retry("busy")) from None
        try:
            line = await self._used_line() or _Line(await self._connect())
            try:
                yield line
            except BaseException:
                line.client.close()
                raise
            self._keep(line)
        finally:
            self._places.release()

    async def _used_line(self) -> _Line | None:
        while self._idle:
            line = self._idle.pop()
            if line.is_fresh:
                with contextlib.suppress(SMTPException):
                    await line.client.rset()  # also asks whether the server is still there
                    return line
            line.client.close()
        return None

    async def _connect(self) -> SMTP:
        client = SMTP(
            hostname=self._server.host,
            port=self._server.port,
            local_hostname=self._sender.domain,
            timeout=self._timeout,
            use_tls=self._server.encryption == "implicit",
            start_tls=_START_TLS[self._server.encryption],
            tls_context=self._tls,
        )
        try:
            await self._begin(client)
        except BaseException:
            client.close()
            raise
        return client

    async def _begin(self, client: SMTP) -> None:
        try:
            async with asyncio.timeout(2 * self._timeout):
                await client.connect()
                await self._sign_in(client)
        except SMTPResponseException as error:
            raise _NoLineError(_not_received(error)) from None
        except (SMTPException, OSError) as error:  # among them TimeoutError and ssl.SSLError
            raise _NoLineError(Retry("tls_failed" if _is_about_tls(error) else "unreachable")) from None

    async def _sign_in(self, client: SMTP) -> None:
        if self._server.username is None:
            return
        if client.is_ehlo_or_helo_needed:
            await client.ehlo()
        if not client.supports_extension("auth"):
            raise _NoLineError(Retry("not_signed_in"))
        await client.login(self._server.username, self._server.password or "")

    async def _hand_over(self, line: _Line, recipient: str, content: bytes, may_leave: MayLeave) -> Outcome:
        line.uses += 1
        refusal = await self._announce(line.client, recipient)
        if refusal is not None:
            return refusal
        return await self._send_text(line.client, content) if may_leave() else Retry("busy")

    async def _announce(self, client: SMTP, recipient: str) -> Outcome | None:
        try:
            await client.mail(self._sender.addr_spec)
            await client.rcpt(recipient)
        except SMTPResponseException as error:
            return _refused(error)
        except (SMTPException, OSError):
            client.close()
            return Retry("unreachable")
        return None

    async def _send_text(self, client: SMTP, content: bytes) -> Outcome:
        try:
            async with asyncio.timeout(2 * self._timeout):
                answer = await client.data(content)
        except SMTPResponseException as error:
            if error.code >= 400:
                return _refused(error)
            client.close()  # what it said is no answer at all
            return Unknown("no_answer")
        except (SMTPException, OSError):
            client.close()
            return Unknown("no_answer")
        return Sent(f"SMTP {answer.code}")

    def _keep(self, line: _Line) -> None:
        line.used_ns = monotonic_ns()
        if line.is_fresh:
            self._idle.append(line)
        else:
            line.client.close()


class _NoLineError(Exception):
    """No connection came about; `outcome` says why."""

    def __init__(self, outcome: Retry) -> None:
        super().__init__()
        self.outcome = outcome


_START_TLS = {"implicit": False, "required": True, "offered": None, "never": False}


def _not_received(error: SMTPResponseException) -> Retry:
    """Return what a refusal of our whole connection means: the emails can do nothing about it, so none of them is dead."""
    reason: Reason = "not_signed_in" if isinstance(error, SMTPAuthenticationError) else "refused"
    return Retry(reason, detail=_code(error))


def _is_about_tls(error: Exception) -> bool:
    """Return whether TLS is what failed. The library raises its plain exception where STARTTLS is not offered."""
    return isinstance(error.__cause__ or error, ssl.SSLError) or type(error) is SMTPException


def _refused(error: SMTPResponseException) -> Outcome:
    """Return what a refusal of this email means: 5xx is for good."""
    return Failed("refused", _code(error)) if error.code >= 500 else Retry("refused", detail=_code(error))


def _code(error: SMTPResponseException) -> str:
    return f"SMTP {error.code}"


async def _part(line: _Line) -> None:
    with contextlib.suppress(SMTPException, OSError):
        await line.client.quit(timeout=1)
    line.client.close()
