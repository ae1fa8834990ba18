"""What wallets ask of a network: the address a factory gives, nonces, and which addresses have code.

Called by the wallet service. Every answer is bound to one block, by its hash; a block that is replaced meanwhile means
asking again with the new head, a few times. It stores nothing and decides nothing about wallets.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
import structlog

from capstan.chain.calls.blocks import HeadBlocks
from capstan.chain.calls.decoding import address_bytes, unsigned
from capstan.chain.calls.models import BlockChanged, BlockRef, call
from capstan.chain.calls.reader import StateReader
from capstan.chain.errors import NodeError
from capstan.chain.registry import Network
from capstan.core.errors import UpstreamError
from capstan.core.hexes import parse_data, to_checksum_address, to_data, to_quantity
from capstan.wallets.codes import code_answer, code_question
from capstan.wallets.factories import GET_ADDRESS, computed_address

log = structlog.get_logger(__name__)

T = TypeVar("T")

_ATTEMPTS = 3
# EXTCODESIZE of an address not yet touched costs 2,600 (EIP-2929); with room for chains that price otherwise.
_GAS_PER_ADDRESS = 10_000
_GAS_AT_LEAST = 200_000
_QUESTIONS_AT_ONCE = 8


class Sight(msgspec.Struct, frozen=True):
    """What one address looked like at one block."""

    block: BlockRef
    deployed: bool
    nonce: int


class WalletChain:
    """Reads for wallets, on every network."""

    def __init__(self, heads: HeadBlocks, reader: StateReader) -> None:
        self._heads = heads
        self._reader = reader

    async def locate(self, network: Network, factory: bytes, owner: bytes, salt: int) -> tuple[bytes, BlockRef, bool]:
        """The address of a wallet, the block at which it was asked for, and whether it has code there already.

        The factory says the address; where the code of its accounts is known it must be the computed one. Raises
        `UpstreamError` when there is no answer, or when the two are not the same: then neither is told.
        """

        async def ask(block: BlockRef) -> tuple[bytes, BlockRef, bool]:
            question = call(factory, GET_ADDRESS, owner, salt)
            answer = address_bytes((await self._reader.read(network, block, [question]))[0])
            if answer is None:
                raise UpstreamError(
                    f"the factory {to_checksum_address(factory)} on {network.name} does not tell an address;"
                    " it may not be deployed there: the operator must check the network's factories"
                )
            computed = computed_address(factory, owner, salt)
            if computed is not None and computed != answer:
                log.error("wallets.address_disagreement", network=network.name, factory=to_data(factory))
                raise UpstreamError(
                    f"the factory {to_checksum_address(factory)} on {network.name} says the wallet is"
                    f" {to_checksum_address(answer)}, but its code makes it {to_checksum_address(computed)};"
                    " no address is given, because one of them is wrong: a node may be answering falsely"
                )
            return answer, block, await self._reader.has_code(network, block, answer)

        return await self._at_head(network, ask)

    async def look(self, network: Network, entry_point: bytes, address: bytes) -> Sight:
        """Whether the address has code, and its nonce at the entry point, both at the latest block."""

        async def ask(block: BlockRef) -> Sight:
            question = call(entry_point, "getNonce(address,uint192)", address, 0)
            (answer,), deployed = await asyncio.gather(
                self._reader.read(network, block, [question]), self._reader.has_code(network, block, address)
            )
            nonce = unsigned(answer)
            if nonce is None:
                raise UpstreamError(
                    f"the entry point {to_checksum_address(entry_point)} on {network.name} does not tell a nonce;"
                    " the operator must check the network's entry points"
                )
            return Sight(block, deployed, nonce)

        return await self._at_head(network, ask)

    async def which_have_code(self, network: Network, addresses: Sequence[bytes]) -> tuple[BlockRef, list[bool]]:
        """Which of the addresses have code, in one call, at the latest block."""

        async def ask(block: BlockRef) -> tuple[BlockRef, list[bool]]:
            try:
                return block, await self._ask_together(network, block, addresses)
            except (NodeError, ValueError) as error:
                # A node that does not run code without a contract: ask for each.
                log.info("wallets.code_one_by_one", network=network.name, reason=str(error)[:200])
            limit = asyncio.Semaphore(_QUESTIONS_AT_ONCE)

            async def one(address: bytes) -> bool:
                async with limit:
                    return await self._reader.has_code(network, block, address)

            return block, list(await asyncio.gather(*(one(address) for address in addresses)))

        return await self._at_head(network, ask)

    async def has_code_at(self, network: Network, number: int, address: bytes) -> bool:
        """Whether the address had code at an earlier block. Raises `NodeError` when no node has that state."""
        params = msgspec.json.encode([to_data(address), to_quantity(number)])
        answer = await network.pool.call("eth_getCode", params, needs_block=number)
        return msgspec.json.decode(answer, type=str) not in ("0x", "0x0")

    async def _ask_together(self, network: Network, block: BlockRef, addresses: Sequence[bytes]) -> list[bool]:
        gas = _GAS_AT_LEAST + _GAS_PER_ADDRESS * len(addresses)
        transaction = {"data": to_data(code_question(addresses)), "gas": to_quantity(gas)}
        at: object = to_quantity(block.number)
        if self._reader.takes_hash(network):
            at = {"blockHash": block.hash, "requireCanonical": True}
        params = msgspec.json.encode([transaction, at])
        answer = await network.pool.call("eth_call", params, needs_block=block.number)
        return code_answer(parse_data(msgspec.json.decode(answer, type=str)), len(addresses))

    async def _at_head(self, network: Network, ask: Callable[[BlockRef], Awaitable[T]]) -> T:
        for attempt in range(_ATTEMPTS):
            try:
                return await ask(await self._heads.latest(network))
            except BlockChanged as error:
                log.info("wallets.block_changed", network=network.name, attempt=attempt, reason=str(error))
        raise UpstreamError(f"the head of {network.name} changes too fast to be read; try again")
