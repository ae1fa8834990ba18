"""Token balances and token metadata, at the latest block.

Called by the token routes. An answer is kept until there is a newer block or the index knows more, so that nothing is
asked upstream while nothing changed; callers who ask for the same at the same moment share one reading. Later pages of
a list come from the same reading as its first page for a little while, so that a list does not shift under its reader.
"""

from collections.abc import Callable

import msgspec

from capstan.answers.encoded import Answer, answer_of
from capstan.answers.reading import Blocks, evm_address, reaches, read_at
from capstan.answers.sharing import Shared
from capstan.catalogue.networks import Network as Facts
from capstan.chain.calls import decoding
from capstan.chain.calls.models import BlockRef, call
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.decimals import format_units
from capstan.core.errors import NotFound
from capstan.core.money import amount, plain, product
from capstan.core.weighted import WeightedMemory
from capstan.index.models import Coverage
from capstan.tokens.balances import BalanceReader
from capstan.tokens.logos import Logos
from capstan.tokens.metadata import CALLS_PER_TOKEN, TokenBook, facts_from, questions
from capstan.tokens.models import HeldTokens, TokenBalance, TokenBalances, TokenMetadata
from capstan.tokens.ports import Contracts, Prices, TokenIndex

# ERC-165: the interface id of ERC-721, whose contracts have a supply and balances too and are still no ERC-20 tokens.
_ERC721 = bytes.fromhex("80ac58cd")
_THINGS = "ERC-20 tokens"
# How long later pages of a list come from the reading of its first page.
_STABLE_SECONDS = 30.0
_PAGES_KEPT = 8
# What is kept in memory of one token in a list, its encoded form in pages included, and of a list as such.
_TOKEN_BYTES = 1500
_SNAPSHOT_BYTES = 2000
_METADATA_BYTES = 32 * 1024 * 1024


class TokenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the service."""

    most_tokens: int
    # For lists of balances.
    memory_bytes: int


class _Snapshot(msgspec.Struct):
    """The whole list of one address at one block, and the pages of it that were asked for."""

    block: BlockRef
    held: HeldTokens
    read_at: float
    tokens: tuple[TokenBalance, ...]
    pages: dict[tuple[str, int, int], Answer]


class _Metadata(msgspec.Struct, frozen=True):
    block: BlockRef
    shown: TokenMetadata


class TokenService:
    """Tokens of every EVM network."""

    def __init__(
        self,
        blocks: Blocks,
        contracts: Contracts,
        index: TokenIndex,
        prices: Prices,
        book: TokenBook,
        logos: Logos,
        *,
        facts: Callable[[Network], Facts],
        clock: Clock,
        options: TokenOptions,
    ) -> None:
        self._blocks = blocks
        self._contracts = contracts
        self._index = index
        self._prices = prices
        self._book = book
        self._logos = logos
        self._facts = facts
        self._clock = clock
        self._options = options
        self._balances = BalanceReader(contracts, book, prices, logos)
        self._snapshots: WeightedMemory[tuple[str, bytes], _Snapshot] = WeightedMemory(options.memory_bytes)
        self._metadata: WeightedMemory[tuple[str, bytes], _Metadata] = WeightedMemory(_METADATA_BYTES)
        self._readings: Shared[tuple[str, bytes, str], _Snapshot] = Shared("token balances")
        self._metadata_readings: Shared[tuple[str, bytes, str], _Metadata] = Shared("token metadata")

    async def balances(self, network: Network, address: str, page: int, limit: int) -> Answer:
        """A page of the tokens of an address, encoded. Raises `InvalidRequest`, and the failures of the pool."""
        holder = evm_address(network, address, "address", _THINGS)
        snapshot = await self._snapshot(network, holder, first=page == 1)
        key = (address, page, limit)
        answer = snapshot.pages.get(key)
        if answer is None:
            begin = (page - 1) * limit
            shown = TokenBalances(
                address=address,
                chain=network.spec.chain,
                tokens=list(snapshot.tokens[begin : begin + limit]),
                page=page,
                total=len(snapshot.tokens),
            )
            answer = answer_of(shown, snapshot.held.coverage)
            if len(snapshot.pages) >= _PAGES_KEPT:
                snapshot.pages.clear()
            snapshot.pages[key] = answer
        return answer

    async def metadata(self, network: Network, contract: str) -> Answer:
        """What is known of a token, encoded. Raises `NotFound` for what is none, `InvalidRequest`, and the pool's."""
        token = evm_address(network, contract, "contract", _THINGS)
        block = await self._blocks.latest(network)
        key = (network.name, token)
        kept = self._metadata.get(key)
        if kept is None or kept.block.hash != block.hash:
            kept = await self._metadata_readings.read(
                (*key, block.hash),
                lambda: read_at(self._blocks, network, block, lambda at: self._read_metadata(network, at, token)),
            )
            self._metadata.put(key, kept, _TOKEN_BYTES)
        # Everything in it was read at that block, so nothing can be missing.
        return answer_of(msgspec.structs.replace(kept.shown, contract=contract), Coverage(kept.block.number, True))

    async def close(self) -> None:
        """Stop the readings under way."""
        await self._readings.close()
        await self._metadata_readings.close()

    async def _snapshot(self, network: Network, holder: bytes, *, first: bool) -> _Snapshot:
        key = (network.name, holder)
        kept = self._snapshots.get(key)
        if kept is not None and not first and self._clock.monotonic() - kept.read_at < _STABLE_SECONDS:
            return kept
        block = await self._blocks.latest(network)
        if kept is not None and kept.block.hash == block.hash and reaches(kept.held.coverage, block):
            return kept
        return await self._readings.read((*key, block.hash), lambda: self._read_snapshot(network, block, holder))

    async def _read_snapshot(self, network: Network, block: BlockRef, holder: bytes) -> _Snapshot:
        held = await self._index.tokens_of(network, holder)
        most = self._options.most_tokens
        if len(held.contracts) > most:
            coverage = Coverage(held.coverage.block, False)
            held = HeldTokens(held.contracts[:most], coverage)
        key = (network.name, holder)
        kept = self._snapshots.get(key)
        if kept is not None and kept.block.hash == block.hash and kept.held.contracts == held.contracts:
            # The index got further and found nothing new.
            snapshot = _Snapshot(kept.block, held, kept.read_at, kept.tokens, {})
            self._keep(key, snapshot)
            return snapshot
        chain_id = self._facts(network).chain_id

        async def read(at: BlockRef) -> _Snapshot:
            tokens = await self._balances.holdings(network, chain_id, at, holder, held.contracts)
            return _Snapshot(at, held, self._clock.monotonic(), tokens, {})

        snapshot = await read_at(self._blocks, network, block, read)
        self._keep(key, snapshot)
        return snapshot

    def _keep(self, key: tuple[str, bytes], snapshot: _Snapshot) -> None:
        self._snapshots.put(key, snapshot, _SNAPSHOT_BYTES + _TOKEN_BYTES * len(snapshot.tokens))

    async def _read_metadata(self, network: Network, block: BlockRef, token: bytes) -> _Metadata:
        asked = [
            *questions(token),
            call(token, "totalSupply()"),
            call(token, "balanceOf(address)", token),
            call(token, "supportsInterface(bytes4)", _ERC721),
        ]
        upgrades = self._book.upgrades
        results = await self._contracts.read(network, block, asked)
        facts = facts_from(results[:CALLS_PER_TOKEN])
        supply, balance = (decoding.unsigned(result) for result in results[CALLS_PER_TOKEN : CALLS_PER_TOKEN + 2])
        if balance is None or (supply is None and facts.decimals is None) or decoding.boolean(results[-1]):
            raise await self._no_token(network, block, token)
        await self._book.learn(network, {token: facts}, upgrades=upgrades)
        price = (await self._prices.prices(network, block, [token])).get(token)
        cap = None
        if price is not None and supply is not None and facts.decimals is not None:
            cap = product(amount(supply, facts.decimals), price.usd)
        shown = TokenMetadata(
            contract="",
            chain=network.spec.chain,
            name=facts.name,
            symbol=facts.symbol,
            decimals=facts.decimals,
            total_supply=None if supply is None else str(supply),
            formatted_total_supply=(
                None if supply is None or facts.decimals is None else format_units(supply, facts.decimals)
            ),
            price_usd=None if price is None else plain(price.usd),
            market_cap_usd=None if cap is None else plain(cap),
            logo_url=self._logos.find(self._facts(network).chain_id, token),
        )
        return _Metadata(block, shown)

    async def _no_token(self, network: Network, block: BlockRef, token: bytes) -> NotFound:
        """The 404 that says what is wrong."""
        if await self._contracts.has_code(network, block, token):
            return NotFound(f"the contract is not an ERC-20 token on {network.name}")
        return NotFound(f"there is no contract at this address on {network.name}")
