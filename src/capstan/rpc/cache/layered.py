"""Two second tiers as one: the file of this process in front of the Redis that all processes share.

Made by the composition root where both are configured. What is found in Redis goes into the file too, so that it is
still there when Redis has dropped it or is away.
"""

from capstan.rpc.cache.tiers import SecondTier


class LayeredTier:
    """A near tier and a far one. A `SecondTier`."""

    def __init__(self, near: SecondTier, far: SecondTier) -> None:
        self._near = near
        self._far = far

    def may_have(self, key: bytes) -> bool:
        """Whether either may have it."""
        return self._near.may_have(key) or self._far.may_have(key)

    async def get(self, key: bytes) -> bytes | None:
        """The answer from the near tier, else from the far one."""
        if self._near.may_have(key):
            found = await self._near.get(key)
            if found is not None:
                return found
        if not self._far.may_have(key):
            return None
        found = await self._far.get(key)
        if found is not None:
            self._near.put(key, found)
        return found

    def put(self, key: bytes, value: bytes) -> None:
        """Keep an answer in both, soon."""
        self._near.put(key, value)
        self._far.put(key, value)

    async def close(self) -> None:
        """Write what is queued and stop."""
        await self._near.close()
        await self._far.close()
