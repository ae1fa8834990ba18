"""The cache as the RPC service uses it: hits, misses, shared calls, and answers that come after the chain moved on."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from capstan.chain.errors import DeadlinePassed, EveryUpstreamFailed
from capstan.chain.models import Family
from capstan.core.clock import ManualClock
from capstan.rpc.cache.gateway import RpcCache, Source
from capstan.rpc.cache.memory import MemoryLimits
from capstan.rpc.cache.models import NetworkOptions
from tests.unit.rpc.cache.chain import Chain, Change, Heads, params, raw

NETWORK = "ethereum/test"
ADDRESS = "0x" + "a1" * 20
HASH = "0x" + "77" * 32


class DictTier:
    """A second tier in a dict."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.reads = 0

    def may_have(self, key: bytes) -> bool:
        return key in self.kept

    async def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return self.kept.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.kept[key] = value

    async def close(self) -> None:
        self.kept.clear()


class Subject:
    """A cache in front of a node that answers at once with what the test says."""

    def __init__(self, tier: DictTier | None = None, **options: Any) -> None:
        self.clock = ManualClock()
        self.tier = tier
        self.cache = RpcCache(self.clock, tier=tier)
        if options:
            self.cache.configure(NETWORK, NetworkOptions(**options))
        self.heads = Heads(Chain(()))
        self.move(Chain(()).extended(100, finalized=60))
        self.calls = 0
        self.answer: Callable[[], Any] = lambda: "0x1"

    def move(self, chain: Chain) -> None:
        self.cache.apply(NETWORK, self.heads.move(chain))

    async def ask(self, method: str, *arguments: Any, family: Family = "evm", timeout: float = 5.0) -> Source:
        found = self.cache.lookup_now(NETWORK, family, method, params(*arguments), self.heads)
        if isinstance(found, bytes):
            return "hit"

        async def call() -> Raw:
            self.calls += 1
            answer = self.answer()
            return raw(await answer if asyncio.isfuture(answer) else answer)

        return (await self.cache.fetch(found, call, timeout))[1]


async def test_a_repeated_call_is_a_hit_in_any_spelling_and_the_bytes_are_the_nodes() -> None:
    cache = RpcCache(ManualClock())
    heads = Heads(Chain(()).extended(3))
    plan = cache.lookup_now(NETWORK, "evm", "eth_chainId", b"[]", heads)
    assert not isinstance(plan, bytes)

    async def call() -> Raw:
        return Raw(b'"0x1"  ')

    assert await cache.fetch(plan, call, 1.0) == (Raw(b'"0x1"  '), "miss")
    for _ in range(3):
        assert cache.lookup_now(NETWORK, "evm", "eth_chainId", b" [ ]", heads) == b'"0x1"  '
    assert not isinstance(cache.lookup_now("other/network", "evm", "eth_chainId", b"[]", heads), bytes)


async def test_answers_at_the_head_end_with_it() -> None:
    tested = Subject()
    assert [await tested.ask("eth_getBalance", ADDRESS, "latest") for _ in range(2)] == ["miss", "hit"]
    assert [await tested.ask("eth_getBalance", ADDRESS, "finalized") for _ in range(2)] == ["miss", "hit"]
    tested.move(tested.heads.chain.extended(1))
    assert await tested.ask("eth_getBalance", ADDRESS, "latest") == "miss"
    assert await tested.ask("eth_getBalance", ADDRESS, "finalized") == "miss"


async def test_answers_at_the_head_end_with_time_when_no_news_arrives() -> None:
    tested = Subject(head_seconds=4.0, moment_seconds=1.0)
    await tested.ask("eth_gasPrice")
    tested.answer = lambda: None
    await tested.ask("eth_getTransactionReceipt", HASH)
    tested.clock.advance(0.9)
    assert await tested.ask("eth_getTransactionReceipt", HASH) == "hit"
    tested.clock.advance(0.1)
    assert await tested.ask("eth_getTransactionReceipt", HASH) == "miss"
    assert await tested.ask("eth_gasPrice") == "hit"
    tested.clock.advance(3.0)
    assert await tested.ask("eth_gasPrice") == "miss"


async def test_a_null_receipt_is_not_kept_beyond_the_head() -> None:
    tested = Subject(moment_seconds=60.0)
    tested.answer = lambda: None
    assert [await tested.ask("eth_getTransactionReceipt", HASH) for _ in range(2)] == ["miss", "hit"]
    tested.move(tested.heads.chain.extended(1))
    assert await tested.ask("eth_getTransactionReceipt", HASH) == "miss"


