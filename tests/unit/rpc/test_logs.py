"""eth_getLogs: what is asked of the node, what is reused, and how ranges that a node refuses are split."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from capstan.chain.errors import DeadlinePassed, EveryUpstreamFailed, NodeError, is_log_range_error
from capstan.core.clock import ManualClock
from capstan.core.jsonrpc import ErrorObject
from capstan.rpc.cache.gateway import RpcCache
from capstan.rpc.cache.models import NetworkOptions, NoHeads
from capstan.rpc.cache.persistent import PersistentTier
from capstan.rpc.logs import LogAnswer, LogReader, LogSettings
from tests.unit.rpc.cache.chain import Chain, Heads

NETWORK = "ethereum/test"
ADDRESS = "0x" + "a1" * 20
LATEST, FINALIZED = 5_010, 4_950


def node_error(message: str, code: int = -32602) -> NodeError:
    return NodeError(ErrorObject(code, message), Raw(json.dumps({"code": code, "message": message}).encode()))


class Node:
    """A node with two logs in every fifth block and limits of its own."""

    def __init__(self, latest: int = LATEST) -> None:
        self.latest = latest
        self.asked: list[tuple[int, int]] = []
        self.arguments: list[dict[str, Any]] = []
        self.max_blocks: int | None = None
        self.max_logs: int | None = None
        self.message = "query exceeds max block range {}"
        self.failures: list[Exception | None] = []
        self.at_once = self.most_at_once = 0

    def logs(self, first: int, last: int) -> list[dict[str, Any]]:
        blocks = (number for number in range(first, min(last, self.latest) + 1) if number % 5 == 0)
        return [{"blockNumber": hex(number), "logIndex": hex(index)} for number in blocks for index in range(2)]

    def number(self, block: Any) -> int:
        if block == "earliest":
            return 0
        return self.latest if block in ("latest", None) else int(block, 16)

    async def ask(self, params: bytes) -> Raw:
        argument = json.loads(params)[0]
        first, last = self.number(argument.get("fromBlock")), self.number(argument.get("toBlock"))
        self.asked.append((first, last))
        self.arguments.append(argument)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        if self.max_blocks is not None and last - first + 1 > self.max_blocks:
            raise node_error(self.message.format(self.max_blocks))
        logs = self.logs(first, last)
        if self.max_logs is not None and len(logs) > self.max_logs:
            raise node_error(f"query returned more than {self.max_logs} results")
        return Raw(json.dumps(logs).encode())


class Gateway:
    """A reader in front of a node."""

    def __init__(self, node: Node | None = None, **settings: Any) -> None:
        self.node = node or Node()
        self.clock = ManualClock()
        self.cache = RpcCache(self.clock)
        self.reader = LogReader(self.cache, self.clock, LogSettings(**settings))
        self.heads = Heads(Chain(()).extended(LATEST + 1, finalized=FINALIZED))

    async def answer(self, first: Any, last: Any, **others: Any) -> LogAnswer:
        blocks = {"fromBlock": hex(first) if isinstance(first, int) else first}
        blocks["toBlock"] = hex(last) if isinstance(last, int) else last
        params = json.dumps([{"address": ADDRESS, **blocks, **others}]).encode()
        return await self.reader.get_logs(NETWORK, params, self.heads, self.node.ask)

    async def check(self, first: int, last: int, **others: Any) -> list[tuple[int, int]]:
        """Ask, compare with the node, and tell what the node was asked."""
        before = len(self.node.asked)
        answer = await self.answer(first, last, **others)
        assert json.loads(bytes(answer.result)) == self.node.logs(first, last)
        assert answer.calls == len(self.node.asked) - before
        return sorted(self.node.asked[before:])


async def test_a_range_the_node_takes_is_one_call_in_the_callers_words() -> None:
    tested = Gateway()
    for first, last in [(10, 700), (10, 4000), (0, 4999)]:
        gateway = Gateway()
        assert await gateway.check(first, last) == [(first, last)]
    params = b'[ {"fromBlock":"0x5", "toBlock" : "0x500"}]'
    seen: list[bytes] = []

    async def ask(asked: bytes) -> Raw:
        seen.append(asked)
        return Raw(b" [ ] ")

    answer = await tested.reader.get_logs(NETWORK, params, tested.heads, ask)
    assert (seen, answer) == ([params], LogAnswer(Raw(b" [ ] "), 1))


async def test_overlapping_queries_ask_only_for_what_is_not_there() -> None:
    tested = Gateway()
    assert await tested.check(500, 3499) == [(500, 3499)]
    assert await tested.check(500, 3499) == [(500, 999), (3000, 3499)]
    assert await tested.check(1000, 2999) == []
    # A part of a chunk is cut out of it.
    assert await tested.check(1200, 2600) == []
    assert await tested.check(1500, 1510) == []
    assert await tested.check(2000, 4100) == [(3000, 4100)]
    assert await tested.check(0, 3999) == [(0, 999)]
    assert await tested.check(0, 3999) == []


async def test_the_same_filter_in_other_words_reuses_chunks_and_another_filter_does_not() -> None:
    tested = Gateway()
    topic = "0x" + "b2" * 32
    await tested.check(0, 1999, topics=[[topic, "0x" + "c3" * 32], None])
    same = [["0x" + "C3" * 32, topic], None]
    assert await tested.check(0, 1999, topics=same, address=[ADDRESS.upper().replace("0X", "0x")]) == []
    assert await tested.check(0, 1999, topics=same[:1]) != []
    assert await tested.check(0, 1999, topics=same, address=[ADDRESS, "0x" + "00" * 20]) != []
    assert await tested.check(0, 1999) != []


async def test_only_final_blocks_are_kept() -> None:
    tested = Gateway()
    await tested.check(3500, LATEST)
    # 4000..4999 is not final as a whole.
    assert await tested.check(3500, LATEST) == [(3500, LATEST)]
    await tested.check(2000, LATEST)
    assert await tested.check(2000, LATEST) == [(4000, LATEST)]


async def test_the_latest_block_is_asked_for_by_its_name_also_in_parts() -> None:
    tested = Gateway(Node(latest=LATEST + 2))
    answer = await tested.answer(2500, "latest")
    assert json.loads(bytes(answer.result)) == tested.node.logs(2500, LATEST + 2)
    answer = await tested.answer(2500, "latest")
    assert json.loads(bytes(answer.result)) == tested.node.logs(2500, LATEST + 2)
    assert [argument["toBlock"] for argument in tested.node.arguments] == ["latest", "0xbb7", "latest"]
    # Lazy callers name a block that will never be.
    answer = await tested.answer(3500, 0xFFFFFFFF)
    assert tested.node.arguments[-1]["toBlock"] == "0xffffffff"


@pytest.mark.parametrize(
    "argument",
    [
        {"blockHash": "0x" + "11" * 32},
        {"fromBlock": "finalized", "toBlock": "latest"},
        {"fromBlock": "0x1", "toBlock": "safe"},
        {"fromBlock": "0x1", "toBlock": "pending"},
        {"fromBlock": "0x5", "toBlock": "0x1"},
        {"fromBlock": "0x01", "toBlock": "0x900"},
        {"fromBlock": "0x1", "toBlock": "0x900", "unknown": 1},
        {},
        "what?",
    ],
)
async def test_what_cannot_be_split_goes_to_the_node_as_it_is(argument: Any) -> None:
    tested = Gateway(span_blocks=100)
    params = json.dumps([argument]).encode()
    seen: list[bytes] = []

    async def ask(asked: bytes) -> Raw:
        seen.append(asked)
        raise node_error("invalid")

    with pytest.raises(NodeError, match="invalid"):
        await tested.reader.get_logs(NETWORK, params, tested.heads, ask)
    assert seen == [params]


async def test_without_heads_nothing_is_split() -> None:
    tested = Gateway(span_blocks=100)
    params = b'[{"fromBlock":"0x1","toBlock":"0x900"}]'
    await tested.reader.get_logs(NETWORK, params, NoHeads(), tested.node.ask)
    assert tested.node.asked == [(1, 0x900)]


async def test_a_range_the_node_refuses_is_cut_to_the_limit_it_names_and_that_is_remembered() -> None:
    tested = Gateway()
    tested.node.max_blocks = 2000
    asked = await tested.check(0, 4899)
    assert asked == [(0, 1999), (0, 4899), (2000, 3999), (4000, 4899)]
    assert await tested.check(0, 4899, topics=[]) == [(0, 1999), (2000, 3999), (4000, 4899)]
    tested.node.max_blocks = None
    tested.clock.advance(601)
    assert await tested.check(0, 4899, topics=[None]) == [(0, 4899)]


async def test_a_refusal_without_a_number_halves() -> None:
    tested = Gateway()
    tested.node.max_blocks = 700
    tested.node.message = "block range is too wide"
    await tested.check(0, 2899)
    # What came in smaller parts than a chunk is put together to one.
    assert await tested.check(0, 1999) == []
    assert tested.reader.limit(NETWORK) <= 700


async def test_too_many_logs_split_that_part_alone_and_teach_nothing() -> None:
    tested = Gateway()
    tested.node.max_logs = 500
    assert (0, 2899) in await tested.check(0, 2899)
    assert tested.reader.limit(NETWORK) == LogSettings().span_blocks
    assert await tested.check(0, 1999) == []


async def test_one_block_that_is_too_much_is_the_nodes_error() -> None:
    tested = Gateway()
    tested.node.max_logs = 1
    with pytest.raises(NodeError, match="more than 1 results"):
        await tested.check(5, 5)


async def test_other_errors_of_the_node_go_through() -> None:
    tested = Gateway(span_blocks=1000)
    tested.node.failures = [None, node_error("execution reverted", 3)]
    with pytest.raises(NodeError, match="reverted") as caught:
        await tested.answer(0, 3999)
    assert caught.value.code == 3


async def test_a_part_that_fails_is_asked_for_again_alone() -> None:
    tested = Gateway(span_blocks=1000)
    tested.node.failures = [None, EveryUpstreamFailed("no"), None]
    asked = await tested.check(0, 3999)
    assert len(asked) == 5
    assert len(set(asked)) == 4


async def test_what_arrived_is_kept_when_another_part_fails_for_good() -> None:
    tested = Gateway(span_blocks=1000, concurrency=1)
    tested.node.failures = [None, None, EveryUpstreamFailed("no"), EveryUpstreamFailed("no")]
    with pytest.raises(EveryUpstreamFailed):
        await tested.answer(0, 3999)
    assert await tested.check(0, 3999) == [(2000, 2999), (3000, 3999)]


async def test_a_deadline_is_not_tried_again() -> None:
    tested = Gateway(span_blocks=1000)
    tested.node.failures = [DeadlinePassed("late")]
    with pytest.raises(DeadlinePassed):
        await tested.answer(0, 1999)
    assert len(tested.node.asked) <= 2


async def test_parts_are_asked_for_side_by_side_within_the_bound() -> None:
    tested = Gateway(span_blocks=100, concurrency=3)
    await tested.check(0, 1999)
    assert tested.node.most_at_once == 3


async def test_a_range_that_would_take_too_many_calls_is_the_nodes_to_refuse() -> None:
    tested = Gateway(max_calls=10)
    tested.node.max_blocks = 100
    for _ in range(2):
        with pytest.raises(NodeError, match="max block range 100"):
            await tested.answer(0, 4999)
    assert tested.node.asked == [(0, 4999)] * 2


async def test_chunks_survive_a_restart_in_the_file(tmp_path: Path) -> None:
    for calls in (1, 0):
        tier = PersistentTier(tmp_path / "rpc-cache.db")
        await tier.open()
        tested = Gateway()
        tested.cache = RpcCache(tested.clock, tier=tier)
        tested.cache.configure(NETWORK, NetworkOptions(persist=True))
        tested.reader = LogReader(tested.cache, tested.clock)
        assert len(await tested.check(0, 2999)) == calls
        # The second time from memory.
        assert tested.cache.memory.statistics.entries == 3
        assert await tested.check(0, 2999) == []
        await tested.cache.close()


async def test_an_answer_that_grows_too_large_is_refused_like_a_range_that_is_too_wide() -> None:
    tested = Gateway(span_blocks=1000, max_answer_bytes=20_000, concurrency=1)
    with pytest.raises(NodeError, match="fewer blocks") as caught:
        await tested.answer(0, 4999)
    assert is_log_range_error(caught.value)
    assert len(tested.node.asked) < 5


async def test_an_answer_that_is_no_array_is_not_joined_and_not_kept() -> None:
    tested = Gateway(span_blocks=1000)

    async def ask(_: bytes) -> Raw:
        return Raw(b"null")

    with pytest.raises(EveryUpstreamFailed):
        await tested.reader.get_logs(NETWORK, b'[{"fromBlock":"0x0","toBlock":"0xbb7"}]', tested.heads, ask)
    assert tested.cache.memory.statistics.entries == 0


async def test_logs_out_of_order_or_of_other_blocks_are_passed_on_and_not_kept() -> None:
    tested = Gateway()
    answers = [b'[{"blockNumber":"0x5"},{"blockNumber":"0x4"}]', b'[{"blockNumber":"0x0"}]']
    for answer in answers:

        async def ask(_: bytes, answer: bytes = answer) -> Raw:
            return Raw(answer)

        found = await tested.reader.get_logs(NETWORK, b'[{"fromBlock":"0x1","toBlock":"0xbb7"}]', tested.heads, ask)
        assert bytes(found.result) == answer
    assert tested.cache.memory.statistics.entries == 0


@pytest.mark.parametrize("seed", range(20))
async def test_any_sequence_of_queries_gives_what_the_node_would(seed: int) -> None:
    chance = random.Random(seed)
    tested = Gateway(
        chunk_blocks=chance.choice([10, 100, 1000]), span_blocks=chance.choice([150, 1000, 10_000]), max_calls=2000
    )
    tested.node.max_blocks = chance.choice([None, 40, 130, 1000])
    tested.node.max_logs = chance.choice([None, 30, 400])
    tested.node.message = chance.choice(["query exceeds max block range {}", "block range is too wide"])
    for _ in range(25):
        first = chance.randint(0, LATEST)
        await tested.check(first, chance.randint(first, LATEST), topics=chance.choice([[], [None]]))
