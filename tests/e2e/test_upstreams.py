"""Three upstreams under load while one of them fails in every way there is, and a real node for what nodes do.

The nodes that fail are small servers over real HTTP, started and stopped by the tests; what a healthy upstream does is
tested against the development chain.
"""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from eth_account import Account

from capstan.chain.errors import DeadlinePassed, EveryUpstreamFailed, NodeError
from capstan.chain.filters import FilterRouter
from capstan.chain.models import Attempt, UpstreamSpec
from capstan.chain.pool import Repeat, UpstreamPool
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.devnet.evm import CHAIN_ID
from tests.support.devnet import EvmDevnet
from tests.support.faulty_node import (
    Answer,
    FaultyNode,
    breaks_off,
    errors,
    network_spec,
    resets,
    results,
    stalls,
    stalls_in_the_body,
    text,
)

NOBODY = "0x" + "11" * 20
# The accounts this file sends from; no other test may.
SENDER, SECOND_SENDER, THIRD_SENDER = 14, 15, 16
MEBIBYTE = 1024 * 1024
# What is promised: an upstream that dies is out of rotation within two seconds.
OUT_OF_ROTATION_SECONDS = 2.0


async def echoes(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    """Answers with what it was asked, so that a wrong answer is seen."""
    return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": call["params"]})


async def floods(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    """Fifty megabytes."""
    response = web.StreamResponse()
    await response.prepare(request)
    chunk = b"0" * (64 * 1024)
    for _step in range(50 * MEBIBYTE // len(chunk)):
        await response.write(chunk)
    return response


async def answers_another(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    """The right form, the wrong id."""
    return web.json_response({"jsonrpc": "2.0", "id": call["id"] + 1, "result": ["wrong"]})


def now_and_then(fault: Answer) -> Answer:
    """Fails every third time."""
    count = 0

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        nonlocal count
        count += 1
        return await (fault if count % 3 == 0 else echoes)(request, call)

    return answer


FAULTS: dict[str, Answer] = {
    "html": text("<html>502 Bad Gateway</html>", content_type="text/html"),
    "html with 503": text("<html>", status=503, content_type="text/html"),
    "429": errors(-32005, "too many requests", status=429),
    "429 in the body": errors(429, "rate limit exceeded"),
    "internal error": errors(-32603, "Internal error"),
    "missing state": errors(-32000, "missing trie node 5f3a (path ) state is not available"),
    "wrong id": answers_another,
    "truncated": text('{"jsonrpc":"2.0","id":1,"result":["0x'),
    "cut off": breaks_off,
    "closed": resets,
    "closed at random": now_and_then(resets),
    "wrong id at random": now_and_then(answers_another),
    "stall": stalls,
    "stall in the body": stalls_in_the_body,
    "50 MB": floods,
}


class Load:
    """Callers that ask without pause, each question once, and write down what went wrong."""

    def __init__(self, pool: UpstreamPool, callers: int = 12) -> None:
        self.pool = pool
        self.answered = 0
        self.errors: list[str] = []
        self._number = 0
        self._stopped = asyncio.Event()
        self._callers = [asyncio.create_task(self._ask()) for _ in range(callers)]

    async def _ask(self) -> None:
        while not self._stopped.is_set():
            self._number += 1
            asked = [self._number]
            try:
                answer = await self.pool.request("eth_call", asked)
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")
            else:
                self.answered += 1
                if answer != asked:
                    self.errors.append(f"asked {asked}, got {answer}")
            await asyncio.sleep(0.002)

    async def more(self, count: int) -> None:
        """Wait until so many more have been answered."""
        goal = self.answered + count
        await until(lambda: self.answered >= goal)

    async def stop(self) -> None:
        self._stopped.set()
        await asyncio.wait_for(asyncio.gather(*self._callers), 20)


@asynccontextmanager
async def under_load(pool: UpstreamPool) -> AsyncIterator[Load]:
    """Load for as long as the block lasts. That no call failed is part of the block's own test."""
    load = Load(pool)
    try:
        yield load
    finally:
        await load.stop()
    assert load.errors == []


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


class Setting:
    """Three nodes of one network."""

    def __init__(self, registry: ChainRegistry, nodes: list[FaultyNode]) -> None:
        self.pool = registry.networks()[0].pool
        self.nodes = nodes

    def in_rotation(self) -> list[bool]:
        return [member.in_rotation for member in self.pool.members]


@asynccontextmanager
async def three_nodes(*, deadline_seconds: float = 10.0, in_order: bool = False, **spec: Any) -> AsyncIterator[Setting]:
    registry = ChainRegistry(open_session(), SystemClock())
    nodes = [FaultyNode(echoes) for _ in range(3)]
    try:
        for node in nodes:
            await node.__aenter__()
        specs = [node.spec(f"node-{place}", **spec) for place, node in enumerate(nodes)]
        registry.replace([network_spec(*specs, in_order=in_order, deadline_seconds=deadline_seconds)])
        yield Setting(registry, nodes)
    finally:
        await registry.close()
        for node in nodes:
            await node.stop()


async def test_killing_one_of_three_under_load_is_not_noticed_and_it_comes_back() -> None:
    async with three_nodes() as setting, under_load(setting.pool) as load:
        await load.more(200)
        assert all(node.calls for node in setting.nodes)
        await setting.nodes[1].stop()
        await until(lambda: setting.in_rotation() == [True, False, True], OUT_OF_ROTATION_SECONDS)
        await load.more(100)
        await setting.nodes[1].start_again()
        setting.nodes[1].calls.clear()
        await until(lambda: len(setting.nodes[1].calls) >= 20)
        assert setting.in_rotation() == [True, True, True]


@pytest.mark.parametrize("fault", FAULTS)
async def test_one_faulty_upstream_of_three_causes_no_error_and_no_wrong_answer(fault: str) -> None:
    async with three_nodes(timeout_seconds=1.0, max_response_bytes=MEBIBYTE) as setting:
        async with under_load(setting.pool) as load:
            await load.more(60)
            tracemalloc.start()
            try:
                setting.nodes[0].answer = FAULTS[fault]
                setting.nodes[0].calls.clear()
                await load.more(240)
                assert tracemalloc.get_traced_memory()[1] < 60 * MEBIBYTE
            finally:
                tracemalloc.stop()
            assert setting.nodes[0].calls
            setting.nodes[0].answer = echoes
        await until(lambda: not any(member.in_flight for member in setting.pool.members))


async def test_a_stalling_upstream_stops_getting_calls_within_two_seconds() -> None:
    async with three_nodes(timeout_seconds=10.0) as setting, under_load(setting.pool) as load:
        await load.more(200)
        setting.nodes[2].answer = stalls
        # Two seconds are enough, unless the machine itself stands still. Three tries say that it is not the machine.
        for _ in range(3):
            await asyncio.sleep(OUT_OF_ROTATION_SECONDS)
            setting.nodes[2].calls.clear()
            await load.more(300)
            if len(setting.nodes[2].calls) <= 5:
                break
        # Now and then one call finds out whether it is back.
        assert len(setting.nodes[2].calls) <= 5
        setting.nodes[2].answer = echoes


async def test_a_lagging_upstream_gets_no_calls() -> None:
    async with three_nodes() as setting:
        for member, head in zip(setting.pool.members, (1_000, 900, 1_000), strict=True):
            member.note_head(head)
        for number in range(60):
            assert await setting.pool.request("eth_call", [number]) == [number]
        assert [len(node.calls) > 10 for node in setting.nodes] == [True, False, True]
        assert not setting.nodes[1].calls


async def test_all_dead_is_an_error_within_the_deadline_and_recovery_is_automatic() -> None:
    async with three_nodes(deadline_seconds=2.0) as setting:
        assert await setting.pool.request("eth_call", [1]) == [1]
        for node in setting.nodes:
            await node.stop()
        # Five deadlines.
        async with asyncio.timeout(10.0):
            for _ in range(5):
                with pytest.raises(EveryUpstreamFailed, match="Every upstream of ethereum/devnet failed"):
                    await setting.pool.request("eth_call", [2])
        assert setting.in_rotation() == [False, False, False]
        await setting.nodes[1].start_again()
        assert await setting.pool.request("eth_call", [3]) == [3]
        assert setting.in_rotation() == [False, True, False]


async def test_all_stalling_is_an_error_within_the_deadline() -> None:
    async with three_nodes(deadline_seconds=0.8, timeout_seconds=10.0) as setting:
        for node in setting.nodes:
            node.answer = stalls
        # Before any attempt was over.
        async with asyncio.timeout(8.0):
            with pytest.raises(DeadlinePassed):
                await setting.pool.request("eth_call", [1])
        for node in setting.nodes:
            node.answer = echoes
        assert await setting.pool.request("eth_call", [2]) == [2]


async def test_hedging_and_cancelling_leave_no_connection_behind() -> None:
    # In order: else the first might never be asked again, if it was the slowest so far.
    async with three_nodes(in_order=True) as setting:
        for number in range(100):
            await setting.pool.request("eth_call", [number])
        setting.nodes[0].answer = stalls
        for number in range(100):
            assert await setting.pool.request("eth_call", [number]) == [number]
        assert setting.pool.hedges.won
        await until(lambda: not any(member.in_flight for member in setting.pool.members))
        await until(lambda: setting.nodes[0].open_requests == 0)


# --- against the development chain


@asynccontextmanager
async def chain_of(*specs: UpstreamSpec, in_order: bool = False) -> AsyncIterator[UpstreamPool]:
    registry = ChainRegistry(open_session(), SystemClock())
    registry.replace([network_spec(*specs, in_order=in_order)])
    try:
        async with asyncio.timeout(60):
            yield registry.networks()[0].pool
    finally:
        await registry.close()


def real(devnet: EvmDevnet, name: str, **changes: Any) -> UpstreamSpec:
    return UpstreamSpec(name=name, url=devnet.url, **changes)


async def signed_transfer(devnet: EvmDevnet, account: int, value: int = 1) -> tuple[bytes, str]:
    """The params of a raw transaction from the account, and its hash."""
    sender = devnet.deployment.accounts[account]
    fields = {
        "type": 2,
        "chainId": CHAIN_ID,
        "nonce": int(await devnet.call_async("eth_getTransactionCount", sender.address, "pending"), 16),
        "to": NOBODY,
        "value": value,
        "gas": 21_000,
        "maxFeePerGas": 20 * 10**9,
        "maxPriorityFeePerGas": 10**9,
    }
    signed = Account.sign_transaction(fields, sender.private_key)
    return json.dumps(["0x" + signed.raw_transaction.hex()]).encode(), "0x" + signed.hash.hex()


async def send(pool: UpstreamPool, params: bytes) -> Any:
    return json.loads(bytes(await pool.call("eth_sendRawTransaction", params, repeat=Repeat.ELSEWHERE)))


async def test_a_transaction_given_to_several_upstreams_of_one_chain_is_sent_once(evm_devnet: EvmDevnet) -> None:
    params, expected = await signed_transfer(evm_devnet, SENDER)
    async with chain_of(*(real(evm_devnet, f"node-{place}") for place in range(3))) as pool:
        assert await send(pool, params) == expected
        receipt = await asyncio.to_thread(evm_devnet.mine_transaction, expected)
        assert receipt["status"] == "0x1"
        # Sent again after it was mined, the nonce is too low, for this very transaction: it is there.
        assert await send(pool, params) == expected


async def test_a_transaction_is_reported_as_sent_although_other_upstreams_fail(evm_devnet: EvmDevnet) -> None:
    params, expected = await signed_transfer(evm_devnet, SECOND_SENDER)
    async with (
        FaultyNode(errors(-32000, "insufficient funds")) as behind,
        FaultyNode(stalls) as stalling,
        chain_of(behind.spec("behind"), real(evm_devnet, "node"), stalling.spec("stalling")) as pool,
    ):
        assert await send(pool, params) == expected
        assert (await asyncio.to_thread(evm_devnet.mine_transaction, expected))["status"] == "0x1"


async def test_a_nonce_that_another_transaction_used_is_an_error(evm_devnet: EvmDevnet) -> None:
    first, landed = await signed_transfer(evm_devnet, THIRD_SENDER, value=1)
    second, _ = await signed_transfer(evm_devnet, THIRD_SENDER, value=2)
    async with chain_of(real(evm_devnet, "one"), real(evm_devnet, "two")) as pool:
        await send(pool, first)
        await asyncio.to_thread(evm_devnet.mine_transaction, landed)
        with pytest.raises(NodeError, match=r"(?i)nonce"):
            await send(pool, second)


async def test_filters_of_a_real_node_work_beside_other_upstreams(evm_devnet: EvmDevnet) -> None:
    specs = (real(evm_devnet, "http"), UpstreamSpec(name="ws", url=evm_devnet.websocket_url))
    router = FilterRouter(SystemClock())

    async def ask(pool: UpstreamPool, method: str, *params: Any) -> Any:
        return json.loads(bytes(await router.call(pool, "me", method, json.dumps(params).encode())))

    async with chain_of(*specs) as pool:
        blocks = [await ask(pool, "eth_newBlockFilter") for _ in range(6)]
        logs = await ask(pool, "eth_newFilter", {"fromBlock": "0x0", "toBlock": "0x10"})
        await evm_devnet.mine_async(2)
        for number in blocks:
            assert len(await ask(pool, "eth_getFilterChanges", number)) >= 2
        expected = await evm_devnet.call_async("eth_getLogs", {"fromBlock": "0x0", "toBlock": "0x10"})
        assert await ask(pool, "eth_getFilterLogs", logs) == expected
        assert await ask(pool, "eth_uninstallFilter", logs) is True
        with pytest.raises(NodeError, match="filter not found"):
            await ask(pool, "eth_getFilterLogs", logs)


async def test_a_real_node_over_websocket_answers_like_the_same_over_http(evm_devnet: EvmDevnet) -> None:
    asked = [
        ("eth_chainId", []),
        ("eth_getBlockByNumber", ["0x1", True]),
        ("eth_getLogs", [{"fromBlock": "0x0", "toBlock": "0x10"}]),
        ("eth_getTransactionByHash", ["0x" + "00" * 32]),
        ("eth_getCode", [evm_devnet.deployment.tokens[0].address, "latest"]),
    ]
    socket = UpstreamSpec(name="ws", url=evm_devnet.websocket_url)
    async with chain_of(socket) as over_socket, chain_of(real(evm_devnet, "http")) as over_http:
        attempts: list[Attempt] = []
        for method, params in asked:
            body = json.dumps(params).encode()
            assert bytes(await over_socket.call(method, body, attempts=attempts)) == bytes(
                await over_http.call(method, body)
            )
        answers = await asyncio.gather(*(over_socket.request("eth_chainId", []) for _ in range(200)))
        assert set(answers) == {hex(CHAIN_ID)}
        with pytest.raises(NodeError):
            await over_socket.request("eth_getBalance", ["not an address"])
    assert [attempt.outcome for attempt in attempts] == ["ok"] * len(asked)


async def test_a_faulty_upstream_before_a_real_one_is_not_noticed(evm_devnet: EvmDevnet) -> None:
    async with (
        FaultyNode(results("0xbad")) as faulty,
        chain_of(faulty.spec("faulty"), real(evm_devnet, "node"), in_order=True) as pool,
    ):
        await faulty.stop()
        attempts: list[Attempt] = []
        assert bytes(await pool.call("eth_chainId", b"[]", attempts=attempts)) == f'"{CHAIN_ID:#x}"'.encode()
        assert [attempt.upstream for attempt in attempts] == ["faulty", "node"]
