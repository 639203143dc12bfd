"""The address guard: which network addresses may be connected to on behalf of a tenant (protection against SSRF).

Public addresses are allowed, and networks that the operator allows. The name is resolved here, all its addresses
are checked, and the connection is made to one of them: a second lookup between check and use would allow DNS
rebinding. However an address is written (0x7f.1, decimal, octal, full-width digits), the resolver normalizes it first.
One forbidden address forbids the name: a name that resolves to internal and public addresses is an attack or a
mistake.
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

RESOLVER_THREADS = 32  # a lookup blocks a thread for some seconds if the name servers do not answer
DIAL_TIMEOUT_S = 2.0  # for one address while others remain to be tried

# The special-purpose blocks of IANA's registries (RFC 6890 and later), multicast, and the address of a cloud's internal
# services. `ipaddress.is_global` is not enough: it is True for 224.0.0.1, 192.88.99.1 and IPv6 blocks that must not be
# reached, and it differs between versions of Python.
_FORBIDDEN_V4 = tuple(
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
_GLOBAL_V6 = ip_network("2000::/3")  # all global unicast addresses; NAT64, ULA, link-local and multicast lie outside
_FORBIDDEN_V6 = tuple(ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))

_log = logging.getLogger("workbench.delivery")


class ForbiddenAddressError(httpcore.ConnectError):
    """The name has an address that is not allowed.

    A ConnectError, so that the sender cannot distinguish it from a closed port.
    """


class AddressGuard:
    """Decides about addresses. `allow`: networks the operator allows; `own_hosts`: host names of this installation."""

    def __init__(self, allow: Iterable[Network] = (), own_hosts: Iterable[str] = ()) -> None:
        self._allow = tuple(allow)
        self._own_hosts = frozenset(host.lower().rstrip(".") for host in own_hosts)

    def permits(self, address: str) -> bool:
        """Return whether an address, as a resolver writes it, is allowed."""
        parsed = _parse_address(address)
        return self._is_allowed(parsed) or (is_public(parsed) and not is_own(parsed))

    def permits_all(self, host: str, addresses: Sequence[str]) -> bool:
        if (
            host.lower().rstrip(".") in self._own_hosts
        ):  # its address may be a proxy's, which `is_own` does not recognise
            return all(self._is_allowed(_parse_address(address)) for address in addresses)
        return all(self.permits(address) for address in addresses)

    def _is_allowed(self, address: Address) -> bool:
        return any(address in network for network in self._allow)


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _FORBIDDEN_V4)
    return address in _GLOBAL_V6 and not any(address in network for network in _FORBIDDEN_V6)


def is_own(address: Address) -> bool:
    """Return whether this machine has the address. Sends nothing: a UDP socket only looks up the route."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))
            # The source address that the system chooses for one of its own addresses is that address.
            return _parse_address(probe.getsockname()[0]) == address
    except OSError:
        return False


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """A network backend for httpcore that dials only what the guard permits."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._network = httpcore.AnyIOBackend()
        self._threads = ThreadPoolExecutor(RESOLVER_THREADS, "resolver")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's signature
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to one of the host's addresses; raise ForbiddenAddressError, ConnectError or ConnectTimeout."""
        try:
            async with asyncio.timeout(timeout):
                # Lookups have their own thread pool, because hanging ones must not use up the default threads of the
                # process.
                loop = asyncio.get_running_loop()
                try:
                    infos = await loop.run_in_executor(
                        self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                    )
                except (OSError, UnicodeError):
                    raise httpcore.ConnectError from None
                addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in infos))
                if not self._guard.permits_all(host, addresses):
                    _log.warning("webhook_address_forbidden", extra={"host": host, "addresses": addresses})
                    raise ForbiddenAddressError
                # Addresses are tried in the resolver's order of preference; only the last one gets all the time that is
                # left.
                for address in addresses[:-1]:
                    with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                        return await self._network.connect_tcp(address, port, timeout=DIAL_TIMEOUT_S)
                return await self._network.connect_tcp(addresses[-1], port)
        except TimeoutError:
            raise httpcore.ConnectTimeout from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _parse_address(address: str) -> Address:
    """Parse an address; an IPv4-mapped IPv6 address is the IPv4 address."""
    parsed = ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed
