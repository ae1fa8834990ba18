"""What sponsoring asks of a network: its head, whether a sender is deployed, and the count of a 0.6 paymaster.

Called by the sponsor service. A sender that was seen deployed is remembered and not asked about again. It stores
nothing and judges nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from capstan.chain.calls.decoding import unsigned
from capstan.chain.calls.models import BlockChanged, BlockRef, ContractCall, call
from capstan.chain.registry import Network
from capstan.core.errors import UpstreamError
from capstan.core.hexes import to_checksum_address

_MOST_KNOWN = 200_000
_ATTEMPTS = 3


class Heads(Protocol):
    """Knows the latest block."""

    async def latest(self, network: Network) -> BlockRef: ...


class Reader(Protocol):
    """Reads contracts at one block."""

    async def read(self, network: Network, block: BlockRef, calls: Sequence[ContractCall]) -> list[bytes | None]: ...

    async def has_code(self, network: Network, block: BlockRef, address: bytes) -> bool: ...


class SponsorChain:
    """Reads for sponsoring, on every network."""

    def __init__(self, heads: Heads, reader: Reader) -> None:
        self._heads = heads
        self._reader = reader
        self._deployed: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    async def head(self, network: Network) -> BlockRef:
        """The latest block."""
        return await self._heads.latest(network)

    async def is_deployed(self, network: Network, sender: bytes) -> bool:
        """Whether the sender has code."""
        key = (network.name, sender)
        if key in self._deployed:
            self._deployed.move_to_end(key)
            return True
        for _ in range(_ATTEMPTS):
            try:
                found = await self._reader.has_code(network, await self.head(network), sender)
            except BlockChanged:
                continue
            if found:
                self._deployed[key] = None
                while len(self._deployed) > _MOST_KNOWN:
                    self._deployed.popitem(last=False)
            return found
        raise UpstreamError(f"the head of {network.name} changes too fast to be read; try again")

    async def sender_nonce(self, network: Network, paymaster: bytes, sender: bytes) -> int:
        """How many operations of this sender a paymaster of version 0.6 has paid for: its signature covers that."""
        for _ in range(_ATTEMPTS):
            try:
                return await self._count(network, paymaster, call(paymaster, "senderNonce(address)", sender))
            except BlockChanged:
                continue
        raise UpstreamError(f"the head of {network.name} changes too fast to be read; try again")

    async def deposits(self, network: Network, places: Sequence[tuple[bytes, bytes]]) -> list[int | None]:
        """What each paymaster has at its entry point, in wei; pairs of entry point and paymaster."""
        block = await self.head(network)
        calls = [call(entry_point, "balanceOf(address)", paymaster) for entry_point, paymaster in places]
        return [unsigned(answer) for answer in await self._reader.read(network, block, calls)]

    async def _count(self, network: Network, paymaster: bytes, question: ContractCall) -> int:
        block = await self.head(network)
        found = unsigned((await self._reader.read(network, block, [question]))[0])
        if found is None:
            raise UpstreamError(
                f"the paymaster {to_checksum_address(paymaster)} on {network.name} does not tell its count;"
                " the operator must check the network's paymasters"
            )
        return found
