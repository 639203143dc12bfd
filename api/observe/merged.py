"""The numbers of several processes as one text: every sample says in `process` whose it is.

Sums would be wrong: when one of several processes starts anew, its part falls to zero, and the sum looks like a restart of all.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Merged:
    """The numbers of processes, given as (name, text)."""

    def __init__(self, published: Iterable[tuple[str, str]]) -> None:
        self._families: dict[str, Metric] = {}
        for name, text in published:
            for family in text_string_to_metric_families(text):
                self._add(name, family)

    def collect(self) -> Iterator[Metric]:
        """Give every family once, with the samples of all."""
        yield from self._families.values()

    def text(self) -> bytes:
        """Return them in the text format of Prometheus."""
        return generate_latest(self)

    def _add(self, process: str, family: Metric) -> None:
        known = self._families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        known.samples += [each._replace(labels={"process": process, **each.labels}) for each in family.samples]
