"""Which addresses are public: those that an address from the internet may name.

Called by the guarded client for every address it dials. The table is our own and errs towards refusing, because the
`is_global` of Python 3.11 calls addresses public that lead inside: NAT64 (`64:ff9b::/96`), 6to4 (`2002::/16`), the old
site-local range and multicast. It does no I/O.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

# RFC 6890 and the IANA special-purpose registries, and what is not unicast.
_NOT_PUBLIC_4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# Global unicast is 2000::/3; the rest is local, multicast, mapped or translated, and leads somewhere else.
_UNICAST_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    IPv6Network(text)
    for text in (
        # Protocol assignments, with Teredo, ORCHID and benchmarking inside.
        "2001::/23",
        "2001:db8::/32",
        # 6to4: holds an IPv4 address of which the routers on the way decide what it means.
        "2002::/16",
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether anybody on the internet could mean this address."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if address.scope_id is not None or address not in _UNICAST_6:
        return False
    return not any(address in network for network in _NOT_PUBLIC_6)
