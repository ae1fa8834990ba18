"""An HTTP client for addresses that a user chose, which cannot be talked into asking our own network.

Used for webhook deliveries, token metadata and price sources. Only HTTPS to public addresses; the address that was
checked is the address that is dialled, because the check sits where the socket is made. Redirects are followed only as
often as the caller allows, each through the same checks. The whole exchange has one time limit, and no more of an
answer is read than asked for. Development mode may allow plain HTTP and loopback. It sends no cookies and uses no
proxy of the environment.
"""

import asyncio
import ssl
import zlib
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from socket import gaierror, inet_aton, inet_ntoa, socket
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver
from yarl import URL

from capstan.outbound.addresses import is_public
from capstan.outbound.errors import OutboundFailed, OutboundRefused
from capstan.outbound.names import PooledResolver
from capstan.outbound.urls import LONGEST_URL

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_CONNECTIONS = 200
_MOST_PER_HOST = 16
_LONGEST_HEADER = 8190
_MOST_CHECKED = 4_096
_HARMLESS = frozenset({"accept", "user-agent"})
# The window bits with which zlib tells the two forms apart by itself.
_GZIP_OR_ZLIB = 47


class OutboundLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one exchange may take."""

    seconds: float
    # More of an answer is not read. An answer that is longer is cut, or refused when `whole` is asked for.
    bytes: int
    whole: bool = True
    redirects: int = 0


class OutboundAnswer(msgspec.Struct, frozen=True):
    """What came back, and from where after redirects."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


