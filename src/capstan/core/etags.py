"""Entity tags: a short name for the exact bytes of an answer, so that a client need not be sent what it has.

Called by the routes whose answers change only now and then (RFC 9110, sections 8.8.3 and 13.1.2).
"""

import hashlib

_BYTES = 16


def etag_of(*parts: bytes) -> str:
    """The strong tag of an answer made of these parts, quotes included."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return f'"{digest.hexdigest()[: 2 * _BYTES]}"'


def matches(if_none_match: str | None, etag: str) -> bool:
    """Whether the header If-None-Match names the tag. The comparison is weak, as the standard says."""
    if if_none_match is None:
        return False
    if if_none_match.strip() == "*":
        return True
    return any(tag.strip().removeprefix("W/") == etag for tag in if_none_match.split(","))
