"""The outgoing channels, and their senders: a new channel is added here.

A channel is declared in `workbench/language/channel.py`; its module in this folder declares how its messages leave.
"""

from collections.abc import Mapping

import msgspec

from api.channels.connection import CONNECTIONS
from api.channels.contact_links import with_contact_links
from api.channels.email import EMAILS
from api.channels.outcome import Delivery, MayLeave, Outcome, OutgoingChannel, Sender
from api.channels.signing import Unsubscription, unsubscribe_url
from api.channels.tracked_links import track_links
from api.channels.webhook import WEBHOOKS
from api.clock import Clock
from api.crypto import Keyring
from api.settings import Settings
from api.store.database import Database
from workbench.language.channel import CHANNELS, INAPP, ChannelName

DEFAULT_PUBLIC_URL = "http://localhost:8000"  # for links in messages, without WORKBENCH_PUBLIC_URL

OUTGOING: dict[ChannelName, OutgoingChannel] = {item.channel.name: item for item in (EMAILS, WEBHOOKS, CONNECTIONS)}
assert OUTGOING.keys() | {INAPP.name} == CHANNELS.keys(), "the messages of every channel but one leave the system"


class Transports(msgspec.Struct, frozen=True):
    """The senders of this installation, by channel. `public_url`: the base URL of the API, for links in messages."""

    senders: Mapping[ChannelName, Sender]
    public_url: str

    async def send(
        self,
        channel: ChannelName,
        database: Database,
        keyring: Keyring,
        delivery: Delivery,
        clock: Clock,
        may_leave: MayLeave,
    ) -> Outcome:
        """Send a message once, if `may_leave` still allows it when its turn comes."""
        outgoing = OUTGOING[channel]
        if outgoing.prepare is not None:
            prepared = await outgoing.prepare(database, keyring, delivery, clock)
            if not isinstance(prepared, Delivery):
                return prepared
            delivery = prepared
        if outgoing.channel.unsubscribes:
            digest = keyring.of(delivery.org_id).digest(outgoing.address.index, delivery.address)
            url = unsubscribe_url(self.public_url, keyring, Unsubscription(delivery.org_id, digest))
            delivery = msgspec.structs.replace(delivery, unsubscribe_url=url)
            delivery = with_contact_links(self.public_url, keyring, delivery)
        if delivery.track_clicks:
            delivery = msgspec.structs.replace(delivery, body=track_links(self.public_url, keyring, delivery))
        return await self.senders[channel].send(delivery, clock.now(), may_leave)

    async def close(self) -> None:
        for sender in self.senders.values():
            await sender.close()


def open_transports(settings: Settings) -> Transports:
    """Return the transports that the settings describe; the caller closes them."""
    senders: dict[ChannelName, Sender] = {name: outgoing.open(settings) for name, outgoing in OUTGOING.items()}
    return Transports(senders, settings.public_url or DEFAULT_PUBLIC_URL)
