"""Moments as files have them, in the contract's form."""

import re

_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(:\d\d(?:\.\d+)?)?)?\s?(?:([Zz]|UTC)|([+-]\d\d):?(\d\d)?)?", re.ASCII
)


def moment(value: object) -> object:
    """Return an RFC 3339 moment for a date, with or without a time and a zone: without, midnight and UTC are meant.

    What is none is returned as it is: the judge of events refuses it.
    """
    found = _MOMENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return value
    day, minute, second, _, hours, minutes = found.groups()
    zone = f"{hours}:{minutes or '00'}" if hours else "Z"
    return f"{day}T{minute or '00:00'}{second or ':00'}{zone}"
