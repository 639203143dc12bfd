"""Topics: what messages are about, such as `news`. A contact wants or declines topics as well as channels.

The links `{{ preferences_url }}` and `{{ confirm_url }}` in emails are those of one contact. Simulations, backtests and
stored texts have fixed URLs in their place, which are replaced when an email leaves.
"""

from typing import Literal, TypeAlias

OptIn: TypeAlias = Literal["none", "double"]
"""`none`: contacts get the messages until they decline. `double`: after they have confirmed a link in an email."""

PREFERENCES_LINK, CONFIRM_LINK = "preferences_url", "confirm_url"
PREFERENCES_PLACEHOLDER = "https://preferences.invalid/"
CONFIRM_PLACEHOLDER = "https://confirm.invalid/"  # and the name of the topic


def link_values(confirms: str | None) -> dict[str, str]:
    """Return the values of the links in the texts of an email that asks to confirm a topic, or none."""
    links = {PREFERENCES_LINK: PREFERENCES_PLACEHOLDER}
    return links if confirms is None else links | {CONFIRM_LINK: CONFIRM_PLACEHOLDER + confirms}
