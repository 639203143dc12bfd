"""A refusal as a value: which field, and what is wrong with it."""

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One reason why input was refused. `field` is a path such as `contact.email`; empty for the body itself."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason


Problems = tuple[Problem, ...]
