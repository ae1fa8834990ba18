"""The table of public addresses: what leads inside is refused, what is out there is not."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.outbound.addresses import is_public


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.8",
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::7f00:1",
        "64:ff9b::7f00:1",
        "64:ff9b::808:808",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "3fff::1",
        "5f00::1",
    ],
)
def test_addresses_that_lead_inside_are_not_public(text: str) -> None:
    """Private, local, translated, mapped, documentation and multicast ranges."""
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"])
def test_addresses_of_the_internet_are_public(text: str) -> None:
    """Also just beside the private ranges."""
    assert is_public(ip_address(text))


@given(st.ip_addresses(v=4))
def test_nothing_that_python_calls_private_is_public_4(address: IPv4Address) -> None:
    """Ours is the stricter table."""
    assert not (is_public(address) and not address.is_global)


@given(st.ip_addresses(v=6))
def test_nothing_that_python_calls_private_is_public_6(address: IPv6Address) -> None:
    """Ours is the stricter table."""
    assert not (is_public(address) and not address.is_global)
