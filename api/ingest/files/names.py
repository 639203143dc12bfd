"""Names of events that another system allows and the contract does not: `Order Completed` becomes `order_completed`."""

import re

from api.language.event import EVENT_NAME

MOST_TOLD = 100
_UNFIT = re.compile(r"[^a-z0-9_.:-]+")


class Names:
    """The names of one import; `changed` says which were written otherwise, the first hundred."""

    def __init__(self) -> None:
        self.changed: dict[str, str] = {}

    def normal(self, name: object) -> object:
        """Return the name that fits, or what was given where none does: the judge of events refuses it then."""
        if not isinstance(name, str) or EVENT_NAME.fullmatch(name):
            return name
        normal = _UNFIT.sub("_", name.lower()).strip("_")
        if not EVENT_NAME.fullmatch(normal):
            return name
        if len(self.changed) < MOST_TOLD:
            self.changed[name] = normal
        return normal
