"""Channels and what they need to reach a contact."""

from workbench.language.channel import CHANNELS


def test_a_channel_names_its_receiver() -> None:
    assert {name: channel.receiver for name, channel in CHANNELS.items()} == {
        "inapp": "walletAddress",
        "email": "email",
        "webhook": "url",
        "connection": "connection",
    }
