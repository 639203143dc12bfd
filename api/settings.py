"""The settings of a process, read once from environment variables; no other module reads them.

A value that is not valid stops the process at its start, with a sentence that names the variable.
"""

import os
import re
from collections.abc import Callable, Mapping
from email.errors import HeaderParseError
from email.headerregistry import Address
from email.utils import parseaddr
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

Encryption = Literal["implicit", "required", "offered", "never"]
LoggedRequests = Literal["refused", "all"]


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


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an installation; docs/environment.md describes the variables."""

    database_url: str | None = None
    read_url: str | None = None  # a standby, which answers the queries of analysts
    data_dir: Path = msgspec.field(default_factory=lambda: Path(".workbench").absolute())
    postgres_bin: Path | None = None
    secret: str | None = None
    ingest_rate: float = 50.0  # events per second and organization
    ingest_burst: int = 100
    smtp: SmtpServer | None = None
    email_from: str = "workbench@localhost"
    retry_delays: tuple[float, ...] | None = None  # seconds
    webhook_allow: tuple[IPv4Network | IPv6Network, ...] = ()
    test_receivers: tuple[str, ...] = ()  # in addition to contacts
    public_url: str | None = None
    log_requests: LoggedRequests = "refused"
    fast_path: bool = True  # for single events
    metrics: tuple[str, int] | None = None  # host and port
    tracing: bool = False
    evm_rpc: tuple[str, ...] = ()  # nodes; of several for one chain, one is read and the others stand by
    chain_contacts: int = 10_000  # new contacts per automation and hour, for wallets that belong to none


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in `environ` (default: of this process); raise SettingsError."""
    source = os.environ if environ is None else environ

    values: dict[str, Any] = {}
    for field, (variable, parse) in _VARIABLES.items():
        text = source.get(variable)
        if not text:  # an empty variable counts as unset: compose files pass variables on as `${NAME:-}`
            continue
        try:
            values[field] = parse(text)
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


# Parsers of values; each raises ValueError with a sentence for the operator.


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 <= value < 1e9:  # also excludes nan and inf
        raise ValueError(f"{text!r} is not between 0 and 1e9")
    return value


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


def public_url(text: str) -> str:
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


_VARIABLES: Mapping[str, tuple[str, Callable[[str], object]]] = {  # by field: the variable, and its parser
    "database_url": ("DATABASE_URL", str),
    "read_url": ("WORKBENCH_READ_URL", str),
    "data_dir": ("WORKBENCH_DATA_DIR", lambda text: Path(text).absolute()),
    "postgres_bin": ("WORKBENCH_POSTGRES_BIN", Path),
    "secret": ("WORKBENCH_SECRET", str),
    "ingest_rate": ("WORKBENCH_INGEST_RATE", number),
    "ingest_burst": ("WORKBENCH_INGEST_BURST", lambda text: int(number(text))),
    "smtp": ("WORKBENCH_SMTP_URL", smtp_server),
    "email_from": ("WORKBENCH_EMAIL_FROM", sender),
    "retry_delays": ("WORKBENCH_RETRY_DELAYS", delays),
    "webhook_allow": ("WORKBENCH_WEBHOOK_ALLOW", networks),
    "test_receivers": ("WORKBENCH_TEST_RECEIVERS", receivers),
    "public_url": ("WORKBENCH_PUBLIC_URL", public_url),
    "log_requests": ("WORKBENCH_LOG_REQUESTS", logged_requests),
    "fast_path": ("WORKBENCH_FAST_PATH", switch),
    "metrics": ("WORKBENCH_METRICS", listener),
    "tracing": ("OTEL_EXPORTER_OTLP_ENDPOINT", bool),
    "evm_rpc": ("WORKBENCH_EVM_RPC", node_urls),
    "chain_contacts": ("WORKBENCH_CHAIN_CONTACTS", lambda text: int(number(text))),
}
assert _VARIABLES.keys() == set(Settings.__struct_fields__), "every setting has a variable"
