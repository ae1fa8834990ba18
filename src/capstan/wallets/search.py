"""Finds where on the chain a wallet appeared, when nobody watched.

Called by the wallet service for a wallet that has code and whose deployment is not known: it was deployed before it
was created here, or by a way that left no event, or while nothing followed the chain. The block is found by halving
the range in which the code appeared, from the head backwards in growing steps first, so that a node without old state
suffices for a recent deployment. The transaction is the one in that block that left a log of the wallet or created it.
What cannot be found stays unknown; nothing is guessed. Searches are few at a time and bounded in calls.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec
import structlog

from capstan.chain.calls.blocks import ask_block
from capstan.chain.calls.models import BlockRef
from capstan.chain.errors import NodeError
from capstan.chain.registry import Network
from capstan.core.clock import Clock
from capstan.core.errors import ApiError
from capstan.core.hexes import to_data, to_quantity
from capstan.userops.events import ACCOUNT_DEPLOYED_TOPIC
from capstan.wallets.chain import WalletChain
from capstan.wallets.models import Deployment, Wallet

log = structlog.get_logger(__name__)

_AT_ONCE = 4
# How long the request that began a search waits for it. Then it goes on behind, for the next request.
PATIENCE_SECONDS = 3.0
# A search that found nothing is not repeated for so long.
_REST_SECONDS = 600.0
_MOST_REMEMBERED = 10_000


# Stores what was found, also when the request that asked for it is long over.
Note = Callable[[Wallet, Deployment], Awaitable[None]]


class _Log(msgspec.Struct, frozen=True, rename="camel"):
    transaction_hash: str


class _Receipt(msgspec.Struct, frozen=True, rename="camel"):
    transaction_hash: str
    contract_address: str | None = None


class DeploymentSearch:
    """Searches under way and those that failed lately."""

    def __init__(self, chain: WalletChain, clock: Clock, *, note: Note) -> None:
        self._chain = chain
        self._note = note
        self._clock = clock
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._running: dict[tuple[str, bytes], asyncio.Task[Deployment | None]] = {}
        self._resting: dict[tuple[str, bytes], float] = {}

    async def find(self, network: Network, wallet: Wallet, head: BlockRef) -> Deployment | None:
        """Where the wallet appeared, if that can be found in a few seconds; None otherwise."""
        key = (wallet.network, wallet.address)
        if self._resting.get(key, 0.0) > self._clock.monotonic():
            return None
        search = self._running.get(key)
        if search is None:
            search = asyncio.create_task(self._search(network, wallet, head), name=f"deployment on {network.name}")
            self._running[key] = search
            search.add_done_callback(lambda done: self._finish(key, done))
        try:
            # Shielded: the search is worth finishing for the next who asks.
            return await asyncio.wait_for(asyncio.shield(search), PATIENCE_SECONDS)
        except TimeoutError:
            return None

    async def close(self) -> None:
        """End the searches under way."""
        running = tuple(self._running.values())
        for search in running:
            search.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _finish(self, key: tuple[str, bytes], done: asyncio.Task[Deployment | None]) -> None:
        self._running.pop(key, None)
        if not done.cancelled() and done.exception() is None and done.result() is not None:
            return
        if len(self._resting) >= _MOST_REMEMBERED:
            self._resting.clear()
        self._resting[key] = self._clock.monotonic() + _REST_SECONDS

    async def _search(self, network: Network, wallet: Wallet, head: BlockRef) -> Deployment | None:
        async with self._limit:
            try:
                number = await self._first_block(network, wallet, head.number)
                block = await ask_block(network, to_quantity(number))
                transaction = await self._transaction(network, wallet, block)
            except (NodeError, ApiError, ValueError) as error:
                # Most often a node that does not keep the state of old blocks.
                log.info("wallets.deployment_not_found", network=network.name, reason=str(error)[:200])
                return None
        at = datetime.fromtimestamp(block.timestamp, UTC)
        found = Deployment(block.number, bytes.fromhex(block.hash[2:]), at, transaction)
        await self._note(wallet, found)
        return found

    async def _first_block(self, network: Network, wallet: Wallet, head: int) -> int:
        """The first block at which the address has code; it has at the head."""
        known = wallet.absent_at
        if known is None or known >= head or await self._chain.has_code_at(network, known, wallet.address):
            # Nothing is known, or what was known is of a branch that was left.
            known = -1
        with_code, without, step = head, known, 1
        while with_code - without > 1:
            # In growing steps back from the head until there is no code, then half way between.
            probe = max(with_code - step, without + 1) if step else (with_code + without) // 2
            if await self._chain.has_code_at(network, probe, wallet.address):
                with_code, step = probe, step * 2
            else:
                without, step = probe, 0
        return with_code

    async def _transaction(self, network: Network, wallet: Wallet, block: BlockRef) -> bytes | None:
        address = to_data(wallet.address)
        sender = "0x" + wallet.address.hex().rjust(64, "0")
        announced = {"address": to_data(wallet.entry_point), "topics": [to_data(ACCOUNT_DEPLOYED_TOPIC), None, sender]}
        for question in (announced, {"address": address}):
            logs = await network.pool.request_as(list[_Log], "eth_getLogs", [{"blockHash": block.hash, **question}])
            if logs:
                return bytes.fromhex(logs[0].transaction_hash[2:])
        try:
            receipts = await network.pool.request_as(
                list[_Receipt], "eth_getBlockReceipts", [to_quantity(block.number)]
            )
        except NodeError:
            return None
        created = [each for each in receipts if (each.contract_address or "").lower() == address]
        # In a block of one transaction it can only have been that one.
        chosen = created or (receipts if len(receipts) == 1 else [])
        return bytes.fromhex(chosen[0].transaction_hash[2:]) if chosen else None
