"""What became of the rows of an import."""

from typing import Self

import msgspec

from api.language.problem import Problems

_REASONS = 20


class Refusal(msgspec.Struct, frozen=True):
    """A row that was not stored: the number of its line, from 1, what is wrong with it, and the file if there are several."""

    line: int
    problems: Problems
    file: str = ""

    def __str__(self) -> str:
        where = f"{self.file}, line" if self.file else "line"
        return f"{where} {self.line}: {self.reason}"

    @property
    def reason(self) -> str:
        """All that is wrong, in one line."""
        return "; ".join(map(str, self.problems))


class ImportReport(msgspec.Struct, frozen=True):
    """What became of the rows; `before`: how many had been done by an earlier run. `refusals` are the first of the `rejected`."""

    read: int = 0
    stored: int = 0
    duplicates: int = 0
    rejected: int = 0
    before: int = 0
    refusals: tuple[Refusal, ...] = ()

    def plus(self, other: Self) -> Self:
        """Return both together."""
        return type(self)(
            self.read + other.read,
            self.stored + other.stored,
            self.duplicates + other.duplicates,
            self.rejected + other.rejected,
            self.before + other.before,
            (self.refusals + other.refusals)[:_REASONS],
        )

    def __str__(self) -> str:
        counts = (
            f"{self.read:,} read: {self.stored:,} stored, {self.duplicates:,} duplicates, {self.rejected:,} rejected"
        )
        earlier = [f"{self.before:,} more were done by an earlier run"] if self.before else []
        more = self.rejected - len(self.refusals)
        return "\n".join([counts, *earlier, *map(str, self.refusals), *([f"and {more:,} more"] if more else [])])
