"""What the token service needs of others: the index, prices, the head, and contracts.

Each is a small interface of our own; the composition root decides who fulfils it.
"""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Protocol

from capstan.chain.calls.models import BlockRef, ContractCall
from capstan.chain.registry import Network
from capstan.tokens.models import HeldTokens


class TokenIndex(Protocol):
    """Knows from transfers which tokens an address may hold. Balances are read from the chain, never summed up."""

    async def tokens_of(self, network: Network, holder: bytes) -> HeldTokens:
        """The contracts of all ERC-20 transfers to or from the holder."""
        ...


class Contracts(Protocol):
    """Reads contracts at one block."""

    async def read(self, network: Network, block: BlockRef, calls: Sequence[ContractCall]) -> list[bytes | None]: ...

    async def has_code(self, network: Network, block: BlockRef, address: bytes) -> bool: ...


class Price(Protocol):
    """What one whole token is worth."""

    @property
    def usd(self) -> Decimal: ...


class Prices(Protocol):
    """Knows what tokens are worth."""

    async def prices(self, network: Network, block: BlockRef, tokens: Iterable[bytes]) -> Mapping[bytes, Price]: ...
