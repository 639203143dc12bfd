"""Which addresses may be dialled on behalf of a tenant: the public ones, and those the operator lets through.

The name is resolved here, every address it has is judged, and a judged address is what is connected to: no second look-up lies
between the two. However an address is written (0x7f.1, decimal, octal, full-width digits), the resolver has made it plain by then.
One forbidden address condemns the name: a name that points inside and outside at once is an attack or a mistake.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import httpcore

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

RESOLVERS = 32  # names looked up at a time; one whose servers are silent holds one of them for some seconds
TRY = 2.0  # seconds for an address when there are others

# The special blocks of IANA's registries (RFC 6890 and later), multicast, and an address of a cloud's own services.
# `ipaddress.is_global` does not do: it says True of 224.0.0.1, 192.88.99.1 and much of IPv6 that is not ours to reach.
_CLOSED_V4 = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_OPEN_V6 = ip_network("2000::/3")  # all that has been given out; NAT64, ULA, link-local and multicast lie outside
_CLOSED_V6 = tuple(ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))

_log = logging.getLogger("workbench.delivery")


class ForbiddenError(httpcore.ConnectError):
    """The name has an address that may not be dialled. For whoever sends it is a connection that did not come about."""


class Guard:
    """The judge of addresses. `allow`: networks the operator lets through; `own_hosts`: names of this installation."""

    def __init__(self, allow: Iterable[Network] = (), own_hosts: Iterable[str] = ()) -> None:
        self._allow = tuple(allow)
        self._own_hosts = frozenset(host.lower().rstrip(".") for host in own_hosts)

    def permits(self, address: str) -> bool:
        """Return whether an address, as a resolver writes it, may be dialled."""
        plain = _plain(address)
        return self._is_let_through(plain) or (is_public(plain) and not is_own(plain))

    def permits_all(self, host: str, addresses: Sequence[str]) -> bool:
        """Return whether every address of a host may be dialled; a host of our own may not, unless it was let through."""
        if host.lower().rstrip(".") in self._own_hosts:
            return all(self._is_let_through(_plain(address)) for address in addresses)
        return all(self.permits(address) for address in addresses)

    def _is_let_through(self, address: Address) -> bool:
        return any(address in network for network in self._allow)


def is_public(address: Address) -> bool:
    """Return whether an address belongs to the public internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _CLOSED_V4)
    return address in _OPEN_V6 and not any(address in network for network in _CLOSED_V6)


def is_own(address: Address) -> bool:
    """Return whether this machine has the address: then it would be the sender's, too. Sends nothing."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            return _plain(probe.getsockname()[0]) == address
    except OSError:
        return False


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """The way out for HTTP: like the ordinary one, except that it dials only what the guard permits."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._network = httpcore.AnyIOBackend()
        self._threads = ThreadPoolExecutor(RESOLVERS, "resolver")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  as httpcore has it
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to one of the host's addresses; raise ForbiddenError, or ConnectError and ConnectTimeout as usual."""
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolve(host, port)
                if not self._guard.permits_all(host, addresses):
                    _log.warning("webhook_forbidden", extra={"host": host, "addresses": addresses})
                    raise ForbiddenError
                return await self._dial(addresses, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout from None

    def close(self) -> None:
        """Look up no more names."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _resolve(self, host: str, port: int) -> list[str]:
        look_up = asyncio.get_running_loop().run_in_executor
        try:
            found = await look_up(self._threads, _addresses, host, port)
        except (OSError, UnicodeError):
            raise httpcore.ConnectError from None
        return found

    async def _dial(self, addresses: Sequence[str], port: int) -> httpcore.AsyncNetworkStream:
        """Try one address after the other, the resolver's best first; only the last one has all the time that is left."""
        for address in addresses[:-1]:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._network.connect_tcp(address, port, timeout=TRY)
        return await self._network.connect_tcp(addresses[-1], port)


def _addresses(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


def _plain(address: str) -> Address:
    """Return the address meant: IPv4 in IPv6's clothes is IPv4."""
    found = ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
