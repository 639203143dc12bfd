"""The settings of a process, read once from environment variables; no other module reads them.

A value that is not valid stops the process at its start, with a sentence that names the variable.
"""

import os
import re
from collections.abc import Mapping
from email.errors import HeaderParseError
from email.headerregistry import Address
from email.utils import parseaddr
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

Encryption = Literal["implicit", "required", "offered", "never"]
LoggedRequests = Literal["refused", "all"]

DEFAULT_DATA_DIR = ".workbench"  # in the working directory


class SettingsError(Exception):
    """An environment variable has a value that is not valid; the message names the variable."""


class SmtpServer(msgspec.Struct, frozen=True):
    """The server that sends emails.

    `encryption`: `implicit` (TLS from the first byte), `required` (STARTTLS), `offered` (STARTTLS if the server
    supports it), or `none`.
    """

    host: str
    port: int
    encryption: Encryption
    username: str | None = None
    password: str | None = None


# Parsers of values; each raises ValueError with a sentence for the operator.


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 <= value < 1e9:  # also excludes nan and inf
        raise ValueError(f"{text!r} is not between 0 and 1e9")
    return value


def whole_number(text: str) -> int:
    return int(number(text))


def absolute_path(text: str) -> Path:
    return Path(text).absolute()


def delays(text: str) -> tuple[float, ...]:
    """Parse seconds, separated by commas."""
    return tuple(map(number, text.split(",")))


def networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(part) for part in _parts(text))
    except ValueError as error:
        raise ValueError(f"{error}; write CIDRs like 10.1.0.0/16, separated by commas") from None


def receivers(text: str) -> tuple[str, ...]:
    """Parse email addresses, domains and wallets, in lower case; `*` allows all receivers."""
    values = tuple(part.lower() for part in _parts(text))
    if any(re.fullmatch(r"\*|([^\s@/]+@)?[^\s@/:*]+", value) is None for value in values):
        raise ValueError("must be addresses, domains or wallets, separated by commas, or *")
    return values


