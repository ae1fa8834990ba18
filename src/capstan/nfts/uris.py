"""Where a token URI leads: to content inside the URI itself, or to addresses that can be asked over HTTP.

Called by the fetcher and for the gateway form of image addresses. IPFS content is asked of our own gateways, whatever
gateway the URI names. Pure: nothing is fetched here, and whether an address may be asked is the guarded client's word.
"""

import base64
import binascii
import re
from typing import TypeAlias
from urllib.parse import quote, unquote_to_bytes, urlsplit

import msgspec

LONGEST_URI = 1024 * 1024
_LONGEST_ADDRESS = 2048
# CID version 0 (base58), version 1 in base32, base36, base58 and base16: the forms that are in use.
_CID = re.compile(
    r"Qm[1-9A-HJ-NP-Za-km-z]{44}|b[a-z2-7]{50,120}|B[A-Z2-7]{50,120}|k[0-9a-z]{45,120}"
    r"|z[1-9A-HJ-NP-Za-km-z]{40,120}|f[0-9a-f]{60,140}"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_ARWEAVE = re.compile(r"[A-Za-z0-9_-]{43}")
_GATEWAY_PATH = re.compile(r"/(ipfs|ipns)/([^/?#]+)(/[^?]*)?")
_GATEWAY_HOST = re.compile(r"([a-z0-9-]+)\.(ipfs|ipns)\.[a-z0-9.-]+(?::\d+)?", re.IGNORECASE)
_SAFE = "/:@!$&'()*+,;=-._~%"


class Inline(msgspec.Struct, frozen=True):
    """Content that the URI itself holds. `raw` is the same without percent-decoding, where there was any."""

    media_type: str
    content: bytes
    raw: bytes = b""


class Remote(msgspec.Struct, frozen=True):
    """Addresses of the content, the best first."""

    urls: tuple[str, ...]


Target: TypeAlias = Inline | Remote


class Gateways(msgspec.Struct, frozen=True):
    """Where IPFS and Arweave content is asked for, in order of preference."""

    ipfs: tuple[str, ...]
    arweave: tuple[str, ...]

    def target(self, uri: str) -> Target | None:
        """Where the URI leads; None when nowhere."""
        uri = uri.strip()
        lowered = uri[:16].lower()
        if len(uri) > LONGEST_URI or not uri:
            return None
        if lowered.startswith("data:"):
            return _data(uri)
        if uri.startswith(("{", "<svg")):
            media_type = "application/json" if uri.startswith("{") else "image/svg+xml"
            return Inline(media_type, uri.encode("utf-8", "replace"))
        urls = self._urls(uri)
        return Remote(urls) if urls else None

    def image(self, uri: str | None) -> str | None:
        """The HTTP address of an image: of a gateway, or its own. None for `data:` and for what leads nowhere."""
        if uri is None or len(uri) > _LONGEST_ADDRESS:
            return None
        urls = self._urls(uri.strip())
        return urls[0] if urls else None

    def _urls(self, uri: str) -> tuple[str, ...]:
        path = content_path(uri)
        is_http = uri[:8].lower().startswith(("https://", "http://"))
        own = (uri,) if is_http and len(uri) <= _LONGEST_ADDRESS else ()
        if path is not None:
            return tuple(gateway.rstrip("/") + path for gateway in self.ipfs) + own
        if uri[:5].lower() == "ar://":
            transaction, _, rest = uri[5:].lstrip("/").partition("/")
            if not _ARWEAVE.fullmatch(transaction):
                return ()
            end = f"/{transaction}" + (f"/{quote(rest, safe=_SAFE)}" if rest else "")
            return tuple(gateway.rstrip("/") + end for gateway in self.arweave)
        return own


def content_path(uri: str) -> str | None:
    """`/ipfs/CID/…` or `/ipns/name/…` for a URI in any of the forms in use; None when it is none."""
    scheme, separator, rest = uri.partition("://")
    kind = scheme.lower()
    if separator and kind in ("ipfs", "ipns"):
        rest = rest.lstrip("/")
        for prefix in ("ipfs/", "ipns/"):
            # ipfs://ipfs/CID is wrong, and common.
            if rest.startswith(prefix):
                kind, rest = prefix[:-1], rest[len(prefix) :]
        return _path(kind, rest)
    if separator and kind in ("https", "http"):
        return _path_of_gateway(uri)
    if separator:
        return None
    found = _GATEWAY_PATH.match("/" + uri.lstrip("/"))
    if found:
        return _path(found.group(1), found.group(2) + (found.group(3) or ""))
    return _path("ipfs", uri)


def _path_of_gateway(uri: str) -> str | None:
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    found = _GATEWAY_PATH.match(parts.path)
    if found:
        return _path(found.group(1), found.group(2) + (found.group(3) or ""))
    # `netloc` keeps the letter case, which `hostname` would not.
    host = _GATEWAY_HOST.fullmatch(parts.netloc)
    return _path(host.group(2).lower(), host.group(1) + parts.path) if host else None


def _path(kind: str, rest: str) -> str | None:
    root, slash, path = rest.partition("/")
    root, _, _ = root.partition("?")
    pattern = _CID if kind == "ipfs" else _NAME
    if not pattern.fullmatch(root):
        return None
    return f"/{kind}/{root}{slash}{quote(path, safe=_SAFE)}"


def _data(uri: str) -> Inline | None:
    """RFC 2397, and the habits of contracts: unescaped text after the comma, `;utf8`, base64 without padding."""
    head, comma, body = uri[5:].partition(",")
    if not comma:
        return None
    parameters = [part.strip().lower() for part in head.split(";")]
    media_type = parameters[0] or "text/plain"
    raw = body.encode("utf-8", "replace")
    unescaped = unquote_to_bytes(raw)
    if "base64" not in parameters[1:]:
        return Inline(media_type, unescaped, raw)
    compact = b"".join(unescaped.split()).replace(b"-", b"+").replace(b"_", b"/").rstrip(b"=")
    try:
        return Inline(media_type, base64.b64decode(compact + b"=" * (-len(compact) % 4), validate=True))
    except binascii.Error:
        return None
