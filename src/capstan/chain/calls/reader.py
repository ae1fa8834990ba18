"""Reads the state of contracts: many calls at one block, as few questions to upstreams as possible.

Called by tokens, NFTs and prices through the network's pool. Calls travel together in Multicall3 where the network has
it, one by one where it has not. All are bound to the hash of one block (EIP-1898); where upstreams do not take a hash,
to its number, and the hash is checked afterwards. A contract that burns all gas, or returns megabytes, spoils only its
own result. It keeps nothing of what it read.
"""

import asyncio
import re
from collections.abc import Callable, Sequence

import msgspec
import structlog

from capstan.chain.calls.blocks import ask_block
from capstan.chain.calls.models import BlockChanged, BlockRef, ContractCall, selector
from capstan.chain.calls.multicall import decode_aggregate, encode_aggregate, encoded_size
from capstan.chain.errors import EveryUpstreamFailed, NodeError, NodeUnable
from capstan.chain.registry import Network
from capstan.core.hexes import parse_data, to_data, to_quantity

log = structlog.get_logger(__name__)

# The address of Multicall3 on a network; empty where there is none.
FindMulticall = Callable[[Network], str]

# One question to an upstream: bounded in calls, in bytes of calldata, and in gas. The gas stays under the limit of one
# transaction (EIP-7825), which some nodes hold calls to as well.
_CALLS_AT_ONCE = 1000
_BYTES_AT_ONCE = 400_000
_GAS_AT_ONCE = 16_000_000
_GAS_BASE = 500_000
# A longer result counts as none.
_LONGEST_RESULT = 1024 * 1024
_QUESTIONS_AT_ONCE = 8
# How often the rest of a question is asked again together, after a contract in it has used up the gas.
_ROUNDS = 4
# The last call of every question: when it fails, the gas ran out on the way, and failures before it mean nothing.
_CANARY = selector("getBlockNumber()")
_OUT_OF_GAS = re.compile(r"out of gas|gas required exceeds|gas limit|intrinsic gas|exceeds allowance", re.IGNORECASE)
_REVERTED = re.compile(
    r"revert|vm exception|vm execution|invalid opcode|bad instruction|stack underflow", re.IGNORECASE
)


class Gas(msgspec.Struct, frozen=True):
    """How much gas calls get. When it is not enough for all of a question, each gets more when asked alone."""

    # What each call adds to the gas of a question.
    each: int = 30_000
    alone: int = 500_000


# Functions that return a name, a number or a balance.
LIGHT = Gas()
# Functions that draw a picture, as `tokenURI` of NFTs whose metadata is on the chain.
HEAVY = Gas(each=500_000, alone=5_000_000)


class StateReader:
    """Reads contracts of every network."""

    def __init__(self, multicall: FindMulticall) -> None:
        self._multicall = multicall
        # Networks whose upstreams do not take a block hash.
        self._by_number: set[str] = set()
        # Networks whose Multicall3 is not deployed, at the block when that was seen.
        self._without: dict[str, int] = {}

    async def read(
        self, network: Network, block: BlockRef, calls: Sequence[ContractCall], gas: Gas = LIGHT
    ) -> list[bytes | None]:
        """What each call returns at the block, in order; None where it reverts.

        An account without code returns empty bytes. Raises `BlockChanged`, and the failures of the pool.
        """
        if not calls:
            return []
        limit = asyncio.Semaphore(_QUESTIONS_AT_ONCE)
        reading = _Reading(self, network, block, gas, limit)
        target = self._multicall(network)
        if not target or len(calls) == 1 or self._without.get(network.name, -1) == block.number:
            results = await reading.one_by_one(calls)
        else:
            results = await reading.together(bytes.fromhex(target[2:]), calls)
        if not self.takes_hash(network):
            now = await ask_block(network, to_quantity(block.number))
            if now.hash != block.hash:
                raise BlockChanged(f"block {block.number} of {network.name} was replaced during a reading")
        return results

    async def has_code(self, network: Network, block: BlockRef, address: bytes) -> bool:
        """Whether there is a contract at the address."""
        params = [to_data(address), _block_parameter(block, by_hash=self.takes_hash(network))]
        try:
            return bool(await network.pool.request_as(str, "eth_getCode", params) not in ("0x", "0x0"))
        except NodeError as error:
            raise _translated(network, block, error) from error

    def takes_hash(self, network: Network) -> bool:
        """Whether blocks are named by their hash to the upstreams of this network."""
        return network.name not in self._by_number

    def takes_no_hash(self, network: Network) -> None:
        """Remember that upstreams of the network do not understand EIP-1898."""
        if network.name not in self._by_number:
            log.info("calls.block_by_number", network=network.name)
            self._by_number.add(network.name)

    def has_no_multicall(self, network: Network, block: BlockRef) -> None:
        """Remember that Multicall3 is not there at this block. A later block is tried again: anyone can deploy it."""
        self._without[network.name] = block.number


