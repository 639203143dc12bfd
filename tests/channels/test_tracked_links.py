"""Tracked links: tokens cannot be forged, and only the targets of links are replaced."""

import re
from datetime import UTC, datetime

import pytest

from api.channels.outcome import Delivery
from api.channels.tracked_links import MAX_URL_BYTES, Link, click_url, read_click_token, track_links
from api.crypto import Keyring, next_chain

KEYRING = Keyring("a secret of these tests")
LINK = Link(7, "0193a1b2-0000-7000-8000-000000000001", "https://shop.example/é?a=1&b=2#top")


def token_of(url: str) -> str:
    return url.partition("?token=")[2]


TOKEN = token_of(click_url("", KEYRING, LINK))


def tracked(body: str, *, html: bool = True) -> str:
    """Return the body with tracked links, each written as `→` and its target."""
    delivery = Delivery(LINK.org_id, LINK.message_id, datetime.now(UTC), "zoe@acme.example", "Hi", body, html=html)

    def target(found: re.Match[str]) -> str:
        link = read_click_token(KEYRING, found[1])
        assert link is not None
        assert (link.org_id, link.message_id) == (LINK.org_id, LINK.message_id)
        return f"→{link.url}"

    sent = track_links("https://wb.example", KEYRING, delivery)
    return re.sub(r"https://wb\.example/api/v1/click\?token=([\w-]+)", target, sent)


def test_a_link_contains_its_target() -> None:
    assert click_url("https://wb.example", KEYRING, LINK) == f"https://wb.example/api/v1/click?token={TOKEN}"
    assert read_click_token(KEYRING, TOKEN) == LINK
    assert re.fullmatch(r"[\w-]+", TOKEN, re.ASCII)


@pytest.mark.parametrize("position", [0, 5, 20, 40, 60, len(TOKEN) - 1])
def test_a_changed_link_is_rejected(position: int) -> None:
    other = "A" if TOKEN[position] != "A" else "Q"
    assert read_click_token(KEYRING, TOKEN[:position] + other + TOKEN[position + 1 :]) is None


@pytest.mark.parametrize("text", ["", "x", "é", "AAAA" * 40, "A" * 54, "../" * 18, TOKEN[:-4]])
def test_a_malformed_link_is_rejected(text: str) -> None:
    assert read_click_token(KEYRING, text) is None


def test_a_link_outlives_a_rotation_and_is_of_one_installation() -> None:
    chain = "a secret of these tests"
    for _ in range(3):
        chain = next_chain(chain, "another secret")
        assert read_click_token(Keyring(chain), TOKEN) == LINK
    assert read_click_token(Keyring("another secret"), TOKEN) is None


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ('<a href="https://a.co/?x=1&amp;y=2">A</a>', '<a href="→https://a.co/?x=1&y=2">A</a>'),
        (
            '<a href="https://a.co/?x=1&region=de&currency=EUR&timestamp=2&#38;y=3">A</a>',
            '<a href="→https://a.co/?x=1&region=de&currency=EUR&timestamp=2&y=3">A</a>',
        ),
        ("<p>é\n<A class=x HREF = 'HTTP://A.co' id=y>A</A>\n", '<p>é\n<A class=x HREF="→HTTP://A.co" id=y>A</A>\n'),
        ("<a href=https://a.co/b>A</a>", '<a href="→https://a.co/b">A</a>'),
        (
            '<area title="href=https://no.co" href=" https://a.co ">',
            '<area title="href=https://no.co" href="→https://a.co">',
        ),
        *(
            (same, same)
            for same in (
                '<a href="mailto:zoe@acme.example">A</a><a name=top>B</a><a href>C</a><a href="#top">D</a>',
                '<img src="https://a.co/x.png"><link href="https://a.co/x.css"> https://a.co',
                "<!-- <a href='https://a.co'> --><script>'<a href=\"https://a.co\">'</script>",
                '<a href="https://a.co/with a space">A</a>',
                f'<a href="https://a.co/{"x" * MAX_URL_BYTES}">A</a>',
                '<a href="https://a.co" title="not closed',
            )
        ),
    ],
)
def test_in_html_only_the_targets_of_links_are_replaced(body: str, sent: str) -> None:
    assert tracked(body) == sent


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ("See https://a.co/b?c=d&e=f.", "See →https://a.co/b?c=d&e=f."),
        ("(https://a.co/b_(c)), <http://a.co>!", "(→https://a.co/b_(c)), <→http://a.co>!"),
        # `tracked` takes the last _ into the URL, as readers of emails do, and the token is read without it.
        (
            "**https://a.co/b** _https://a.co/c_ ~https://a.co/d_e~",
            "**→https://a.co/b** _→https://a.co/c ~→https://a.co/d_e~",
        ),
        ("ftp://a.co a.co mailto:a@b.co", "ftp://a.co a.co mailto:a@b.co"),
        (f"https://a.co/{'x' * MAX_URL_BYTES}", f"https://a.co/{'x' * MAX_URL_BYTES}"),
        ("https:// and http://.", "https:// and http://."),
    ],
)
def test_in_text_every_url_is_replaced_without_the_punctuation_around_it(body: str, sent: str) -> None:
    assert tracked(body, html=False) == sent


@pytest.mark.parametrize("body", ["<a " + "x" * 200_000, "<a " + "x " * 100_000 + ">", "<a " + '="' * 100_000 + ">"])
def test_a_strange_body_takes_no_long_time(body: str) -> None:
    assert tracked(body) == body
