"""Words: the tables of words.toml have a text for each word of a fixed set, and no other; values in sentences."""

from typing import get_args

from workbench.display.words import WORDS, condition, value
from workbench.language.explain import Reason
from workbench.language.filter import Filter
from workbench.language.lift import LiftVerdict
from workbench.language.responses import UnknownWalletOutcome

# Their sentences name the events, the filters, the cause, and the number of contacts that are needed.
COMPOSED = {"other_event", "filters", "reentry", "too_few"}


def test_every_word_has_a_text() -> None:
    assert WORDS["unknown_wallets"].keys() == set(get_args(UnknownWalletOutcome))
    assert WORDS["lifts"].keys() == set(get_args(LiftVerdict)) - COMPOSED
    assert WORDS["not_started"].keys() == set(get_args(Reason)) - COMPOSED


def test_a_list_is_shown_as_a_list_and_alternatives_with_or() -> None:
    assert value(["a", 1, ["b"]]) == "[“a”, 1, [“b”]]"
    assert condition(Filter("plan", "in", ["a", "b"])) == "plan is one of “a” or “b”"