def node_urls(text: str) -> tuple[str, ...]:
    values = tuple(_parts(text))
    for value in values:
        parts = _split_url(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            # The URL may contain a secret, so it is not in the message.
            raise ValueError("must be URLs like https://node.example.com, separated by commas")
    return values


def web_address(text: str) -> str:
    """Parse the URL at which browsers and mail programs find the API; the result has no slash at its end."""
    parts = _split_url(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise ValueError("must be a URL like https://workbench.example.com")
    return text.rstrip("/")


def switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise ValueError(f"{text!r} is neither on nor off")
    return text == "on"


def logged_requests(text: str) -> LoggedRequests:
    for value in get_args(LoggedRequests):
        if text == value:
            return value  # type: ignore[no-any-return]
    raise ValueError(f"must be one of {', '.join(get_args(LoggedRequests))}")


def listener(text: str) -> tuple[str, int]:
    """Parse `host:port`, or `port` for this machine only."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError("must be a port or host:port, like 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


def sender(text: str) -> str:
    name, spec = parseaddr(text)
    try:
        address = Address(name, addr_spec=spec)
    except (ValueError, HeaderParseError):
        address = Address()
    if not (address.domain and spec.isascii() and text.isprintable()):
        raise ValueError("must be an address like Acme <news@acme.example>")
    return text


def smtp_server(text: str) -> SmtpServer:
    """Parse `smtp[s]://[user:password@]host[:port][?starttls=required|offered|never]`.

    The default of `smtp` is `offered`. With a password it is `required`, so that the password never leaves the machine
    unencrypted.
    """
    parts = _split_url(text)
    host = parts.hostname
    if parts.scheme not in ("smtp", "smtps") or not host or parts.path.strip("/"):
        raise ValueError("must be like smtp://user:password@mail.example.com:587 or smtps://…")
    username, password = (None if value is None else unquote(value) for value in (parts.username, parts.password))
    try:
        is_loopback = ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    starttls = parse_qs(parts.query).get("starttls", [""])[-1]
    encryption: Encryption
    if parts.scheme == "smtps":
        encryption = "implicit"
    elif not starttls:
        encryption = "required" if parts.username and not is_loopback else "offered"
    else:
        modes = get_args(Encryption)[1:]
        if starttls not in modes:
            raise ValueError(f"starttls must be one of {', '.join(modes)}")
        encryption = cast(Encryption, starttls)
    port = parts.port or (465 if encryption == "implicit" else 587 if username else 25)
    return SmtpServer(host, port, encryption, username or None, password)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _split_url(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError for a port that is not a number
    except ValueError:
        raise ValueError("is not a URL") from None
    return parts


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an installation, each with its variable and the parser; docs/environment.md describes them."""

    database_url: Annotated[str | None, "DATABASE_URL", str] = None
    read_url: Annotated[str | None, "WORKBENCH_READ_URL", str] = None  # a standby, which answers analysts' queries
    data_dir: Annotated[Path, "WORKBENCH_DATA_DIR", absolute_path] = msgspec.field(
        default_factory=lambda: absolute_path(DEFAULT_DATA_DIR)
    )
    postgres_bin: Annotated[Path | None, "WORKBENCH_POSTGRES_BIN", Path] = None
    secret: Annotated[str | None, "WORKBENCH_SECRET", str] = None
    ingest_rate: Annotated[float, "WORKBENCH_INGEST_RATE", number] = 50.0  # events per second and organization
    ingest_burst: Annotated[int, "WORKBENCH_INGEST_BURST", whole_number] = 100
    smtp: Annotated[SmtpServer | None, "WORKBENCH_SMTP_URL", smtp_server] = None
    email_from: Annotated[str, "WORKBENCH_EMAIL_FROM", sender] = "workbench@localhost"
    return_path: Annotated[str | None, "WORKBENCH_RETURN_PATH", sender] = None  # where mail servers send bounces
    retry_delays: Annotated[tuple[float, ...] | None, "WORKBENCH_RETRY_DELAYS", delays] = None  # seconds
    webhook_allow: Annotated[tuple[IPv4Network | IPv6Network, ...], "WORKBENCH_WEBHOOK_ALLOW", networks] = ()
    test_receivers: Annotated[tuple[str, ...], "WORKBENCH_TEST_RECEIVERS", receivers] = ()  # in addition to contacts
    public_url: Annotated[str | None, "WORKBENCH_PUBLIC_URL", web_address] = None
    log_requests: Annotated[LoggedRequests, "WORKBENCH_LOG_REQUESTS", logged_requests] = "refused"
    fast_path: Annotated[bool, "WORKBENCH_FAST_PATH", switch] = True  # for single events
    parts: Annotated[bool, "WORKBENCH_PARTS", switch] = True  # files of events for questions about many
    metrics: Annotated[tuple[str, int] | None, "WORKBENCH_METRICS", listener] = None  # host and port
    tracing: Annotated[bool, "OTEL_EXPORTER_OTLP_ENDPOINT", bool] = False
    # Nodes; of several for one chain, one is read and the others stand by.
    evm_rpc: Annotated[tuple[str, ...], "WORKBENCH_EVM_RPC", node_urls] = ()
    # New contacts per automation and hour, for wallets that belong to none.
    chain_contacts: Annotated[int, "WORKBENCH_CHAIN_CONTACTS", whole_number] = 10_000


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in `environ` (default: of this process); raise SettingsError."""
    source = os.environ if environ is None else environ

    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(Settings):
        variable, parse = field.type.__metadata__
        text = source.get(variable)
        if not text:  # an empty variable counts as unset: compose files pass variables on as `${NAME:-}`
            continue
        try:
            values[field.name] = parse(text)
        except ValueError as error:
            raise SettingsError(f"{variable}: {error}") from None
    return Settings(**values)


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment of this process with changes, for a child; None removes a variable."""
    unchanged = {name: value for name, value in os.environ.items() if name not in changes}
    return unchanged | {name: value for name, value in changes.items() if value is not None}


def path_before(folder: Path) -> str:
    """Return this process's PATH with a folder before it, so that a child finds the programs there first."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PATH"))))
