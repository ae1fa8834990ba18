"""What the NFT services need of others: the index, prices, the head, and contracts.

Each is a small interface of our own; the composition root decides who fulfils it.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Protocol

from capstan.chain.calls.models import BlockRef, ContractCall
from capstan.chain.calls.reader import Gas
from capstan.chain.registry import Network
from capstan.nfts.models import CollectionSums, OwnedPage, Owners


class NftIndex(Protocol):
    """Knows from transfers who holds what, and listens for notices of changed metadata."""

    def follow(self, network: Network) -> None:
        """Listen from now on: documents of the network are kept."""
        ...

    async def owned(self, network: Network, holder: bytes, *, page: int, limit: int) -> OwnedPage:
        """A page of what an address holds, ordered by contract and id."""
        ...

    async def collection(self, network: Network, contract: bytes) -> CollectionSums:
        """The sums over one contract. Zeros when it has no transfers."""
        ...

    async def owners_of(self, network: Network, contract: bytes, token_id: int) -> Owners:
        """Who holds an id."""
        ...


class Contracts(Protocol):
    """Reads contracts at one block."""

    async def read(
        self, network: Network, block: BlockRef, calls: Sequence[ContractCall], gas: Gas
    ) -> list[bytes | None]: ...

    async def has_code(self, network: Network, block: BlockRef, address: bytes) -> bool: ...


class Floor(Protocol):
    """About the lowest price for which one of a collection can be had, in the native coin and in US dollars."""

    @property
    def native(self) -> Decimal: ...

    @property
    def usd(self) -> Decimal | None: ...


class Floors(Protocol):
    """Knows floor prices."""

    async def floor(self, network: Network, block: BlockRef, contract: bytes) -> Floor | None: ...