class GuardedClient:
    """Construct with the event loop running, and `close` at the end."""

    def __init__(
        self,
        *,
        allow_http: bool = False,
        allow_loopback: bool = False,
        resolver: AbstractResolver | None = None,
        connections: int = _MOST_CONNECTIONS,
        per_host: int = _MOST_PER_HOST,
    ) -> None:
        self._allow_http = allow_http
        self._allow_loopback = allow_loopback
        self._names = resolver or PooledResolver()
        # What the form of an address says of it never changes; refusals are not kept.
        self._checked = lru_cache(_MOST_CHECKED)(self._check)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections,
                limit_per_host=per_host,
                resolver=self._names,
                # Names are looked up for every connection: what was public a minute ago need not be now.
                use_dns_cache=False,
                ssl=ssl.create_default_context(),
                socket_factory=self._socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            # Decompressed here, within the bound on the size; the library would inflate first and let us count later.
            auto_decompress=False,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        # The session closes only names that it looked for itself.
        await self._names.close()

    def check(self, address: str) -> URL:
        """The address in its standard form. Raises `OutboundRefused` for one that is never asked, without I/O."""
        return self._checked(address)

    def _check(self, address: str) -> URL:
        if len(address) > LONGEST_URL:
            raise OutboundRefused(f"the address is longer than {LONGEST_URL} characters")
        try:
            url = URL(address)
            host = url.host
        except ValueError:
            raise OutboundRefused("this is not an address") from None
        if url.scheme not in ("https", "http") or not host:
            raise OutboundRefused("the address must begin with https:// and name a host")
        if url.scheme == "http" and not self._allow_http:
            raise OutboundRefused("the address must begin with https://")
        if url.user is not None or url.password is not None:
            raise OutboundRefused("the address must not hold a user name or password")
        self._check_literal(host)
        return url

    async def vet(self, address: str) -> URL:
        """The same with a look at what the name of the host stands for now.

        Raises `OutboundFailed` when it stands for nothing. It may stand for something else when it is dialled, where
        it is looked at again.
        """
        url = self.check(address)
        try:
            found = await self._names.resolve(url.host or "", url.port or 443)
        except OSError:
            raise OutboundFailed(f"the name {url.host} cannot be resolved") from None
        for each in found:
            self._check_literal(each["host"], required=True)
        return url

    async def fetch(
        self,
        method: str,
        address: str,
        *,
        limits: OutboundLimits,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> OutboundAnswer:
        """One exchange. Raises `OutboundRefused` and `OutboundFailed`; any HTTP status is an answer."""
        url = self.check(address)
        try:
            async with asyncio.timeout(limits.seconds):
                for _ in range(limits.redirects + 1):
                    answer, onwards = await self._exchange(method, url, limits, headers, body)
                    if answer is not None:
                        return answer
                    assert onwards is not None
                    origin, url = url.origin(), self.check(onwards)
                    if url.origin() != origin:
                        headers = _for_strangers(headers)
        except TimeoutError:
            raise OutboundFailed(f"{url.host} did not answer within {limits.seconds:g} seconds") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(url, error) from error
        raise OutboundFailed(f"{url.host} redirects more than {limits.redirects} times")

    async def _exchange(
        self, method: str, url: URL, limits: OutboundLimits, headers: Mapping[str, str] | None, body: bytes | None
    ) -> tuple[OutboundAnswer | None, str | None]:
        """The answer, or where it redirects to if that is to be followed."""
        async with self._session.request(
            method,
            url,
            headers={"Accept-Encoding": "identity", **(headers or {})},
            data=body,
            allow_redirects=False,
            # `fetch` bounds the whole exchange.
            timeout=aiohttp.ClientTimeout(total=None),
        ) as response:
            location = response.headers.get("Location")
            if limits.redirects and response.status in _REDIRECTS and location:
                return None, _next_address(url, location)
            content = await _read(response, limits)
            found = OutboundAnswer(response.status, dict(response.headers), content, str(url))
            return found, None

    def _socket(self, information: Any) -> socket:
        """Make the socket for one address, after a last look at that very address."""
        family, kind, protocol, _, target = information
        self._check_literal(str(target[0]), required=True)
        made = socket(family, kind, protocol)
        made.setblocking(False)
        return made

    def _check_literal(self, host: str, *, required: bool = False) -> None:
        """Refuse an IP address that is not public. A name is left to the moment when its address is known."""
        try:
            address = ip_address(host)
        except ValueError:
            if required:
                raise OutboundRefused("the host has no usable address") from None
            _check_disguised(host)
            return
        if address.is_loopback and self._allow_loopback:
            return
        if not is_public(address):
            raise OutboundRefused(f"{host} is not a public address")


def _check_disguised(host: str) -> None:
    """Refuse an IPv4 address in one of its old spellings: `2130706433`, `0x7f.1`, `0177.0.0.1`."""
    if not host or host.lstrip("0123456789abcdefABCDEFxX.") != "" or not host[0].isdigit():
        return
    try:
        inet_ntoa(inet_aton(host))
    except OSError:
        return
    raise OutboundRefused(f"{host} is not a name; write an address in its usual form")


async def _read(response: aiohttp.ClientResponse, limits: OutboundLimits) -> bytes:
    """The body up to the limit, which holds before and after decompression."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        pieces.append(piece)
        if size > limits.bytes:
            # The rest is not wanted: end the connection rather than read on.
            response.close()
            break
    content = _decompressed(b"".join(pieces), response.headers.get("Content-Encoding", ""), limits.bytes)
    if len(content) > limits.bytes and limits.whole:
        raise OutboundFailed(f"the answer is larger than {limits.bytes} bytes")
    return content[: limits.bytes]


def _decompressed(content: bytes, encoding: str, most: int) -> bytes:
    """The content as it was before a compression that we did not ask for; at most one byte over the bound."""
    if encoding.lower() in ("", "identity"):
        return content
    if encoding.lower() not in ("gzip", "x-gzip", "deflate"):
        raise OutboundFailed("the answer has an encoding that was not asked for")
    try:
        return zlib.decompressobj(_GZIP_OR_ZLIB).decompress(content, most + 1)
    except zlib.error:
        raise OutboundFailed("the answer is not compressed as it says") from None


def _for_strangers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The headers that may follow a redirect to another origin: none that could be a secret."""
    return {name: value for name, value in (headers or {}).items() if name.lower() in _HARMLESS}


def _next_address(url: URL, location: str) -> str:
    try:
        return str(url.join(URL(location)))
    except ValueError:
        raise OutboundFailed(f"{url.host} redirects to something that is not an address") from None


def _translated(url: URL, error: aiohttp.ClientError | OSError) -> Exception:
    """Our own error for one of the library, in words that are safe to show."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return OutboundFailed(f"{url.host} has no certificate that can be trusted")
    if isinstance(error, aiohttp.ClientConnectorDNSError | gaierror):
        return OutboundFailed(f"the name {url.host} cannot be resolved")
    if isinstance(error, aiohttp.InvalidURL):
        return OutboundRefused("this is not an address that can be asked")
    if isinstance(error, aiohttp.ClientConnectorError):
        return OutboundFailed(f"no connection to {url.host}")
    return OutboundFailed(f"{url.host} broke off the exchange")
