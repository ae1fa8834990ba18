"""Reading for an answer: the address that was asked about, the block to read at, and whether what is kept still holds.

Used by the services of tokens and NFTs.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from capstan.chain.calls.models import BlockChanged, BlockRef
from capstan.chain.registry import Network
from capstan.core.errors import InvalidRequest, NotFound, Unavailable
from capstan.core.hexes import parse_address
from capstan.index.models import Coverage

T = TypeVar("T")

_ATTEMPTS = 3


class Blocks(Protocol):
    """Knows the latest block."""

    async def latest(self, network: Network, *, ask: bool = False) -> BlockRef:
        """From memory, or with `ask` from a node."""
        ...


async def read_at(blocks: Blocks, network: Network, block: BlockRef, read: Callable[[BlockRef], Awaitable[T]]) -> T:
    """Read at the block, and at a newer one when that block has left the chain meanwhile. Raises `Unavailable`."""
    for _ in range(_ATTEMPTS):
        try:
            return await read(block)
        except BlockChanged:
            # The head in memory may be that very block for a moment longer.
            block = await blocks.latest(network, ask=True)
    raise Unavailable(f"{network.name} is being reorganised; try again shortly")


def reaches(coverage: Coverage, block: BlockRef) -> bool:
    """Whether the index could not know more of this block."""
    return coverage.complete and (coverage.block or 0) >= block.number


def evm_address(network: Network, text: str, name: str, things: str) -> bytes:
    """The address in the parameter `name`. Raises `InvalidRequest`, and `NotFound` where there are no such things."""
    if network.spec.family != "evm":
        raise NotFound(f"network {network.name} has no {things}: only EVM chains do")
    try:
        return parse_address(text)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from None