async def test_a_receipt_stays_until_its_block_is_reverted() -> None:
    tested = Subject()
    tested.answer = lambda: {"blockNumber": "0x5f", "blockHash": tested.heads.chain.hashes[95]}
    assert await tested.ask("eth_getTransactionReceipt", HASH) == "miss"
    tested.move(tested.heads.chain.extended(1))
    tested.move(tested.heads.chain.extended(5, drop=4, seed="other"))
    assert await tested.ask("eth_getTransactionReceipt", HASH) == "hit"
    tested.move(tested.heads.chain.extended(20, drop=10, seed="another"))
    assert await tested.ask("eth_getTransactionReceipt", HASH) == "miss"


@pytest.mark.parametrize("arguments", [["eth_getBalance", ADDRESS, "latest"], ["eth_blockNumber"]])
async def test_an_answer_from_before_a_head_is_not_kept_for_the_next(arguments: list[Any]) -> None:
    tested = Subject()
    answer = asyncio.get_running_loop().create_future()
    tested.answer = lambda: answer
    late = asyncio.create_task(tested.ask(*arguments))
    await asyncio.sleep(0.01)
    tested.move(tested.heads.chain.extended(1))
    # Nor does anyone who asks now share the call from before.
    tested.answer = lambda: "0x64"
    assert await tested.ask(*arguments) == "miss"
    answer.set_result("0x63")
    assert await late == "miss"
    found = tested.cache.lookup_now(NETWORK, "evm", arguments[0], params(*arguments[1:]), tested.heads)
    assert found == b'"0x64"'


async def test_an_answer_about_a_block_that_was_reverted_meanwhile_is_not_kept() -> None:
    tested = Subject()
    old = tested.heads.chain.hashes[95]
    answer = asyncio.get_running_loop().create_future()
    tested.answer = lambda: answer
    late = asyncio.create_task(tested.ask("eth_getBlockByNumber", "0x5f", False))
    await asyncio.sleep(0.01)
    tested.move(tested.heads.chain.extended(10, drop=10, seed="other"))
    answer.set_result({"number": "0x5f", "hash": old})
    await late
    tested.answer = lambda: {"number": "0x5f", "hash": tested.heads.chain.hashes[95]}
    assert await tested.ask("eth_getBlockByNumber", "0x5f", False) == "miss"


async def test_an_answer_about_a_block_survives_a_head_that_reverts_nothing() -> None:
    tested = Subject()
    answer = asyncio.get_running_loop().create_future()
    tested.answer = lambda: answer
    late = asyncio.create_task(tested.ask("eth_getBlockByNumber", "0x5f", False))
    await asyncio.sleep(0.01)
    tested.move(tested.heads.chain.extended(1))
    answer.set_result({"number": "0x5f", "hash": tested.heads.chain.hashes[95]})
    await late
    assert await tested.ask("eth_getBlockByNumber", "0x5f", False) == "hit"


async def test_a_node_on_another_branch_does_not_fill_the_cache() -> None:
    tested = Subject()
    tested.answer = lambda: {"number": "0x5f", "hash": HASH, "blockNumber": "0x5f", "blockHash": HASH}
    for _ in range(2):
        assert await tested.ask("eth_getBlockByNumber", "0x5f", False) == "miss"
        assert await tested.ask("eth_getTransactionReceipt", HASH) == "miss"


async def test_state_by_number_that_cannot_be_proved_ends_with_the_head_and_by_hash_it_stays() -> None:
    tested = Subject()
    block_hash = tested.heads.chain.hashes[95]
    await tested.ask("eth_getBalance", ADDRESS, "0x5f")
    await tested.ask("eth_getBalance", ADDRESS, {"blockHash": block_hash})
    tested.move(tested.heads.chain.extended(1))
    assert await tested.ask("eth_getBalance", ADDRESS, "0x5f") == "miss"
    assert await tested.ask("eth_getBalance", ADDRESS, {"blockHash": block_hash}) == "hit"
    tested.move(tested.heads.chain.extended(20, drop=20, seed="other"))
    # The hash is not of our chain any more, so nobody can say how long an answer would hold.
    assert [await tested.ask("eth_getBalance", ADDRESS, {"blockHash": block_hash}) for _ in range(2)] == ["miss"] * 2


