"""What leaves the house: one attempt through the transport of its channel, and what its outcome means for the entry."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from api.delivery.email import mailer
from api.delivery.mail import Mail, Mailer
from api.delivery.outcome import Failed, MayLeave, Outcome, Reason, Retry, Sent, Unknown
from api.delivery.unsubscribe import Unsubscribed, make_url
from api.delivery.webhook import Hook, Webhooks, webhooks
from api.engine.outbox import Parcel, address_digest
from api.keyring import Keyring
from api.language.advance import failed
from api.language.decision import Decision, Failure
from api.language.graph import Graph
from api.language.run import State
from api.settings import Settings
from api.store.outbox import Settled, Stored

BUSY_PAUSE = timedelta(seconds=5)
LOCAL_URL = "http://localhost:8000"  # where nobody said how the API is found

_SENTENCES: Mapping[Reason, str] = {
    "unreachable": "no connection came about",
    "tls_failed": "its certificate is not valid",
    "refused": "the receiver said no",
    "not_signed_in": "the mail server does not take our name and password",
    "no_answer": "it may have arrived: no answer came",
    "gone": "the endpoint is no more",
    "invalid_header": "a header would carry what could be read as another one",
    "invalid_address": "nobody can be reached under this address",
}


class Withheld(msgspec.Struct, frozen=True):
    """It is not sent at all: it went out before (`already_sent`), or its receiver wants none (`skipped`)."""

    outcome: Literal["already_sent", "skipped"]
    cause: str | None = None


Ended: TypeAlias = Outcome | Withheld


class Transports(msgspec.Struct, frozen=True):
    """The ways out. `public_url`: where the API is found, for links in emails."""

    mailer: Mailer
    webhooks: Webhooks
    public_url: str

    async def close(self) -> None:
        """End every connection."""
        await self.mailer.close()
        await self.webhooks.close()


def transports(settings: Settings) -> Transports:
    """Return the ways out of this installation; the caller closes them."""
    return Transports(mailer(settings), webhooks(settings), settings.public_url or LOCAL_URL)


async def attempt(
    ways: Transports, keyring: Keyring, org_id: int, parcel: Parcel, now: datetime, may_leave: MayLeave
) -> Ended:
    """Send a message once, if it is to be sent and still may leave when its turn has come."""
    stored = parcel.stored
    if stored is None:
        return Withheld("already_sent")
    if stored.opted_out or (stored.channel == "email" and parcel.closed):
        return Withheld("skipped", "opted_out")
    if stored.channel == "email":
        return await _mail(ways, keyring, org_id, stored, may_leave)
    if parcel.closed:
        return Failed("gone", "the endpoint said so before")
    hook = Hook(org_id, stored.id, stored.recipient, stored.body, parcel.secrets)
    return await ways.webhooks.send(hook, now, may_leave)


async def _mail(ways: Transports, keyring: Keyring, org_id: int, stored: Stored, may_leave: MayLeave) -> Outcome:
    recipient = keyring.of(org_id).open_email(stored.recipient)
    url = make_url(ways.public_url, keyring, Unsubscribed(org_id, address_digest(keyring, org_id, stored)))
    content = (recipient, stored.subject or "", stored.body, stored.html)
    return await ways.mailer.send(Mail(stored.id, stored.created_at, *content, url), may_leave)


def judged(parcel: Parcel, graph: Graph, ended: Ended, now: datetime) -> tuple[Decision, Settled | None]:
    """Return what becomes of the entry, and of its message (None: nothing new)."""
    run, decision = parcel.progress.run, parcel.pending.decision
    match ended:
        case Sent():
            return decision, Settled("sent", "sent")
        case Withheld("already_sent" as outcome):
            return _told(decision, outcome, None), None
        case Withheld(outcome, cause):
            return _told(decision, outcome, cause), Settled("skipped", "skipped", cause)
        case Retry("busy"):
            pause = run.to(State.RETRYING, attempt=run.attempt - 1, due_at=now + BUSY_PAUSE, error=_BUSY, since=None)
            return Decision(pause), Settled("queued", None)
        case _:
            return _fallen(parcel, graph, ended, now)


def _fallen(parcel: Parcel, graph: Graph, ended: Retry | Failed | Unknown, now: datetime) -> tuple[Decision, Settled]:
    """Return what becomes of an attempt that did not succeed, as far as we know."""
    instead = failed(graph, parcel.progress.run, _failure(ended), parcel.pending.facts, now)
    if isinstance(ended, Unknown):
        return instead, Settled("unknown", "unknown", ended.reason)
    if instead.run.state is State.RETRYING:
        return instead, Settled("queued", "retrying", ended.reason)
    return instead, Settled("failed", "failed", ended.reason)


def _failure(ended: Retry | Failed | Unknown) -> Failure:
    why = _why(ended.reason, ended.detail)
    match ended:
        case Retry(after_seconds=seconds):
            return Failure(ended.reason, why, not_before=timedelta(seconds=seconds or 0))
        case Failed():
            return Failure(ended.reason, why, for_good=True)
        case Unknown():
            return Failure(ended.reason, why)


_BUSY = "busy: too many deliveries wait for this endpoint"


def _told(decision: Decision, outcome: str, cause: str | None) -> Decision:
    """Return the decision with what really happened at its step."""
    assert decision.step is not None, "an effect is a step"
    detail = decision.step.detail if cause is None else {"cause": cause}
    return msgspec.structs.replace(
        decision, step=msgspec.structs.replace(decision.step, outcome=outcome, detail=detail)
    )


def _why(reason: Reason, detail: str) -> str:
    sentence = _SENTENCES.get(reason, reason)
    return f"{sentence} ({detail})" if detail else sentence
