"""The one normal form of an email address, and the form that may be shown to everybody."""

import re
import unicodedata

MAX_EMAIL = 320

_LOCAL = re.compile(r"[a-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[a-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_DOMAIN = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+(?![0-9]+$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def mask_email(email: str) -> str:
    """Return an address of which only the first character and the domain can be read: `a•••@example.com`."""
    local, at, domain = email.rpartition("@")
    return f"{local[:1]}•••{at}{domain}"


def normal_email(email: str) -> str | None:
    """Return the one normal form of an address (lower case, NFC, IDNA domain), or None when it is not valid."""
    if len(email) > MAX_EMAIL or not email.isprintable():  # controls, invisible characters
        return None
    local, at, domain = email.rpartition("@")
    if email.isascii():
        local, domain = local.lower(), domain.lower()
        plain = local
    else:
        local = unicodedata.normalize("NFC", unicodedata.normalize("NFC", local).lower())
        plain = "".join(character if character.isascii() else "x" for character in local)
        try:
            domain = domain.encode("idna").decode().lower()
        except UnicodeError:
            return None
    valid = at and len(local) <= 64 and len(domain) <= 255 and _LOCAL.fullmatch(plain) and _DOMAIN.fullmatch(domain)
    return f"{local}@{domain}" if valid else None
