"""What travels over a socket, as JSON text: AUTH and ACK from the client, PUSH and SESSION to it."""

import re
from datetime import datetime
from typing import Literal

import msgspec

from api.store.inbox import Waiting

_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII)
_NOTHING = msgspec.Raw(b"null")


class Auth(msgspec.Struct, frozen=True, tag_field="type", tag="AUTH"):
    """The first frame: the token of a session."""

    token: str


class Ack(msgspec.Struct, frozen=True, tag_field="type", tag="ACK"):
    """The client has a message."""

    id: str


class _Push(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    title: str
    body: str
    data: msgspec.Raw
    created_at: datetime
    type: Literal["PUSH"] = "PUSH"


class _Renewed(msgspec.Struct, frozen=True, rename="camel"):
    token: str
    expires_at: datetime
    type: Literal["SESSION"] = "SESSION"


_DECODER = msgspec.json.Decoder(Auth | Ack)


def read_frame(text: str) -> Auth | Ack | None:
    """Return a client's frame, or None for what is none. Fields we do not know are passed over."""
    try:
        frame = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return frame if isinstance(frame, Auth) or _ID.fullmatch(frame.id) else None


def push(message: Waiting) -> bytes:
    """Return the frame that brings a message."""
    extra = _NOTHING if message.extra is None else msgspec.Raw(message.extra)
    return msgspec.json.encode(_Push(message.id, message.title, message.body, extra, message.created_at))


def renewed(token: str, expires_at: datetime) -> bytes:
    """Return the frame that brings the token with which the client opens its next sockets."""
    return msgspec.json.encode(_Renewed(token, expires_at))
