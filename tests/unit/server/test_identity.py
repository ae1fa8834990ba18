"""Reading the key and the client's address from headers."""

import pytest

from capstan.core.errors import Unauthorized
from capstan.server.admission import anonymous_subject
from capstan.server.identity import ClientAddress, presented_key


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], None),
        ([(b"x-api-key", b"k")], "k"),
        ([(b"authorization", b"Bearer k")], "k"),
        ([(b"authorization", b"bearer   k ")], "k"),
        ([(b"x-api-key", b"k"), (b"authorization", b"Bearer k")], "k"),
        ([(b"x-api-key", b"k"), (b"authorization", b"Basic abc")], "k"),
        ([(b"cookie", b"x")], None),
    ],
)
def test_the_key_of_a_request(headers: list[tuple[bytes, bytes]], key: str | None) -> None:
    assert presented_key(headers) == key


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-api-key", b"a"), (b"x-api-key", b"b")],
        [(b"x-api-key", b"a"), (b"authorization", b"Bearer b")],
        [(b"authorization", b"Basic abc")],
    ],
)
def test_contradicting_or_useless_credentials_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Unauthorized):
        presented_key(headers)


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "client"),
    [
        ([], "203.0.113.1", "198.51.100.1", "203.0.113.1"),
        (["10.0.0.0/8"], "10.0.0.1", "198.51.100.1", "198.51.100.1"),
        (["10.0.0.0/8"], "10.0.0.1", "1.1.1.1, 198.51.100.1", "198.51.100.1"),
        (["10.0.0.0/8"], "10.0.0.1", "198.51.100.1, 10.0.0.9", "198.51.100.1"),
        (["10.0.0.0/8"], "10.0.0.1", "", "10.0.0.1"),
        (["10.0.0.0/8"], "10.0.0.1", "not an address", "10.0.0.1"),
        (["10.0.0.0/8"], "203.0.113.1", "198.51.100.1", "203.0.113.1"),
        (["::1/128"], "::1", "2001:db8::1", "2001:db8::1"),
    ],
)
def test_forwarded_addresses_are_believed_from_trusted_proxies_only(
    trusted: list[str], peer: str, forwarded: str, client: str
) -> None:
    assert ClientAddress(trusted).of(peer, [(b"x-forwarded-for", forwarded.encode())]) == client


def test_an_ipv6_customer_is_counted_as_one() -> None:
    assert anonymous_subject("2001:db8::1") == anonymous_subject("2001:db8::ffff")
    assert anonymous_subject("2001:db8::1") != anonymous_subject("2001:db8:0:1::1")
    assert anonymous_subject("fe80::1%eth0") == "addr:fe80::"
    assert anonymous_subject("not:an:address") == "addr:unknown"
    assert anonymous_subject("192.0.2.1") == "addr:192.0.2.1"
