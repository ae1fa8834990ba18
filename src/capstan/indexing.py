"""The transfer index as the token and NFT services want it.

Made by the composition root. Capabilities do not know each other: this adapter turns the values of the index into those
of the services. Where there is no index, or a network is not indexed, it says that nothing is covered, and knows
nothing. On a development chain it waits a moment until the index has reached the head, so that whoever mints and then
asks sees what was minted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from capstan.chain.calls.blocks import HeadBlocks
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import NotFound
from capstan.index.models import Collection, Coverage, HoldingPage, Standard
from capstan.nfts import models as nfts
from capstan.tokens import models as tokens

_NAMES: dict[Standard, nfts.Standard] = {Standard.ERC721: "ERC721", Standard.ERC1155: "ERC1155"}
_NOT_COVERED = Coverage(None, False)
_CATCH_UP_SECONDS = 2.0
_POLL_SECONDS = 0.05

T = TypeVar("T")


class IndexView(Protocol):
    """The questions that the services ask; the transfer index answers them."""

    def follow(self, network: str) -> None: ...

    async def tokens_of(self, network: str, holder: bytes) -> tuple[tuple[bytes, ...], Coverage]: ...

    async def owned(self, network: str, holder: bytes, *, page: int, limit: int) -> HoldingPage: ...

    async def collection(self, network: str, contract: bytes) -> tuple[Collection | None, Coverage]: ...

    async def owners(self, network: str, contract: bytes, token_id: int, *, limit: int) -> HoldingPage: ...


class DataIndex:
    """Fulfils the ports of both services."""

    def __init__(self, blocks: HeadBlocks, clock: Clock) -> None:
        self._blocks = blocks
        self._clock = clock
        self._index: IndexView | None = None

    def use(self, index: IndexView) -> None:
        """Ask this index from now on."""
        self._index = index

    def follow(self, network: Network) -> None:
        """See `nfts.ports.NftIndex`."""
        if self._index is not None:
            self._index.follow(network.name)

    async def tokens_of(self, network: Network, holder: bytes) -> tokens.HeldTokens:
        """See `tokens.ports.TokenIndex`."""
        nothing: tuple[tuple[bytes, ...], Coverage] = ((), _NOT_COVERED)
        contracts, coverage = await self._ask(
            network, lambda index: index.tokens_of(network.name, holder), lambda found: found[1], nothing
        )
        return tokens.HeldTokens(contracts, coverage)

    async def owned(self, network: Network, holder: bytes, *, page: int, limit: int) -> nfts.OwnedPage:
        """See `nfts.ports.NftIndex`."""
        found = await self._ask(
            network,
            lambda index: index.owned(network.name, holder, page=page, limit=limit),
            lambda found: found.coverage,
            HoldingPage((), 0, _NOT_COVERED),
        )
        owned = tuple(nfts.OwnedToken(item.contract, item.token_id, _NAMES[item.standard]) for item in found.holdings)
        return nfts.OwnedPage(owned, found.total, found.coverage)

    async def collection(self, network: Network, contract: bytes) -> nfts.CollectionSums:
        """See `nfts.ports.NftIndex`."""
        nothing: tuple[Collection | None, Coverage] = (None, _NOT_COVERED)
        found, coverage = await self._ask(
            network, lambda index: index.collection(network.name, contract), lambda found: found[1], nothing
        )
        if found is None:
            return nfts.CollectionSums(0, 0, (), coverage)
        standards = tuple(_NAMES[standard] for standard in found.standards if standard in _NAMES)
        return nfts.CollectionSums(found.owners, found.ids, standards, coverage)

    async def owners_of(self, network: Network, contract: bytes, token_id: int) -> nfts.Owners:
        """See `nfts.ports.NftIndex`."""
        found = await self._ask(
            network,
            lambda index: index.owners(network.name, contract, token_id, limit=2),
            lambda found: found.coverage,
            HoldingPage((), 0, _NOT_COVERED),
        )
        return nfts.Owners(tuple(item.owner for item in found.holdings), found.coverage)

    async def _ask(
        self,
        network: Network,
        question: Callable[[IndexView], Awaitable[T]],
        coverage: Callable[[T], Coverage],
        nothing: T,
    ) -> T:
        if self._index is None:
            return nothing
        try:
            found = await question(self._index)
            if not network.spec.dev_methods:
                return found
            head = (await self._blocks.latest(network)).number
            deadline = self._clock.monotonic() + _CATCH_UP_SECONDS
            while (coverage(found).block or 0) < head and self._clock.monotonic() < deadline:
                await asyncio.sleep(_POLL_SECONDS)
                found = await question(self._index)
        except NotFound:
            # The network is not indexed.
            return nothing
        return found