class _Reading:
    """One reading at one block."""

    def __init__(
        self, reader: StateReader, network: Network, block: BlockRef, gas: Gas, limit: asyncio.Semaphore
    ) -> None:
        self._reader = reader
        self._network = network
        self._block = block
        self._gas = gas
        self._limit = limit

    async def together(self, target: bytes, calls: Sequence[ContractCall]) -> list[bytes | None]:
        """All calls through Multicall3, in as few questions as the bounds allow."""
        answers = await asyncio.gather(*(self._chunk(target, chunk) for chunk in _chunks(calls)))
        return [result for answer in answers for result in answer]

    async def one_by_one(self, calls: Sequence[ContractCall]) -> list[bytes | None]:
        """Each call in a question of its own."""
        return list(await asyncio.gather(*(self._alone(call) for call in calls)))

    async def _chunk(self, target: bytes, calls: Sequence[ContractCall]) -> list[bytes | None]:
        results: list[bytes | None] = [None] * len(calls)
        waiting = list(range(len(calls)))
        for _ in range(_ROUNDS):
            outcome = await self._aggregate(target, [calls[place] for place in waiting])
            if outcome is None:
                break
            found, complete = outcome
            for place, result in zip(waiting, found, strict=True):
                results[place] = result
            if complete:
                return results
            # The gas ran out. What succeeded stands; the first that failed is asked alone, the others together again.
            first, *waiting = [place for place in waiting if results[place] is None] or [-1]
            if first >= 0:
                results[first] = await self._alone(calls[first])
            if not waiting:
                return results
        rest = await self.one_by_one([calls[place] for place in waiting])
        for place, result in zip(waiting, rest, strict=True):
            results[place] = result
        return results

    async def _aggregate(self, target: bytes, calls: Sequence[ContractCall]) -> tuple[list[bytes | None], bool] | None:
        """The results and whether the gas was enough for all; None when the calls must be asked one by one."""
        data = encode_aggregate([*calls, ContractCall(target, _CANARY)])
        try:
            answer = await self._ask(target, data, min(_GAS_AT_ONCE, _GAS_BASE + len(calls) * self._gas.each))
        except NodeError as error:
            if _is_outcome(error):
                return None
            raise _translated(self._network, self._block, error) from error
        if not answer:
            self._reader.has_no_multicall(self._network, self._block)
            return None
        try:
            *results, canary = decode_aggregate(answer, len(calls) + 1)
        except ValueError as error:
            log.warning("calls.bad_multicall", network=self._network.name, reason=str(error))
            return None
        return [_bounded(result) for result in results], canary is not None

    async def _alone(self, call: ContractCall) -> bytes | None:
        try:
            return _bounded(await self._ask(call.to, call.data, self._gas.alone))
        except NodeError as error:
            if _is_outcome(error):
                return None
            raise _translated(self._network, self._block, error) from error

    async def _ask(self, to: bytes, data: bytes, gas: int) -> bytes:
        """One eth_call. When the upstreams do not take a block hash, once more with the number."""
        by_hash = self._reader.takes_hash(self._network)
        async with self._limit:
            try:
                return await self._eth_call(to, data, gas, by_hash=by_hash)
            except NodeError as error:
                if not by_hash or isinstance(error, NodeUnable) or _is_outcome(error):
                    raise
            result = await self._eth_call(to, data, gas, by_hash=False)
            self._reader.takes_no_hash(self._network)
            return result

    async def _eth_call(self, to: bytes, data: bytes, gas: int, *, by_hash: bool) -> bytes:
        transaction = {"to": to_data(to), "data": to_data(data), "gas": to_quantity(gas)}
        params = msgspec.json.encode([transaction, _block_parameter(self._block, by_hash=by_hash)])
        result = await self._network.pool.call("eth_call", params, needs_block=self._block.number)
        try:
            return parse_data(msgspec.json.decode(result, type=str))
        except ValueError:
            raise EveryUpstreamFailed(f"An upstream of {self._network.name} answered eth_call with nonsense.") from None


def _block_parameter(block: BlockRef, *, by_hash: bool) -> object:
    return {"blockHash": block.hash, "requireCanonical": True} if by_hash else to_quantity(block.number)


def _chunks(calls: Sequence[ContractCall]) -> list[Sequence[ContractCall]]:
    """The calls in groups that fit into one question each."""
    chunks: list[Sequence[ContractCall]] = []
    begin = size = 0
    for place, call in enumerate(calls):
        added = encoded_size(call)
        if place > begin and (place - begin == _CALLS_AT_ONCE or size + added > _BYTES_AT_ONCE):
            chunks.append(calls[begin:place])
            begin, size = place, 0
        size += added
    chunks.append(calls[begin:])
    return chunks


def _bounded(result: bytes | None) -> bytes | None:
    return None if result is None or len(result) > _LONGEST_RESULT else result


def _is_outcome(error: NodeError) -> bool:
    """Whether the error is what the contract did, and not something about the question."""
    return error.code == 3 or bool(_REVERTED.search(error.message) or _OUT_OF_GAS.search(error.message))


def _translated(network: Network, block: BlockRef, error: NodeError) -> Exception:
    if isinstance(error, NodeUnable):
        # No upstream has the block: it was reverted, or only one upstream has it yet.
        return BlockChanged(f"no upstream of {network.name} has block {block.number} any more: {error.message}")
    return EveryUpstreamFailed(f"The nodes of {network.name} do not answer calls to contracts: {error.message[:200]}")
