"""Reads the API key and the client's address from a request's headers.

Called by admission. It only reads; whether a key counts is decided by the key directory.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence

from capstan.core.errors import Unauthorized
from capstan.core.redact import redacted

Headers = Iterable[tuple[bytes, bytes]]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")
_HOW = "send it as the header X-API-Key or as Authorization: Bearer"


def presented_key(headers: Headers) -> str | None:
    """The key of a request, or None when it carries none. Two different keys are refused."""
    keys: set[str] = set()
    other_scheme = False
    for name, value in headers:
        if name == b"x-api-key" and value.strip():
            keys.add(value.decode("latin-1").strip())
        elif name == b"authorization":
            scheme, _, credentials = value.decode("latin-1").strip().partition(" ")
            if scheme.lower() == "bearer":
                keys.add(credentials.strip())
            else:
                other_scheme = True
    if len(keys) > 1:
        raise Unauthorized("the request carries two different API keys; send one")
    if keys:
        return keys.pop()
    if other_scheme:
        raise Unauthorized(f"the Authorization header holds no bearer API key; {_HOW}")
    return None


def missing_key() -> Unauthorized:
    """The error of a request without a key."""
    return Unauthorized(f"an API key is required; {_HOW}")


def invalid_key() -> Unauthorized:
    """The error of a key that does not exist or was revoked. It does not say which."""
    return Unauthorized("the API key is not valid; check it for typing errors, or create a new one")


def request_id_of(headers: Headers) -> str | None:
    """The caller's own X-Request-Id, if it is sane."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return redacted(value.decode())
    return None


class ClientAddress:
    """Finds the address of the client, believing proxies only if they are listed as trusted."""

    def __init__(self, trusted_proxies: Sequence[str]) -> None:
        self._trusted: list[Network] = [ipaddress.ip_network(item, strict=False) for item in trusted_proxies]

    def of(self, peer: str, headers: Headers) -> str:
        """The client's address: the nearest one in X-Forwarded-For that is not a trusted proxy, else the peer."""
        if not self._is_trusted(peer):
            return peer
        forwarded = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
        for hop in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
            if not _is_address(hop):
                return peer
            if not self._is_trusted(hop):
                return hop
        return peer

    def _is_trusted(self, address: str) -> bool:
        if not self._trusted or not _is_address(address):
            return False
        parsed = ipaddress.ip_address(address)
        return any(parsed in network for network in self._trusted)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
