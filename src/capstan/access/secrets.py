"""The text of API keys: `svc_live_` or `svc_test_`, 32 random base-62 characters, 6 of checksum.

The random part has 190 bits. The checksum lets a mistyped or invented key be refused without a database look-up, and
lets secret scanners recognise a leaked one. Keys are stored and looked up by their SHA-256 only.
"""

import hashlib
import re
import secrets
import zlib

from capstan.access.models import Mode
from capstan.core.ids import base62

_RANDOM_CHARACTERS = 32
_CHECKSUM_CHARACTERS = 6
_SHAPE = re.compile(r"svc_(live|test)_[0-9A-Za-z]{38}")
_HINT_CHARACTERS = 4


def new_secret(mode: Mode) -> str:
    """A fresh key."""
    body = f"svc_{mode}_{base62(secrets.randbelow(62**_RANDOM_CHARACTERS), _RANDOM_CHARACTERS)}"
    return body + _checksum(body)


def well_formed(secret: str) -> bool:
    """Whether the text can be one of our keys: shape and checksum. Says nothing about whether it exists."""
    if not _SHAPE.fullmatch(secret):
        return False
    return secrets.compare_digest(_checksum(secret[:-_CHECKSUM_CHARACTERS]), secret[-_CHECKSUM_CHARACTERS:])


def digest(secret: str) -> bytes:
    """What is stored instead of the key."""
    return hashlib.sha256(secret.encode()).digest()


def hint(secret: str) -> str:
    """The last characters, for people to tell keys apart."""
    return secret[-_HINT_CHARACTERS:]


def _checksum(body: str) -> str:
    return base62(zlib.crc32(body.encode()), _CHECKSUM_CHARACTERS)
