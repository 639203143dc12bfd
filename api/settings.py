"""The environment, read once into one frozen value; no other module reads it.

A malformed variable stops the process at start with a sentence naming the variable.
"""

import os
import re
from collections.abc import Mapping
from email.errors import HeaderParseError
from email.headerregistry import Address
from email.utils import parseaddr
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import msgspec

Encryption = Literal["implicit", "required", "offered", "never"]
LoggedRequests = Literal["refused", "all"]


class SettingsError(Exception):
    """An environment variable has a value we cannot use."""


class SmtpServer(msgspec.Struct, frozen=True):
    """Where emails are handed over. `encryption`: TLS from the first byte, by STARTTLS, by STARTTLS where offered, or none."""

    host: str
    port: int
    encryption: Encryption
    username: str | None = None
    password: str | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chose. Rates are events per second per organization; delays are seconds; `metrics`: host and port.

    `read_url`: a standby, which answers what analysts ask. `evm_rpc`: the nodes that are followed; several of one chain stand in for each other.
    `chain_contacts`: of how many wallets that nobody knows an automation makes contacts in an hour. `test_receivers`: who may receive tests
    beside contacts.
    """

    database_url: str | None = None
    read_url: str | None = None
    data_dir: Path = Path(".workbench")
    postgres_bin: Path | None = None
    secret: str | None = None
    ingest_rate: float = 50.0
    ingest_burst: int = 100
    smtp: SmtpServer | None = None
    email_from: str = "workbench@localhost"
    retry_delays: tuple[float, ...] | None = None
    webhook_allow: tuple[IPv4Network | IPv6Network, ...] = ()
    test_receivers: tuple[str, ...] = ()
    public_url: str | None = None
    log_requests: LoggedRequests = "refused"
    metrics: tuple[str, int] | None = None
    tracing: bool = False
    evm_rpc: tuple[str, ...] = ()
    chain_contacts: int = 10_000


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in `environ` (default: this process's); raise SettingsError naming a bad variable."""
    source = os.environ if environ is None else environ
    return Settings(
        database_url=source.get("DATABASE_URL") or None,
        read_url=source.get("WORKBENCH_READ_URL") or None,
        data_dir=Path(source.get("WORKBENCH_DATA_DIR") or ".workbench").absolute(),
        postgres_bin=Path(programs) if (programs := source.get("WORKBENCH_POSTGRES_BIN")) else None,
        secret=source.get("WORKBENCH_SECRET") or None,
        ingest_rate=_number(source, "WORKBENCH_INGEST_RATE", 50.0),
        ingest_burst=int(_number(source, "WORKBENCH_INGEST_BURST", 100.0)),
        smtp=_smtp(source, "WORKBENCH_SMTP_URL"),
        email_from=_sender(source, "WORKBENCH_EMAIL_FROM", "workbench@localhost"),
        retry_delays=_delays(source, "WORKBENCH_RETRY_DELAYS"),
        webhook_allow=_networks(source, "WORKBENCH_WEBHOOK_ALLOW"),
        test_receivers=_receivers(source, "WORKBENCH_TEST_RECEIVERS"),
        public_url=_origin(source, "WORKBENCH_PUBLIC_URL"),
        log_requests=_logged(source, "WORKBENCH_LOG_REQUESTS"),
        metrics=_listener(source, "WORKBENCH_METRICS"),
        tracing=bool(source.get("OTEL_EXPORTER_OTLP_ENDPOINT")),
        evm_rpc=_nodes(source, "WORKBENCH_EVM_RPC"),
        chain_contacts=int(_number(source, "WORKBENCH_CHAIN_CONTACTS", 10_000.0)),
    )


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return this process's environment for a child, with changes; None takes a variable away."""
    kept = {name: value for name, value in os.environ.items() if name not in changes}
    return kept | {name: value for name, value in changes.items() if value is not None}


