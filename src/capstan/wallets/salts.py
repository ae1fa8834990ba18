"""The number behind the salt of a request. Called by the wallet service; pure."""

import re

from capstan.core.hexes import keccak256

_DECIMAL = re.compile(r"[0-9]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_LIMIT = 2**256
# More digits than any number below 2^256 has; Python refuses to convert very long texts.
_LONGEST = 78


def salt_number(salt: str | None) -> int:
    """The salt as the factory takes it.

    Absent is 0. A decimal or 0x-hex number below 2^256 is that number. Any other text stands for the keccak-256 hash of
    its UTF-8 bytes. Raises `ValueError` for text that has no UTF-8 form.
    """
    if salt is None:
        return 0
    number = _number(salt)
    if number is not None and number < _LIMIT:
        return number
    return int.from_bytes(keccak256(salt.encode("utf-8")), "big")


def _number(salt: str) -> int | None:
    base = 10 if _DECIMAL.fullmatch(salt) else 16 if _HEX.fullmatch(salt) else None
    if base is None:
        return None
    digits = salt.removeprefix("0x").lstrip("0") or "0"
    return int(digits, base) if len(digits) <= _LONGEST else None
