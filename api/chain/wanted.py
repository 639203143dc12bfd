"""Which logs a node is asked for. A question names contracts and topics and gets the product of both; it is cut where that is too much."""

from collections.abc import Iterable, Mapping

import msgspec

from api.chain.answers import Log


class Wanted(msgspec.Struct, frozen=True):
    """Contracts, and the topics that are wanted of each."""

    topics_of: Mapping[str, frozenset[str]]

    @property
    def contracts(self) -> list[str]:
        """The addresses of the question."""
        return sorted(self.topics_of)

    @property
    def topics(self) -> list[str]:
        """The topics of the question."""
        return sorted(frozenset[str]().union(*self.topics_of.values()))

    def only(self, logs: Iterable[Log]) -> list[Log]:
        """Return those that are wanted, each once, in the order of the chain: a node may say more, or the same twice."""
        found = {(each.block_number, each.log_index): each for each in logs if self._has(each)}
        return [found[place] for place in sorted(found)]

    def halves(self) -> "tuple[Wanted, Wanted] | None":
        """Return two that are the same together: contracts apart, or topics of one contract; None when there is nothing to part."""
        contracts, topics = self.contracts, self.topics
        if len(contracts) > 1:
            middle = len(contracts) // 2
            return self.part(contracts[:middle]), self.part(contracts[middle:])
        if len(topics) > 1:
            middle = len(topics) // 2
            (contract,) = contracts
            return Wanted({contract: frozenset(topics[:middle])}), Wanted({contract: frozenset(topics[middle:])})
        return None

    def part(self, contracts: Iterable[str]) -> "Wanted":
        """Return the part that is about some of the contracts."""
        return Wanted({each: self.topics_of[each] for each in contracts})

    def _has(self, log: Log) -> bool:
        return bool(log.topics) and log.topics[0] in self.topics_of.get(log.contract, ())
