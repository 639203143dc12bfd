"""The environment, read once into one frozen value; no other module reads it.

A malformed variable stops the process at start with a sentence naming the variable. `smtp_url`, `email_from`,
`webhook_allow` and `evm_rpc` are the documented environment of channels and the on-chain follower; nothing reads them yet.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec


class SettingsError(Exception):
    """An environment variable has a value we cannot use."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator chose. Rates are events per second per organization; delays are seconds."""

    database_url: str | None = None
    data_dir: Path = Path(".workbench")
    postgres_bin: Path | None = None
    secret: str | None = None
    ingest_rate: float = 50.0
    ingest_burst: int = 100
    smtp_url: str | None = None
    email_from: str = "workbench@localhost"
    retry_delays: tuple[float, ...] | None = None
    webhook_allow: tuple[str, ...] = ()
    evm_rpc: str | None = None


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in `environ` (default: this process's); raise SettingsError naming a bad variable."""
    source = os.environ if environ is None else environ
    return Settings(
        database_url=source.get("DATABASE_URL") or None,
        data_dir=Path(source.get("WORKBENCH_DATA_DIR") or ".workbench").absolute(),
        postgres_bin=Path(programs) if (programs := source.get("WORKBENCH_POSTGRES_BIN")) else None,
        secret=source.get("WORKBENCH_SECRET") or None,
        ingest_rate=_number(source, "WORKBENCH_INGEST_RATE", 50.0),
        ingest_burst=int(_number(source, "WORKBENCH_INGEST_BURST", 100.0)),
        smtp_url=source.get("WORKBENCH_SMTP_URL") or None,
        email_from=source.get("WORKBENCH_EMAIL_FROM") or "workbench@localhost",
        retry_delays=_delays(source, "WORKBENCH_RETRY_DELAYS"),
        webhook_allow=tuple(
            part.strip() for part in source.get("WORKBENCH_WEBHOOK_ALLOW", "").split(",") if part.strip()
        ),
        evm_rpc=source.get("WORKBENCH_EVM_RPC") or None,
    )


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return this process's environment for a child, with changes; None takes a variable away."""
    kept = {name: value for name, value in os.environ.items() if name not in changes}
    return kept | {name: value for name, value in changes.items() if value is not None}


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
