"""Settings are parsed from the environment, and a malformed variable is named."""

from ipaddress import ip_network

import pytest

from api.settings import SettingsError, SmtpServer, read

SERVER = "mail.acme.example"


@pytest.mark.parametrize(
    ("url", "server"),
    [
        (f"smtp://{SERVER}", SmtpServer(SERVER, 25, "offered")),
        (f"smtp://{SERVER}:2525", SmtpServer(SERVER, 2525, "offered")),
        (f"smtps://{SERVER}", SmtpServer(SERVER, 465, "implicit")),
        (f"smtp://a%40b:p%2Fw@{SERVER}", SmtpServer(SERVER, 587, "required", "a@b", "p/w")),
        ("smtp://a:b@localhost:1025", SmtpServer("localhost", 1025, "offered", "a", "b")),
        ("smtp://a:b@[::1]:1025/", SmtpServer("::1", 1025, "offered", "a", "b")),
        (f"smtp://{SERVER}?starttls=required", SmtpServer(SERVER, 25, "required")),
        (f"smtp://a:b@{SERVER}?starttls=never", SmtpServer(SERVER, 587, "never", "a", "b")),
    ],
)
def test_a_mail_server_is_parsed(url: str, server: SmtpServer) -> None:
    assert read({"WORKBENCH_SMTP_URL": url}).smtp == server


@pytest.mark.parametrize(
    "url",
    [
        "mail.acme.example",
        "http://mail",
        "smtp://",
        "smtp://h:99999",
        "smtp://h:x",
        "smtp://h/x",
        "smtp://h?starttls=no",
    ],
)
def test_a_malformed_mail_server_is_reported(url: str) -> None:
    with pytest.raises(SettingsError, match="WORKBENCH_SMTP_URL"):
        read({"WORKBENCH_SMTP_URL": url})


def test_a_password_is_not_in_the_message() -> None:
    with pytest.raises(SettingsError) as caught:
        read({"WORKBENCH_SMTP_URL": "smtp://me:hunter2@mail:x"})
    assert "hunter2" not in str(caught.value)


def test_networks_for_webhooks_are_parsed() -> None:
    assert read({"WORKBENCH_WEBHOOK_ALLOW": "127.0.0.0/8, ::1 ,"}).webhook_allow == (
        ip_network("127.0.0.0/8"),
        ip_network("::1"),
    )
    assert read({}).webhook_allow == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("WORKBENCH_WEBHOOK_ALLOW", "localhost"),
        ("WORKBENCH_WEBHOOK_ALLOW", "10.0.0.1/8"),
        ("WORKBENCH_PUBLIC_URL", "workbench.example"),
        ("WORKBENCH_PUBLIC_URL", "ftp://workbench.example"),
        ("WORKBENCH_EMAIL_FROM", "nobody"),
        ("WORKBENCH_EMAIL_FROM", "Acme\n <a@b.example>"),
    ],
)
def test_a_malformed_variable_is_named(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name):
        read({name: text})


def test_the_address_of_the_api_has_no_slash_at_its_end() -> None:
    assert read({"WORKBENCH_PUBLIC_URL": "https://workbench.example/"}).public_url == "https://workbench.example"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", None), ("9464", ("127.0.0.1", 9464)), ("0.0.0.0:9464", ("0.0.0.0", 9464)), ("[::1]:9464", ("::1", 9464))],
)
def test_metrics_listen_on_this_machine_by_default(text: str, expected: tuple[str, int] | None) -> None:
    assert read({"WORKBENCH_METRICS": text}).metrics == expected


@pytest.mark.parametrize("text", ["x", "0", "99999", "127.0.0.1:", "a:b"])
def test_an_invalid_address_for_metrics_is_reported(text: str) -> None:
    with pytest.raises(SettingsError, match="WORKBENCH_METRICS: must be a port or host:port"):
        read({"WORKBENCH_METRICS": text})


def test_refused_requests_or_all_are_logged() -> None:
    assert [read({"WORKBENCH_FAST_PATH": value}).fast_path for value in ("", "on", "off")] == [True, True, False]
    with pytest.raises(SettingsError, match="WORKBENCH_FAST_PATH: 'no' is neither on nor off"):
        read({"WORKBENCH_FAST_PATH": "no"})
    assert [read({"WORKBENCH_LOG_REQUESTS": value}).log_requests for value in ("", "all")] == ["refused", "all"]
    with pytest.raises(SettingsError, match="WORKBENCH_LOG_REQUESTS: must be one of refused, all"):
        read({"WORKBENCH_LOG_REQUESTS": "none"})


def test_receivers_of_test_messages_are_parsed() -> None:
    text = "Me@Acme.example, acme.example, 0xAB, *"
    assert read({"WORKBENCH_TEST_RECEIVERS": text}).test_receivers == ("me@acme.example", "acme.example", "0xab", "*")
    assert read({}).test_receivers == ()


@pytest.mark.parametrize("text", ["https://acme.example", "a@b@c", "@acme.example", "*.acme.example", "a b"])
def test_invalid_receivers_of_test_messages_are_reported(text: str) -> None:
    with pytest.raises(SettingsError, match="WORKBENCH_TEST_RECEIVERS: must be addresses, domains or wallets"):
        read({"WORKBENCH_TEST_RECEIVERS": text})
