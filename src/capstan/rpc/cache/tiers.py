"""What a second tier is: a place outside the process where final answers are kept.

Implemented by `persistent` (a file) and `remote` (Redis), used by `gateway`. A tier may lose anything at any time and
must never fail a call: what goes wrong inside it is a miss.
"""

from typing import Protocol


class SecondTier(Protocol):
    """Final answers by key."""

    def may_have(self, key: bytes) -> bool:
        """Whether asking is worth it. False is certain, true is a guess."""
        ...

    async def get(self, key: bytes) -> bytes | None:
        """The answer, or None."""
        ...

    def put(self, key: bytes, value: bytes) -> None:
        """Keep an answer, soon. Never waits; what does not fit into the queue is left out."""
        ...

    async def close(self) -> None:
        """Write what is queued and stop."""
        ...
