"""HTML that Jupyter shows: small templates, everything escaped, pictures as data URIs.

Lab strips inline SVG and styles in untrusted notebooks but keeps `<img>` and `<details>`, so pictures are always images, and
the text makes sense without its colours. Colours are mid-tones that read on light and dark pages.
"""

import base64
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from api.language.codec import encode
from api.language.effect import channel_of
from workbench.display import words

_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data: https:; style-src 'unsafe-inline'\">"
)
"""Stands before an email in its frame: no scripts, nothing from elsewhere but pictures."""
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def html(template: str, **values: Any) -> str:
    """Return a block of HTML for one output area."""
    return _environment().get_template(template).render(**values)


def svg(template: str, **values: Any) -> str:
    """Return an SVG document; characters that XML does not have are left out."""
    return _NOT_XML.sub("", _environment().get_template(template).render(**values))


def image(source: str, width: float, height: float, alt: str) -> Markup:
    """Return an `<img>` of an SVG document, shrinking with the page."""
    encoded = base64.b64encode(source.encode()).decode()
    return Markup(
        '<img src="data:image/svg+xml;base64,{}" width="{}" height="{}" alt="{}" style="max-width:100%;height:auto">'
    ).format(encoded, round(width), round(height), alt)


def bar(share: float, width: int = 120, height: int = 10) -> Markup:
    """Return a bar filled to `share` (0 to 1)."""
    source = svg("bar.svg.j2", share=min(max(share, 0.0), 1.0), width=width, height=height)
    return image(source, width, height, f"{share:.0%}")


def spark(counts: Sequence[int], width: int = 124, height: int = 22) -> Markup:
    """Return a bar for each count, the highest as high as the picture."""
    most = max(counts, default=0)
    heights = [max(round(20 * count / most), 1) if count else 0 for count in counts]
    source = svg("spark.svg.j2", heights=heights, width=width, height=height)
    return image(source, width, height, f"{len(counts)} days, at most {most:,} a day")


def trend(values: Sequence[int | None], width: int = 120, height: int = 22) -> Markup:
    """Return a line of values over equal steps; None is not drawn."""
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    low, high = min((value for _, value in known), default=0), max((value for _, value in known), default=0)
    across, up = (width - 6) / max(len(values) - 1, 1), (height - 6) / (high - low or 1)
    points = [
        (3 + index * across, height / 2 if low == high else height - 3 - (value - low) * up) for index, value in known
    ]
    source = svg("trend.svg.j2", points=points, width=width, height=height)
    return image(source, width, height, f"from {low:,} to {high:,}")


def moment(at: datetime | str | None) -> str:
    """Write a moment to the second, in UTC: `2026-11-20 10:00:00`."""
    if at is None:
        return ""
    return at.strftime("%Y-%m-%d %H:%M:%S") if isinstance(at, datetime) else at[:19].replace("T", " ")


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("workbench.display"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "moment": moment,
        "short": words.short,
        "condition": words.condition,
        "found": words.found,
        "outcome": words.outcome,
        "message": words.message,
        "channel": channel_of,
        "json": lambda value: encode(value).decode(),
        "detail": words.detail,
        "offset": words.offset,
        "handle": lambda way: words.HANDLE_WORDS.get(way, way),
        "step": lambda kind: words.STEP_WORDS.get(kind, kind),
    }
    environment.globals |= {"bar": bar, "spark": spark, "policy": _POLICY}
    return environment
