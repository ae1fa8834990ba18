"""Identifiers: a short prefix that says what a thing is, then random characters.

Called by every service that creates something. Ids that must be the same on every replay are derived elsewhere, from
what they identify, and never come from here.
"""

import secrets

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def base62(number: int, width: int) -> str:
    """`number` in base 62, padded with zeros to `width` characters."""
    digits: list[str] = []
    while number:
        number, rest = divmod(number, 62)
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits)).rjust(width, "0")


def new_id(prefix: str) -> str:
    """A fresh identifier such as `acc_3sKf…`, with 128 bits of randomness."""
    return f"{prefix}_{base62(secrets.randbits(128), 22)}"


class RequestIds:
    """Ids of requests, unique over all processes and cheap to make: a random part for the process, then a count."""

    def __init__(self) -> None:
        self._prefix = f"req_{secrets.token_hex(6)}"
        # What all of them begin with, and how many there were. For those who write ids themselves: the count as eight
        # digits or more, after they have raised it.
        self.prefix = self._prefix.encode()
        self.count = 0

    def next(self) -> str:
        """A fresh id such as `req_9f86d081884c00000001`."""
        self.count += 1
        return self.of(self.count)

    def of(self, count: int) -> str:
        """The id with this count."""
        return f"{self._prefix}{count:08x}"
