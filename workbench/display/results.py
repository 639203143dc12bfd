"""Outcomes of messages, as figures and tables."""

from collections.abc import Iterable, Sequence

from workbench.display import words
from workbench.display.html import TableColumn, table_columns
from workbench.language.responses import MessageResults

_FIGURES = ("sent", "delivered", "clicked", "failed", "bounced", "complaints")
_COLUMNS = table_columns("step", "channel", *_FIGURES, "not sent", numbers=_FIGURES)


def message_table(steps: Iterable[MessageResults]) -> tuple[Sequence[TableColumn], list[tuple[str, ...]]]:
    """Return columns, and one row per step that sends messages."""
    return _COLUMNS, [
        (
            step.node_id,
            step.channel,
            *(f"{figure:,}" for figure in _figures(step)),
            "; ".join(f"{word}: {number:,}" for word, number in _reasons(step)),
        )
        for step in steps
    ]


def message_figures(step: MessageResults) -> list[tuple[str, int]]:
    """Return the figures of a step that are not zero, with their words, and the reasons of messages not sent."""
    figures = [(word, figure) for word, figure in zip(_FIGURES, _figures(step), strict=True) if figure]
    return figures + [(f"not sent: {word}", number) for word, number in _reasons(step)]


def message_headline(step: MessageResults) -> list[tuple[str, int]]:
    """Return the figures that a card has room for: those of messages that were sent, and how many were skipped."""
    figures = {"sent": step.sent, "clicked": step.clicked, "bounced": step.bounced, "complaints": step.complained}
    figures["skipped"] = sum(step.skipped.values())
    return [(word, figure) for word, figure in figures.items() if figure]


def reason(cause: str) -> str:
    """Return why a message was not sent, in words."""
    return words.CAUSE_WORDS.get(cause) or words.outcome(cause)


def _figures(step: MessageResults) -> tuple[int, ...]:
    return step.sent, step.delivered, step.clicked, step.failed, step.bounced, step.complained


def _reasons(step: MessageResults) -> list[tuple[str, int]]:
    """Return why messages were not sent, or may not have been, and how many."""
    reasons = [(reason(cause), number) for cause, number in step.skipped.items()]
    reasons += [("waiting", step.waiting), ("may have arrived", step.unknown)]
    return [(word, number) for word, number in reasons if number]
