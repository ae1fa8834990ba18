"""Passwords: what is asked of a new one, and argon2id beside the event loop.

Called by the sign-in service. A hash takes tens of milliseconds and tens of megabytes, so few are computed at a time;
whoever comes later waits.
"""

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from capstan.core.errors import InvalidRequest

SHORTEST = 10
LONGEST = 200
_AT_ONCE = 2

# What a password is compared with when there is no such person, so that the time taken does not tell.
_NOBODY = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXRoaW5nc2FsdHk$dmK0N0Rwl7QMZTnyXyOtDFtXh5RcMcJjHqVV0y7SkFg"


class Passwords:
    """Hashes and checks passwords."""

    def __init__(self, hasher: PasswordHasher | None = None) -> None:
        self._hasher = hasher or PasswordHasher()
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def hash(self, password: str) -> str:
        """The hash that is stored."""
        async with self._turn:
            return await asyncio.to_thread(self._hasher.hash, password)

    async def matches(self, stored: str | None, password: str) -> bool:
        """Whether the password is the one behind the hash. None: there is nobody, which takes as long to say."""
        async with self._turn:
            return await asyncio.to_thread(self._verify, stored, password)

    def _verify(self, stored: str | None, password: str) -> bool:
        try:
            self._hasher.verify(stored or _NOBODY, password[:LONGEST])
        except (VerificationError, InvalidHashError):
            return False
        return stored is not None


def check_new_password(password: str, email: str) -> None:
    """Refuse a password that is too short, too long, or the address itself."""
    if not SHORTEST <= len(password) <= LONGEST:
        raise InvalidRequest(f"password: use {SHORTEST} to {LONGEST} characters; several words are best")
    if len(set(password)) < 4 or password.lower() in (email, email.partition("@")[0]):
        raise InvalidRequest("password: this one is too easy to guess")