def path_before(folder: Path) -> str:
    """Return this process's PATH with a folder before it: a child finds the programs there first."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PATH"))))


def _number(source: Mapping[str, str], name: str, default: float) -> float:
    text = source.get(name)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        raise SettingsError(f"{name}: {text!r} is not a number") from None
    if not 0 <= number < 1e9:
        raise SettingsError(f"{name}: {text!r} is not between 0 and 1e9")
    return number


def _delays(source: Mapping[str, str], name: str) -> tuple[float, ...] | None:
    text = source.get(name)
    if not text:
        return None
    try:
        delays = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise SettingsError(f"{name}: {text!r} is not a comma-separated list of seconds") from None
    if any(not 0 <= delay < 1e9 for delay in delays):
        raise SettingsError(f"{name}: {text!r} has a delay that is not between 0 and 1e9 seconds")
    return delays


def _networks(source: Mapping[str, str], name: str) -> tuple[IPv4Network | IPv6Network, ...]:
    parts = [part.strip() for part in source.get(name, "").split(",")]
    try:
        return tuple(ip_network(part) for part in parts if part)
    except ValueError as error:
        raise SettingsError(f"{name}: {error}; write CIDRs like 10.1.0.0/16, separated by commas") from None


def _receivers(source: Mapping[str, str], name: str) -> tuple[str, ...]:
    parts = tuple(part.strip().lower() for part in source.get(name, "").split(",") if part.strip())
    if any(re.fullmatch(r"\*|([^\s@/]+@)?[^\s@/:*]+", part) is None for part in parts):
        raise SettingsError(f"{name}: must be addresses, domains or wallets, separated by commas, or *")
    return parts


def _nodes(source: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return addresses of JSON-RPC nodes; they may carry secrets, so the error shows none."""
    urls = tuple(part.strip() for part in source.get(name, "").split(",") if part.strip())
    for url in urls:
        parts = _split(url, name)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"{name}: must be addresses like https://node.example.com, separated by commas")
    return urls


def _origin(source: Mapping[str, str], name: str) -> str | None:
    """Return the address at which browsers and mail programs find the API, without a slash at its end."""
    text = source.get(name)
    if not text:
        return None
    parts = _split(text, name)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise SettingsError(f"{name}: must be an address like https://workbench.example.com")
    return text.rstrip("/")


def _logged(source: Mapping[str, str], name: str) -> LoggedRequests:
    text = source.get(name) or "refused"
    for each in get_args(LoggedRequests):
        if text == each:
            return each  # type: ignore[no-any-return]
    raise SettingsError(f"{name}: must be one of {', '.join(get_args(LoggedRequests))}")


def _listener(source: Mapping[str, str], name: str) -> tuple[str, int] | None:
    """Return host and port of `host:port`, or of `port` on this machine alone."""
    text = source.get(name)
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise SettingsError(f"{name}: must be a port or host:port, like 127.0.0.1:9464")
    return host.strip("[]") or "127.0.0.1", int(port)


def _sender(source: Mapping[str, str], name: str, default: str) -> str:
    text = source.get(name) or default
    display, spec = parseaddr(text)
    try:
        address = Address(display, addr_spec=spec)
    except (ValueError, HeaderParseError):
        address = Address()
    if not (address.domain and spec.isascii() and text.isprintable()):
        raise SettingsError(f"{name}: must be an address like Acme <news@acme.example>")
    return text


def _smtp(source: Mapping[str, str], name: str) -> SmtpServer | None:
    """Return the server in `smtp[s]://[user:password@]host[:port][?starttls=required|offered|never]`.

    `smtp` without a word about it takes STARTTLS where it is offered, and insists on it before a password leaves the machine.
    """
    text = source.get(name)
    if not text:
        return None
    parts = _split(text, name)
    if parts.scheme not in ("smtp", "smtps") or not parts.hostname or parts.path.strip("/"):
        raise SettingsError(f"{name}: must be like smtp://user:password@mail.example.com:587 or smtps://…")
    username, password = (None if each is None else unquote(each) for each in (parts.username, parts.password))
    encryption = _encryption(parts, name)
    port = parts.port or (465 if encryption == "implicit" else 587 if username else 25)
    return SmtpServer(parts.hostname, port, encryption, username or None, password)


def _encryption(parts: SplitResult, name: str) -> Encryption:
    chosen = parse_qs(parts.query).get("starttls", [""])[-1]
    if parts.scheme == "smtps":
        return "implicit"
    for each in get_args(Encryption)[1:]:
        if chosen == each:
            return each  # type: ignore[no-any-return]
    if chosen:
        raise SettingsError(f"{name}: starttls must be one of {', '.join(get_args(Encryption)[1:])}")
    return "required" if parts.username and not _is_loopback(parts.hostname or "") else "offered"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _split(text: str, name: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise SettingsError(f"{name}: is not an address") from None
    return parts
