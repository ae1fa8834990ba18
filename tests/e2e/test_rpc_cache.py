"""The cache in front of a real node: a kept answer is, byte for byte, what the node says."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Raw

from capstan.chain.models import UpstreamSpec
from capstan.chain.pool import UpstreamPool
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.rpc.cache.gateway import RpcCache, Source
from capstan.rpc.cache.models import NetworkOptions
from capstan.rpc.logs import LogReader, LogSettings
from tests.support.devnet import EvmDevnet
from tests.support.faulty_node import network_spec
from tests.unit.rpc.cache.chain import Block, Change

NETWORK = "ethereum/devnet"
NOBODY = "0x" + "11" * 20
# The development chain calls its latest block final; here the last ones are not.
UNFINAL_BLOCKS = 4


class Frozen:
    """The chain as it was when the test began."""

    def __init__(self, hashes: list[str]) -> None:
        self.hashes = hashes
        self.latest_number: int | None = len(hashes) - 1
        self.latest_hash: str | None = hashes[-1]
        self.finalized_number: int | None = len(hashes) - 1 - UNFINAL_BLOCKS

    def hash_at(self, number: int) -> str | None:
        return self.hashes[number] if 0 <= number < len(self.hashes) else None


class Cached:
    """A cache in front of the node."""

    def __init__(self, pool: UpstreamPool, heads: Frozen) -> None:
        self.pool = pool
        self.heads = heads
        self.cache = RpcCache(SystemClock())
        self.cache.configure(NETWORK, NetworkOptions(head_seconds=60.0, moment_seconds=60.0))
        self.logs = LogReader(self.cache, SystemClock(), LogSettings(chunk_blocks=4))
        blocks = tuple(Block(number, block_hash) for number, block_hash in enumerate(heads.hashes))
        self.cache.apply(NETWORK, Change(applied=blocks))

    async def ask(self, method: str, params: bytes) -> tuple[bytes, Source]:
        found = self.cache.lookup_now(NETWORK, "evm", method, params, self.heads)
        if isinstance(found, bytes):
            return found, "hit"
        result, source = await self.cache.fetch(found, lambda: self.pool.call(method, params), 20.0)
        return bytes(result), source


@pytest.fixture
async def cached(quiet_devnet: EvmDevnet) -> AsyncIterator[Cached]:
    await quiet_devnet.call_async("hardhat_mine", hex(20))
    latest = await quiet_devnet.call_async("eth_blockNumber")
    numbers = range(int(latest, 16) + 1)
    blocks = [await quiet_devnet.call_async("eth_getBlockByNumber", hex(number), False) for number in numbers]
    registry = ChainRegistry(open_session(), SystemClock())
    registry.replace([network_spec(UpstreamSpec(name="node", url=quiet_devnet.url))])
    try:
        yield Cached(registry.networks()[0].pool, Frozen([block["hash"] for block in blocks]))
    finally:
        await registry.close()


async def questions(devnet: EvmDevnet, heads: Frozen) -> list[tuple[str, list[Any]]]:
    """Reads of a final block, of one that is not final, and by hash."""
    token = devnet.deployment.tokens[0].address
    owner = devnet.deployment.accounts[0].address
    supply = {"to": token, "data": "0x18160ddd"}
    asked: list[tuple[str, list[Any]]] = [("eth_chainId", []), ("net_version", []), ("web3_sha3", ["0x6869"])]
    for number in (3, len(heads.hashes) - 2):
        block, block_hash = hex(number), heads.hashes[number]
        asked += [
            ("eth_getBlockByNumber", [block, True]),
            ("eth_getBlockByNumber", [block, False]),
            ("eth_getBlockTransactionCountByNumber", [block]),
            ("eth_getBlockByHash", [block_hash, True]),
            ("eth_getBlockTransactionCountByHash", [block_hash]),
            ("eth_getBalance", [owner, block]),
            ("eth_getBalance", [owner, {"blockHash": block_hash}]),
            ("eth_getTransactionCount", [owner, block]),
            ("eth_getCode", [token, block]),
            ("eth_getStorageAt", [token, "0x0", block]),
            ("eth_call", [supply, block]),
            ("eth_feeHistory", ["0x2", block, [25, 75]]),
            ("eth_getLogs", [{"fromBlock": "0x0", "toBlock": block, "address": token}]),
            ("eth_getLogs", [{"blockHash": block_hash}]),
        ]
        for transaction in (await devnet.call_async("eth_getBlockByNumber", block, False))["transactions"][:1]:
            asked += [("eth_getTransactionByHash", [transaction]), ("eth_getTransactionReceipt", [transaction])]
    return asked


async def test_kept_answers_are_byte_for_byte_the_nodes(cached: Cached, quiet_devnet: EvmDevnet) -> None:
    for method, arguments in await questions(quiet_devnet, cached.heads):
        params = json.dumps(arguments).encode()
        direct = bytes(await cached.pool.call(method, params))
        first, source = await cached.ask(method, params)
        assert (first, source) == (direct, "miss"), method
        again = await cached.ask(method, json.dumps(arguments, separators=(",", ":")).encode())
        assert again == (direct, "hit"), (method, arguments)


async def test_what_must_not_be_kept_is_asked_every_time(cached: Cached) -> None:
    for method, arguments in [
        ("eth_getBalance", [NOBODY, "pending"]),
        ("eth_getTransactionCount", [NOBODY, "pending"]),
        ("eth_syncing", []),
        # This node takes leading zeros. Others refuse them, so the spellings are not one question.
        ("eth_getBalance", [NOBODY, "0x00"]),
    ]:
        for _ in range(2):
            assert (await cached.ask(method, json.dumps(arguments).encode()))[1] == "miss"


async def test_a_hundred_equal_reads_at_once_are_one_call(cached: Cached, quiet_devnet: EvmDevnet) -> None:
    owner = quiet_devnet.deployment.accounts[0].address
    params = json.dumps([owner, "0x2"]).encode()
    answers = await asyncio.gather(*(cached.ask("eth_getBalance", params) for _ in range(100)))
    sources = [source for _, source in answers]
    assert (sources.count("miss"), sources.count("coalesced")) == (1, 99)
    assert len({result for result, _ in answers}) == 1


async def test_logs_from_chunks_are_those_of_the_node(cached: Cached, quiet_devnet: EvmDevnet) -> None:
    token = quiet_devnet.deployment.tokens[0].address
    last = len(cached.heads.hashes) - 1
    calls = []

    async def ask(params: bytes) -> Raw:
        calls.append(params)
        return await cached.pool.call("eth_getLogs", params)

    for filters in ({}, {"address": token}, {"topics": [None]}):
        for first, end in ((0, last), (3, last), (1, last // 2), (0, last)):
            params = json.dumps([{"fromBlock": hex(first), "toBlock": hex(end), **filters}]).encode()
            direct = await cached.pool.call("eth_getLogs", params)
            found = await cached.logs.get_logs(NETWORK, params, cached.heads, ask)
            assert json.loads(bytes(found.result)) == json.loads(bytes(direct))
        final = json.dumps([{"fromBlock": "0x0", "toBlock": "0x7", **filters}]).encode()
        asked = len(calls)
        assert (await cached.logs.get_logs(NETWORK, final, cached.heads, ask)).calls == 0
        assert len(calls) == asked
