"""Emails through a real mail server, well-behaved and not (docs/trust.md J8, J9, J11)."""

import asyncio
import contextlib
import email
import ssl
from collections.abc import AsyncIterator
from email.policy import default
from typing import Any

import msgspec
import pytest
from aiosmtpd import smtp as server_side
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword, Session

from api.channels.email import MAX_CONNECTIONS, SmtpMailer
from api.channels.outcome import Failed, Outcome, Retry, Sent, Unknown
from api.settings import SmtpServer
from tests.channels.conftest import Authority
from tests.channels.test_mime import AT, MAIL


class MailServer:
    """A mail server: the received emails, and the response code for each command."""

    def __init__(self, **answers: str) -> None:
        self.envelopes: list[Envelope] = []
        self.connections = 0
        self.port = 0
        self.answers = answers
        self.release = asyncio.Event()

    async def handle_MAIL(  # noqa: N802  as the library has it
        self, server: server_side.SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        envelope.mail_from = address
        return self.answers.get("mail", "250 OK")

    async def handle_RCPT(  # noqa: N802
        self, server: server_side.SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if "rcpt" not in self.answers:
            envelope.rcpt_tos.append(address)
        return self.answers.get("rcpt", "250 OK")

    async def handle_DATA(self, server: server_side.SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        self.envelopes.append(envelope)
        match answer := self.answers.get("data", "250 OK"):
            case "drop":
                assert server.transport is not None
                server.transport.abort()
                return "250 OK"
            case "hang":
                await self.release.wait()
                return "250 OK"
        return answer


@contextlib.asynccontextmanager
async def mail_server(
    tls: ssl.SSLContext | None = None, *, options: dict[str, Any] | None = None, **answers: str
) -> AsyncIterator[MailServer]:
    """Run a mail server until the block ends; with `tls`, it expects TLS from the first byte."""
    made = MailServer(**answers)
    open_ones: list[server_side.SMTP] = []

    def connect() -> server_side.SMTP:
        made.connections += 1
        open_ones.append(
            server_side.SMTP(made, hostname="mail.example", loop=asyncio.get_running_loop(), **options or {})
        )
        return open_ones[-1]

    server = await asyncio.get_running_loop().create_server(connect, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.release.set()
        server.close()
        for connection in open_ones:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def transport(
    server: MailServer,
    encryption: Any = "offered",
    tls: ssl.SSLContext | None = None,
    return_path: str | None = None,
    **rest: Any,
) -> AsyncIterator[SmtpMailer]:
    """Return a mailer for a server, with a short `timeout`."""
    where = SmtpServer("localhost", server.port, encryption, **rest)
    made = SmtpMailer(where, "Acme <news@acme.example>", tls, return_path=return_path, response_timeout_s=2)
    yield made
    await made.close()


async def outcome(server: MailServer, **changes: Any) -> Outcome:
    async with transport(server) as smtp:
        return await smtp.send(msgspec.structs.replace(MAIL, **changes), AT)


async def test_an_email_arrives_as_it_was_composed() -> None:
    async with mail_server() as server:
        assert await outcome(server) == Sent("SMTP 250")
    (envelope,) = server.envelopes
    assert (envelope.mail_from, envelope.rcpt_tos) == ("news@acme.example", ["zoe@acme.example"])
    assert isinstance(envelope.content, bytes)
    message = email.message_from_bytes(envelope.content, policy=default)
    assert message["Message-ID"] == "<0193-1@acme.example>"
    assert message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"


async def test_bounces_are_sent_to_the_return_path() -> None:
    async with mail_server() as server, transport(server, return_path="bounces@acme.example") as smtp:
        assert await smtp.send(MAIL, AT) == Sent("SMTP 250")
    (envelope,) = server.envelopes
    assert envelope.mail_from == "bounces@acme.example"
    assert isinstance(envelope.content, bytes)
    assert email.message_from_bytes(envelope.content, policy=default)["From"] == "Acme <news@acme.example>"


@pytest.mark.parametrize(
    "body", [".", "a\n.\nb", "a\r.\rb", "a\n.\r\nMAIL FROM:<x@y.example>\r\nRCPT TO:<v@y.example>\r\n"]
)
async def test_no_body_ends_an_email_early(body: str) -> None:
    async with mail_server() as server:
        assert await outcome(server, body=body) == Sent("SMTP 250")
        assert await outcome(server) == Sent("SMTP 250")
    assert [envelope.rcpt_tos for envelope in server.envelopes] == [["zoe@acme.example"]] * 2
    message = email.message_from_bytes(server.envelopes[0].content, policy=default)  # type: ignore[arg-type]
    assert message.get_content().split() == body.split()  # type: ignore[attr-defined]


async def test_a_header_that_could_become_two_never_reaches_the_server() -> None:
    async with mail_server() as server:
        assert await outcome(server, subject="Hi\r\nBcc: v@x.example") == Failed("invalid_header")
        assert await outcome(server, address="zoe@acme.example>\r\nRCPT TO:<v@x.example") == Failed("invalid_header")
        assert await outcome(server, address="two@acme.example, more@acme.example") == Failed("invalid_address")
        assert server.connections == 0


@pytest.mark.parametrize("command", ["mail", "rcpt", "data"])
async def test_a_4xx_is_retried_and_a_5xx_is_not(command: str) -> None:
    async with mail_server(**{command: "451 try later, zoe@acme.example"}) as server:
        assert await outcome(server) == Retry("refused", detail="SMTP 451")
    async with mail_server(**{command: "550 never, zoe@acme.example"}) as server:
        assert await outcome(server) == Failed("refused", "SMTP 550")


@pytest.mark.parametrize("fault", ["drop", "hang", "what?"])
async def test_a_failure_after_data_is_an_unknown_outcome(fault: str) -> None:
    async with mail_server(data=fault) as server:
        assert await outcome(server) == Unknown("no_answer")
        server.answers["data"] = "250 OK"
        assert await outcome(server) == Sent("SMTP 250")
    first, second = (envelope.content for envelope in server.envelopes)
    assert first == second


async def test_an_email_without_a_reachable_server_is_retried() -> None:
    async with mail_server() as server:
        pass
    assert await outcome(server) == Retry("unreachable")


async def test_a_silent_server_times_out() -> None:
    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as server:
        stopped_server = MailServer()
        stopped_server.port = server.sockets[0].getsockname()[1]
        assert await outcome(stopped_server) == Retry("unreachable")


async def test_a_server_that_rejects_every_connection_makes_no_email_fail() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"554 go away\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        stopped_server = MailServer()
        stopped_server.port = server.sockets[0].getsockname()[1]
        assert await outcome(stopped_server) == Retry("refused", detail="SMTP 554")


async def test_a_connection_serves_many_emails() -> None:
    async with mail_server() as server, transport(server) as smtp:
        assert [await smtp.send(MAIL, AT) for _ in range(5)] == [Sent("SMTP 250")] * 5
        assert server.connections == 1


async def test_an_email_that_was_refused_leaves_the_connection_usable() -> None:
    async with mail_server(rcpt="550 no") as server, transport(server) as smtp:
        assert await smtp.send(MAIL, AT) == Failed("refused", "SMTP 550")
        del server.answers["rcpt"]
        assert await smtp.send(MAIL, AT) == Sent("SMTP 250")
        assert server.connections == 1


async def test_an_email_that_may_no_longer_leave_is_not_sent() -> None:
    async with mail_server() as server, transport(server) as smtp:
        assert await smtp.send(MAIL, AT, lambda: False) == Retry("busy")
        assert server.envelopes == []
        assert await smtp.send(MAIL, AT) == Sent("SMTP 250")


async def test_a_connection_that_ended_meanwhile_is_replaced() -> None:
    async with mail_server(data="drop") as server, transport(server) as smtp:
        server.answers["data"] = "250 OK"
        assert await smtp.send(MAIL, AT) == Sent("SMTP 250")
        server.answers["data"] = "drop"
        assert await smtp.send(MAIL, AT) == Unknown("no_answer")
        server.answers["data"] = "250 OK"
        assert await smtp.send(MAIL, AT) == Sent("SMTP 250")
        assert server.connections == 2


async def test_connections_are_limited() -> None:
    async with mail_server() as server, transport(server) as smtp:
        sent = await asyncio.gather(*(smtp.send(MAIL, AT) for _ in range(4 * MAX_CONNECTIONS)))
        assert sent == [Sent("SMTP 250")] * 4 * MAX_CONNECTIONS
        assert server.connections <= MAX_CONNECTIONS


async def test_tls_from_the_first_byte(authority: Authority) -> None:
    async with mail_server(authority.server("localhost")) as server:
        async with transport(server, "implicit", authority.believer) as smtp:
            assert await smtp.send(MAIL, AT) == Sent("SMTP 250")
        async with transport(server, "implicit") as smtp:  # the certificate is not trusted
            assert await smtp.send(MAIL, AT) == Retry("tls_failed")


async def test_starttls_is_used_where_it_is_offered(authority: Authority) -> None:
    tls = {"tls_context": authority.server("localhost"), "require_starttls": True}
    async with mail_server(options=tls) as server:
        async with transport(server, "offered", authority.believer) as smtp:
            assert await smtp.send(MAIL, AT) == Sent("SMTP 250")
        async with transport(server, "required", authority.believer) as smtp:
            assert await smtp.send(MAIL, AT) == Sent("SMTP 250")
        async with transport(server, "required", Authority().believer) as smtp:
            assert await smtp.send(MAIL, AT) == Retry("tls_failed")


async def test_starttls_that_is_required_and_not_offered_sends_nothing(authority: Authority) -> None:
    async with mail_server() as server, transport(server, "required", authority.believer) as smtp:
        assert await smtp.send(MAIL, AT) == Retry("tls_failed")
        assert server.envelopes == []


async def test_the_mailer_logs_in_with_name_and_password(authority: Authority) -> None:
    def check(_: Any, __: Any, ___: Any, ____: Any, credentials: Any) -> AuthResult:
        return AuthResult(success=credentials == LoginPassword(b"acme", b"p@ss"), handled=False)

    options = {"tls_context": authority.server("localhost"), "authenticator": check, "auth_required": True}
    async with mail_server(options=options) as server:
        async with transport(server, "required", authority.believer, username="acme", password="p@ss") as smtp:
            assert await smtp.send(MAIL, AT) == Sent("SMTP 250")
        async with transport(server, "required", authority.believer, username="acme", password="wrong") as smtp:
            assert await smtp.send(MAIL, AT) == Retry("not_signed_in", detail="SMTP 535")
        async with transport(server, "never", username="acme", password="p@ss") as smtp:
            assert await smtp.send(MAIL, AT) == Retry("not_signed_in")  # the server does not take passwords in clear
