"""Several upstreams as one: order, failover, health, and what is repeated."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from eth_account import Account

from capstan.chain.errors import DeadlinePassed, EveryUpstreamFailed, NodeError, NodeUnable
from capstan.chain.health import FAILURES_BEFORE_REST
from capstan.chain.pool import Repeat, UpstreamPool
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import ManualClock, SystemClock
from tests.support.faulty_node import (
    Answer,
    FaultyNode,
    by_method,
    errors,
    network_spec,
    resets,
    results,
    stalls,
    text,
)

SIGNED = Account.sign_transaction(
    {"nonce": 0, "to": "0x" + "22" * 20, "value": 1, "gas": 21_000, "gasPrice": 1, "chainId": 31337}, "0x" + "11" * 32
)
SEND = "eth_sendRawTransaction"
SEND_PARAMS = msgspec.json.encode(["0x" + SIGNED.raw_transaction.hex()])
HASH = msgspec.json.encode("0x" + SIGNED.hash.hex())
BROKEN = text("<html>")


class Setting:
    """Faulty nodes behind one pool."""

    def __init__(self, pool: UpstreamPool, nodes: list[FaultyNode], clock: ManualClock) -> None:
        self.pool = pool
        self.nodes = nodes
        self.clock = clock

    @property
    def counts(self) -> list[int]:
        return [len(node.calls) for node in self.nodes]


@asynccontextmanager
async def pool_of(
    *answers: Answer, timeout_seconds: float = 5.0, real_time: bool = False, **changes: Any
) -> AsyncIterator[Setting]:
    clock = ManualClock()
    registry = ChainRegistry(open_session(), SystemClock() if real_time else clock)
    nodes = [FaultyNode(answer) for answer in answers]
    try:
        for node in nodes:
            await node.__aenter__()
        specs = [node.spec(f"node-{place}", timeout_seconds=timeout_seconds) for place, node in enumerate(nodes)]
        registry.replace([network_spec(*specs, **changes)])
        async with asyncio.timeout(20):
            yield Setting(registry.get("ethereum", "devnet").pool, nodes, clock)
    finally:
        await registry.close()
        for node in nodes:
            await node.__aexit__(None, None, None)


async def test_the_first_upstream_is_preferred() -> None:
    async with pool_of(results("0x1"), results("0x2")) as setting:
        assert await setting.pool.request("m", []) == "0x1"
        assert setting.counts == [1, 0]


@pytest.mark.parametrize(
    "failure",
    [
        BROKEN,
        text('{"jsonrpc":"2.0","id":77,"result":"0xbad"}'),
        text("busy", status=503),
        errors(-32000, "slow down", status=429),
        errors(-32005, "rate limit exceeded"),
        errors(-32000, "header not found"),
        errors(-32000, "missing trie node"),
        errors(-32603, "Internal error"),
        resets,
    ],
)
async def test_a_failure_of_the_upstream_goes_to_the_next(failure: Answer) -> None:
    async with pool_of(failure, results("0x2")) as setting:
        assert await setting.pool.request("m", []) == "0x2"


@pytest.mark.parametrize("result", [None, [], "0x", "0x0"])
async def test_an_empty_result_is_not_asked_for_again(result: object) -> None:
    async with pool_of(results(result), results("0x2")) as setting:
        assert await setting.pool.request("m", []) == result
        assert setting.counts == [1, 0]


@pytest.mark.parametrize("error", [(3, "execution reverted"), (-32602, "invalid argument"), (-32000, "nonce too low")])
async def test_an_error_of_the_call_is_not_asked_for_again(error: tuple[int, str]) -> None:
    async with pool_of(errors(*error), results("0x2")) as setting:
        with pytest.raises(NodeError, match=error[1]):
            await setting.pool.request("m", [])
        assert setting.counts == [1, 0]


async def test_a_stalling_upstream_leaves_time_for_the_next() -> None:
    # The attempt alone could use up the whole deadline.
    async with pool_of(stalls, results("0x2"), timeout_seconds=60, deadline_seconds=2.0, real_time=True) as setting:
        assert await setting.pool.request("m", []) == "0x2"


async def test_the_deadline_holds_over_all_attempts() -> None:
    async with (
        pool_of(stalls, stalls, stalls, timeout_seconds=60, deadline_seconds=0.4, real_time=True) as setting,
        asyncio.timeout(3),
    ):
        with pytest.raises(DeadlinePassed):
            await setting.pool.request("m", [])
        assert setting.counts == [1, 1, 1]


async def test_all_failing_is_one_error_that_names_the_network() -> None:
    async with pool_of(BROKEN, text("", status=500)) as setting:
        with pytest.raises(EveryUpstreamFailed, match="ethereum/devnet"):
            await setting.pool.request("m", [])
        assert setting.counts == [1, 1]


async def test_all_stalling_is_a_passed_deadline() -> None:
    async with pool_of(stalls, stalls, timeout_seconds=0.1) as setting:
        with pytest.raises(DeadlinePassed):
            await setting.pool.request("m", [])


async def test_no_time_left_is_a_passed_deadline_without_a_call() -> None:
    async with pool_of(results("0x1")) as setting:
        with pytest.raises(DeadlinePassed):
            await setting.pool.call("m", b"[]", timeout=0)
        assert setting.counts == [0]


async def test_nodes_that_are_all_unable_give_the_first_ones_answer() -> None:
    async with pool_of(errors(-32000, "header not found"), errors(-32000, "missing trie node"), BROKEN) as setting:
        with pytest.raises(NodeUnable, match="header not found"):
            await setting.pool.request("m", [])


async def test_a_failing_upstream_is_left_alone_until_its_rest_is_over() -> None:
    async with pool_of(BROKEN, results("0x2")) as setting:
        for _ in range(10):
            assert await setting.pool.request("m", []) == "0x2"
        assert setting.counts == [FAILURES_BEFORE_REST, 10]
        setting.nodes[0].answer = results("0x1")
        assert await setting.pool.request("m", []) == "0x2"
        setting.clock.advance(1.0)
        assert await setting.pool.request("m", []) == "0x1"
        assert await setting.pool.request("m", []) == "0x1"


async def test_after_a_rest_only_one_call_tries_the_upstream() -> None:
    gate = asyncio.Event()

    async def waits(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        await asyncio.wait_for(gate.wait(), 10)
        return await results("0x1")(request, call)

    async with pool_of(BROKEN, results("0x2")) as setting:
        for _ in range(FAILURES_BEFORE_REST):
            await setting.pool.request("m", [])
        setting.nodes[0].answer = waits
        setting.nodes[0].calls.clear()
        setting.clock.advance(1.0)
        probe = asyncio.create_task(setting.pool.request("m", []))
        await setting.nodes[0].wait_for_calls(1)
        assert [await setting.pool.request("m", []) for _ in range(5)] == ["0x2"] * 5
        gate.set()
        assert await probe == "0x1"
        assert len(setting.nodes[0].calls) == 1


async def test_upstreams_at_rest_are_still_asked_when_all_others_fail() -> None:
    async with pool_of(BROKEN, BROKEN) as setting:
        for _ in range(FAILURES_BEFORE_REST):
            with pytest.raises(EveryUpstreamFailed):
                await setting.pool.request("m", [])
        setting.nodes[1].answer = results("0x2")
        assert await setting.pool.request("m", []) == "0x2"


async def test_errors_of_the_node_do_not_count_against_its_health() -> None:
    async with pool_of(errors(3, "execution reverted"), results("0x2")) as setting:
        for _ in range(FAILURES_BEFORE_REST * 2):
            with pytest.raises(NodeError):
                await setting.pool.request("m", [])
        assert setting.counts == [FAILURES_BEFORE_REST * 2, 0]


async def test_a_result_of_another_type_is_an_upstream_failure() -> None:
    async with pool_of(results({"a": 1})) as setting:
        with pytest.raises(EveryUpstreamFailed, match="answered m"):
            await setting.pool.request_as(str, "m", [])


# --- what changes something


async def submit(setting: Setting, method: str = SEND, repeat: Repeat = Repeat.ELSEWHERE) -> bytes:
    return bytes(await setting.pool.call(method, SEND_PARAMS, repeat=repeat))


async def test_a_lost_answer_to_a_transaction_goes_to_another_upstream_only() -> None:
    async with pool_of(resets, results("0xabc")) as setting:
        assert await submit(setting) == b'"0xabc"'
        assert setting.counts == [1, 1]


async def test_already_known_after_a_lost_answer_is_success_with_the_hash() -> None:
    async with pool_of(resets, errors(-32000, "already known")) as setting:
        assert await submit(setting) == HASH


async def test_a_used_nonce_after_a_lost_answer_is_success_if_the_transaction_is_there() -> None:
    used = {"error": {"code": -32000, "message": "nonce too low"}}
    async with pool_of(resets, by_method({SEND: used, "eth_getTransactionByHash": {"hash": "0x1"}})) as setting:
        assert await submit(setting) == HASH
        assert setting.nodes[1].calls[1]["params"] == [msgspec.json.decode(HASH)]


async def test_a_nonce_used_by_another_transaction_stays_an_error() -> None:
    used = {"error": {"code": -32000, "message": "nonce too low"}}
    async with pool_of(resets, by_method({SEND: used, "eth_getTransactionByHash": None})) as setting:
        with pytest.raises(NodeError, match="nonce too low"):
            await submit(setting)


async def test_already_known_without_a_lost_answer_is_the_nodes_error() -> None:
    async with pool_of(errors(-32000, "already known"), results("0xabc")) as setting:
        with pytest.raises(NodeError, match="already known"):
            await submit(setting)
    # The first upstream refused before executing, so nothing was lost.
    async with pool_of(errors(-32000, "x", status=429), errors(-32000, "already known")) as setting:
        with pytest.raises(NodeError, match="already known"):
            await submit(setting)


async def test_a_lost_answer_without_another_upstream_is_reported_with_caution() -> None:
    async with pool_of(resets) as setting:
        with pytest.raises(EveryUpstreamFailed, match="may have taken effect"):
            await submit(setting)
        assert setting.counts == [1]
    async with pool_of(stalls, timeout_seconds=0.1) as setting:
        with pytest.raises(DeadlinePassed, match="may have taken effect"):
            await submit(setting)


async def test_a_transaction_that_was_not_delivered_is_reported_without_caution() -> None:
    async with pool_of(errors(-32000, "x", status=429)) as setting:
        with pytest.raises(EveryUpstreamFailed) as caught:
            await submit(setting)
    assert "may have taken effect" not in caught.value.message


@pytest.mark.parametrize("failure", [resets, BROKEN, errors(-32603, "Internal error")])
async def test_an_action_is_never_repeated_once_it_may_have_been_executed(failure: Answer) -> None:
    async with pool_of(failure, results("0x1")) as setting:
        with pytest.raises((EveryUpstreamFailed, NodeError)):
            await submit(setting, "requestAirdrop", Repeat.NEVER)
        assert setting.counts == [1, 0]


async def test_an_action_that_was_refused_goes_to_the_next_upstream() -> None:
    async with pool_of(errors(-32000, "x", status=429), results("0x1")) as setting:
        assert await submit(setting, "requestAirdrop", Repeat.NEVER) == b'"0x1"'