async def test_pending_reads_are_neither_kept_nor_shared() -> None:
    tested = Subject()
    answers = [asyncio.get_running_loop().create_future() for _ in range(2)]
    waiting = iter(answers)
    tested.answer = lambda: next(waiting)
    tasks = [asyncio.create_task(tested.ask("eth_getTransactionCount", ADDRESS, "pending")) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert tested.calls == 2
    for answer in answers:
        answer.set_result("0x1")
    assert await asyncio.gather(*tasks) == ["miss", "miss"]


async def test_equal_reads_under_way_are_one_call() -> None:
    tested = Subject()
    answer = asyncio.get_running_loop().create_future()
    tested.answer = lambda: answer
    tasks = [asyncio.create_task(tested.ask("eth_getBalance", ADDRESS, "latest")) for _ in range(5)]
    await asyncio.sleep(0.01)
    answer.set_result("0x1")
    assert sorted(await asyncio.gather(*tasks)) == ["coalesced"] * 4 + ["miss"]
    assert tested.calls == 1


async def test_failures_are_raised_and_not_kept() -> None:
    tested = Subject()

    def fail() -> Any:
        raise EveryUpstreamFailed("no")

    tested.answer = fail
    for _ in range(2):
        with pytest.raises(EveryUpstreamFailed):
            await tested.ask("eth_getBalance", ADDRESS, "latest")
    assert tested.calls == 2


async def test_a_caller_whose_time_is_over_gets_the_error_of_the_deadline() -> None:
    tested = Subject()
    tested.answer = lambda: asyncio.get_running_loop().create_future()
    with pytest.raises(DeadlinePassed):
        await tested.ask("eth_getBalance", ADDRESS, "latest", timeout=0.01)


async def test_after_a_restart_of_the_tracker_nothing_old_is_vouched_for() -> None:
    tested = Subject()
    await tested.ask("eth_chainId")
    await tested.ask("eth_getBalance", ADDRESS, "0x1")
    tested.cache.apply(NETWORK, Change(restarted=True))
    assert tested.cache.memory.statistics.entries == 0


async def test_a_chain_that_mines_at_once_can_be_told_to_forget_its_head() -> None:
    tested = Subject()
    await tested.ask("eth_getBalance", ADDRESS, "latest")
    await tested.ask("eth_getBalance", ADDRESS, "0x1")
    tested.cache.forget_head(NETWORK)
    assert await tested.ask("eth_getBalance", ADDRESS, "latest") == "miss"
    assert await tested.ask("eth_getBalance", ADDRESS, "0x1") == "hit"
    tested.cache.forget(NETWORK)
    assert await tested.ask("eth_getBalance", ADDRESS, "0x1") == "miss"


async def test_nothing_at_the_head_of_solana_is_kept_longer_than_a_slot() -> None:
    tested = Subject()
    assert [await tested.ask("getLatestBlockhash", family="solana") for _ in range(2)] == ["miss", "hit"]
    tested.clock.advance(0.4)
    assert await tested.ask("getLatestBlockhash", family="solana") == "miss"


# --- the second tier


async def test_final_answers_outlive_memory_and_others_do_not() -> None:
    tier = DictTier()
    tested = Subject(tier, persist=True)
    await tested.ask("eth_chainId")
    await tested.ask("eth_getBalance", ADDRESS, "0x1")
    await tested.ask("eth_getBalance", ADDRESS, "latest")
    tested.answer = lambda: {"blockNumber": "0x5", "blockHash": tested.heads.chain.hashes[5]}
    await tested.ask("eth_getTransactionReceipt", HASH)
    assert len(tier.kept) == 3
    again = Subject(tier, persist=True)
    assert await again.ask("eth_chainId") == "hit"
    assert await again.ask("eth_getBalance", ADDRESS, "0x1") == "hit"
    assert await again.ask("eth_getTransactionReceipt", HASH) == "hit"
    assert again.calls == 0
    reads = tier.reads
    assert await again.ask("eth_getBalance", ADDRESS, "0x1") == "hit"
    assert await again.ask("eth_getBalance", ADDRESS, "latest") == "miss"
    assert tier.reads == reads


async def test_a_network_that_does_not_persist_leaves_no_trace() -> None:
    tier = DictTier()
    tested = Subject(tier)
    await tested.ask("eth_chainId")
    assert tier.kept == {}


async def test_memory_stays_bounded_over_many_different_calls() -> None:
    cache = RpcCache(ManualClock(), limits=MemoryLimits(max_bytes=1_000_000))
    heads = Heads(Chain(()).extended(10, finalized=9))

    async def call() -> Raw:
        return Raw(b'"0x1"')

    for number in range(20_000):
        plan = cache.lookup_now(NETWORK, "evm", "eth_getBalance", params(f"0x{number:040x}", "0x1"), heads)
        assert not isinstance(plan, bytes)
        await cache.fetch(plan, call, 5.0)
    assert cache.memory.statistics.bytes <= 1_000_000
    assert len(cache._memo) < 20_000
