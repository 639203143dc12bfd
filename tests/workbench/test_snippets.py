"""Snippets in a notebook: saved, included, previewed and pinned."""

import pytest

from tests.running import Running
from workbench import ConflictError, InvalidArgumentError, InvalidRequestError, NotFoundError, Workbench


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def test_a_snippet_is_saved_included_and_pinned(wb: Workbench) -> None:
    saved = wb.snippets.save("goodbye", "Bye, {{ contact.name | default('you') }}")
    assert (saved.name, saved.version) == ("goodbye", 1)
    text = 'It is here. {% include "goodbye" %}'
    automation = wb.automation("with a snippet").on("snippets:deposit").send_email("Hi", text)
    contact = {"email": "ann@example.com", "attributes": {"name": "Ann"}}
    assert automation.simulate({}, contact).messages[0].body == "It is here. Bye, Ann"
    assert [str(error) for error in automation.check() if error.level == "error"] == []
    automation = automation.publish()
    wb.snippets.save("goodbye", "So long", version=1)
    assert repr(automation.plan()).splitlines()[1:] == ["  ~ snippet goodbye: version 2, before: 1"]
    (use,) = wb.snippets["goodbye"].used_by()
    assert (use.name, use.draft, use.version, use.pinned) == ("with a snippet", True, 1, 1)
    assert "with a snippet" in wb.snippets["goodbye"].used_by()._repr_html_()
    assert wb.snippets["goodbye"].versions()[0].body == "So long"
    assert automation.simulate({}, contact).messages[0].body == "It is here. So long"
    assert "goodbye" in repr(wb.snippets)
    backtest = automation.backtest(days=1)
    assert "with a snippet" in repr(backtest)


def test_what_cannot_be_included_is_refused(wb: Workbench) -> None:
    with pytest.raises(InvalidRequestError, match="body: line 1: unknown snippet 'nowhere'"):
        wb.snippets.save("refused", "{% include 'nowhere' %}")
    with pytest.raises(InvalidArgumentError, match="'A b': the name of a snippet has 1 to 64"):
        wb.snippets.save("A b", "x")
    wb.snippets.save("kept", "x")
    with pytest.raises(ConflictError):
        wb.snippets.save("kept", "y", version=7)
    with pytest.raises(NotFoundError, match="Snippet not found: 'kepd'; did you mean 'kept'"):
        wb.snippets["kepd"]
    automation = wb.automation("unknown snippet").on("snippets:deposit").send_email("Hi", '{% include "nowhere" %}')
    (error,) = [remark for remark in automation.check() if remark.level == "error"]
    assert str(error) == "send_email: line 1: unknown snippet 'nowhere'"
