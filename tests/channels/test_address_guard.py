"""The address guard (docs/trust.md K1 to K4, K8, K10, K11): it checks the addresses that are dialled."""

import asyncio
import socket
from ipaddress import ip_address, ip_network

import httpcore
import pytest

from api.channels.address_guard import AddressGuard, ForbiddenAddressError, GuardedNetwork, is_own, is_public
from tests.channels.conftest import LOOPBACK, endpoint, status

CLOSED_V4 = [
    "0.0.0.0",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "127.0.0.1",
    "127.254.254.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
]
CLOSED_V6 = [
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:0:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2001::1",
    "2001:db8::1",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "ff02::1",
    "100::1",
    "3fff::1",
    "5f00::1",
    "4000::1",
]
OPEN = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "172.32.0.1",
    "100.128.0.1",
    "::ffff:8.8.8.8",
    "2606:4700::1111",
    "2001:4860:4860::8888",
]
# Every one of these is loopback for a resolver.
DISGUISES = [
    "127.0.0.1",
    "127.254.254.254",
    "0.0.0.0",
    "0",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "localhost",
    "①②⑦.0.0.1",
    "127。0。0。1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
]


@pytest.mark.parametrize("address", [*CLOSED_V4, *CLOSED_V6])
def test_a_special_address_is_blocked(address: str) -> None:
    assert not AddressGuard().permits(address)


@pytest.mark.parametrize("address", OPEN)
def test_a_public_address_is_allowed(address: str) -> None:
    assert AddressGuard().permits(address)


def test_one_forbidden_address_blocks_the_name() -> None:
    assert not AddressGuard().permits_all("mixed.example", ["93.184.216.34", "::1"])
    assert not AddressGuard().permits_all("mixed.example", ["::ffff:10.0.0.1", "2606:4700::1111"])


def test_an_allowed_network_is_also_allowed_as_mapped_ipv6() -> None:
    guard = AddressGuard([ip_network("10.1.0.0/16")])
    assert guard.permits("10.1.2.3")
    assert guard.permits("::ffff:10.1.2.3")
    assert not guard.permits("10.2.0.1")


def test_our_own_host_names_are_blocked_wherever_they_point() -> None:
    guard = AddressGuard(own_hosts=["Workbench.example"])
    assert not guard.permits_all("workbench.EXAMPLE.", ["93.184.216.34"])
    assert guard.permits_all("another.example", ["93.184.216.34"])
    assert AddressGuard(LOOPBACK, ["localhost"]).permits_all("localhost", ["127.0.0.1"])


def test_addresses_of_this_machine_are_recognised() -> None:
    assert is_own(ip_address("127.0.0.1"))
    assert not is_own(ip_address("93.184.216.34"))
    assert is_public(ip_address("93.184.216.34"))


@pytest.mark.parametrize("host", DISGUISES)
async def test_no_spelling_of_an_address_reaches_a_listening_server(host: str) -> None:
    async with endpoint(status(200)) as inside:
        network = GuardedNetwork(AddressGuard())
        with pytest.raises(httpcore.ConnectError):
            await network.connect_tcp(host, inside.port, timeout=5)
        network.close()
        await asyncio.sleep(0)
        assert inside.connections == 0


async def test_the_checked_address_is_the_dialled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to a public address first and to loopback later is resolved once."""
    hosts: list[str] = []
    resolve = socket.getaddrinfo

    def rebinding(host: str, *rest: object, **named: object) -> object:
        hosts.append(host)
        return resolve("127.0.0.1" if len(hosts) > 1 else "127.0.0.2", *rest, **named)  # type: ignore[arg-type]

    async with endpoint(status(200)) as inside:
        network = GuardedNetwork(AddressGuard([ip_network("127.0.0.2")]))
        monkeypatch.setattr(socket, "getaddrinfo", rebinding)
        with pytest.raises(httpcore.ConnectError):
            await network.connect_tcp("rebinding.example", inside.port, timeout=5)
        with pytest.raises(ForbiddenAddressError):
            await network.connect_tcp("rebinding.example", inside.port, timeout=5)
        network.close()
        assert hosts == ["rebinding.example", "rebinding.example"]
        assert inside.connections == 0


async def test_the_second_address_is_tried_when_the_first_refuses_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve = socket.getaddrinfo

    def two(host: str, *rest: object, **named: object) -> object:
        return [info for address in ("127.0.0.2", "127.0.0.1") for info in resolve(address, *rest, **named)]  # type: ignore[arg-type]

    async with endpoint(status(200)) as inside:
        monkeypatch.setattr(socket, "getaddrinfo", two)
        network = GuardedNetwork(AddressGuard(LOOPBACK))
        stream = await network.connect_tcp("two.example", inside.port, timeout=5)
        await stream.aclose()
        network.close()
