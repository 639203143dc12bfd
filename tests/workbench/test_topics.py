"""Topics and preferences in a notebook."""

import pytest

from tests.running import Running
from workbench import ConflictError, InvalidArgumentError, InvalidRequestError, NotFoundError, Workbench
from workbench.testing import simulate


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def test_a_topic_is_saved_named_by_a_message_and_declined(wb: Workbench) -> None:
    news = wb.topics.save("py-news", "News", labels={"de": "Neuigkeiten"})
    assert repr(news) == "py-news (until declined): News, de: Neuigkeiten"
    assert "py-news" in repr(wb.topics)
    automation = (
        wb.automation("on a topic").on("topics:deposit").send_email("Hi", "{{ preferences_url }}", topic="py-news")
    )
    assert 'topic="py-news"' in automation.to_python()
    line = "Send the email “Hi” on the topic “py-news” if nothing is missing: “{{ preferences_url }}”."
    assert line in automation.describe()
    assert automation.from_text(automation.describe()).to_json()["graph"] == automation.to_json()["graph"]
    run = simulate(automation, "topics:deposit", contact={"email": "ann@example.com", "declined": ["py-news"]})
    assert not run.sent()
    assert "the contact declined the topic “py-news”" in repr(run)
    assert simulate(automation, "topics:deposit").sent("https://preferences.invalid/")
    automation.publish()
    (use,) = news.used_by()
    assert (use.name, use.version) == ("on a topic", 1)
    with pytest.raises(ConflictError, match="used by 'on a topic'"):
        news.delete()


def test_preferences_of_a_contact_are_read_and_set(running: Running, wb: Workbench) -> None:
    wb.topics.save("py-offers", "Offers", opt_in="double")
    wb.events.send("topics:signup", email="pia@example.com")
    contact = wb.contact(email="pia@example.com")
    assert contact.preferences().topics["py-offers"] is False
    preferences = contact.set_preferences(topics={"py-offers": True}, channels={"inapp": False})
    assert (preferences.topics["py-offers"], preferences.channels["inapp"]) == (True, False)
    assert contact.opted_out == ("inapp",)
    assert "py-offers" in repr(preferences)
    assert "py-offers" in preferences._repr_html_()
    frame = wb.sql("SELECT topic, channel, granted, source FROM consents WHERE contact_id = :id", id=contact.id)
    assert sorted(frame.rows(), key=str) == [("py-offers", None, True, "api"), (None, "inapp", False, "api")]
    with pytest.raises(InvalidRequestError, match=r"topics\.py-ofers: unknown topic; did you mean 'py-offers'"):
        contact.set_preferences(topics={"py-ofers": True})


def test_double_opt_in_is_an_automation(wb: Workbench) -> None:
    wb.topics.save("py-club", "Club", opt_in="double")
    automation = wb.topics.double_opt_in("py-club")
    assert [str(remark) for remark in automation.check() if remark.level == "error"] == []
    run = simulate(automation, "consent.requested", {"topic": "py-club"})
    assert run.sent("https://confirm.invalid/py-club")
    confirmed = run.send("consent.confirmed", {"topic": "py-club"})
    assert (confirmed.state, confirmed.tags) == ("completed", ["confirmed-py-club"])
    assert not simulate(automation, "consent.requested", {"topic": "py-news"}).started
    assert automation.publish().state == "live"


def test_unknown_topics_and_invalid_names_are_refused(wb: Workbench) -> None:
    with pytest.raises(InvalidArgumentError, match="'A b': the name of a topic"):
        wb.topics.save("A b", "x")
    wb.topics.save("py-known", "Known")
    with pytest.raises(NotFoundError, match="Topic not found: 'py-knwon'; did you mean 'py-known'"):
        wb.topics["py-knwon"]
    automation = wb.automation("unknown topic").on("topics:deposit").send_inapp("a", "b", topic="py-knwon")
    (error,) = [remark for remark in automation.check() if remark.level == "error"]
    assert str(error) == "send_inapp: unknown topic 'py-knwon'; did you mean 'py-known'?"
