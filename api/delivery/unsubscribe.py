"""The token in `List-Unsubscribe`: which address, of which organization, gets no more emails.

It carries the blind index of the address, not the address, and a MAC. It never expires: an old email can be left, too.
"""

import base64
import binascii
import hmac
import struct

import msgspec

from api.keyring import Keyring

PATH = "/api/v1/unsubscribe"

_VERSION = b"u1"
_FORM = struct.Struct(">q16s16s")  # organization, blind index, MAC


class Unsubscribed(msgspec.Struct, frozen=True):
    """Whose wish a token is: the blind index of an email address, in hex; of a token that was read, all there are (`OrgKeys.all_of`)."""

    org_id: int
    address_digest: str


def make_url(public_url: str, keyring: Keyring, who: Unsubscribed) -> str:
    """Return the address at which one POST ends the emails to somebody."""
    return f"{public_url}{PATH}?token={make_token(keyring, who)}"


def make_token(keyring: Keyring, who: Unsubscribed) -> str:
    """Return the token of an address; the same one every time."""
    digest = bytes.fromhex(who.address_digest)
    mac = keyring.unsubscribe_mac(_signed(who.org_id, digest), who.address_digest)
    return base64.urlsafe_b64encode(_FORM.pack(who.org_id, digest, mac)).rstrip(b"=").decode()


def read_token(keyring: Keyring, token: str) -> Unsubscribed | None:
    """Return what a token says, None when it is not one of ours."""
    try:
        org_id, digest, mac = _FORM.unpack(base64.b64decode(token + "==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, struct.error):
        return None
    if not hmac.compare_digest(mac, keyring.unsubscribe_mac(_signed(org_id, digest), digest.hex())):
        return None
    return Unsubscribed(org_id, keyring.of(org_id).all_of(digest.hex()))


def _signed(org_id: int, digest: bytes) -> bytes:
    return b"%b/%d/%b" % (_VERSION, org_id, digest)
