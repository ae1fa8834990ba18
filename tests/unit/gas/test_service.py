"""Gas prices from nodes that differ from the development chain; that chain itself is asked in tests/e2e."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from capstan.chain.registry import ChainRegistry, Network
from capstan.chain.upstream import open_session
from capstan.core.clock import ManualClock
from capstan.core.errors import NotFound, UpstreamError
from capstan.gas.service import GasPriceService
from tests.support.faulty_node import Answer, FaultyNode, by_method, network_spec, stalls, text

GWEI = 10**9
HISTORY = {
    "oldestBlock": "0x10",
    "baseFeePerGas": [hex(10 * GWEI), hex(11 * GWEI), hex(12 * GWEI)],
    "gasUsedRatio": [0.5, 0.98],
    "reward": [[hex(GWEI), hex(2 * GWEI), hex(3 * GWEI)], ["0x0", "0x0", "0x0"]],
}
ABSENT = {"error": {"code": -32601, "message": "the method does not exist"}}


class Setting:
    def __init__(self, service: GasPriceService, network: Network, node: FaultyNode, clock: ManualClock) -> None:
        self.service = service
        self.network = network
        self.node = node
        self.clock = clock
        self.head: int | None = None


@asynccontextmanager
async def chain(answer: Answer, **changes: Any) -> AsyncIterator[Setting]:
    clock = ManualClock(1_700_000_000.0)
    registry = ChainRegistry(open_session(), clock)
    async with FaultyNode(answer) as node, asyncio.timeout(20):
        registry.replace([network_spec(node.spec(timeout_seconds=5), **{"block_time_ms": 12_000} | changes)])
        setting: Setting
        service = GasPriceService(clock=clock, head=lambda _: setting.head)
        setting = Setting(service, registry.networks()[0], node, clock)
        try:
            yield setting
        finally:
            await service.close()
            await registry.close()


async def test_prices_follow_the_fee_history() -> None:
    async with chain(by_method({"eth_feeHistory": HISTORY})) as setting:
        prices = msgspec.to_builtins(await setting.service.prices(setting.network))
    assert prices == {
        "chain": "ethereum",
        "block_number": 17,
        "base_fee_gwei": "11",
        "estimates": {
            "slow": {"max_fee_gwei": "16", "max_priority_fee_gwei": "1", "estimated_seconds": 72},
            "standard": {"max_fee_gwei": "26", "max_priority_fee_gwei": "2", "estimated_seconds": 36},
            "fast": {"max_fee_gwei": "33", "max_priority_fee_gwei": "3", "estimated_seconds": 12},
        },
        "updated_at": "2023-11-14T22:13:20Z",
    }
    assert setting.node.calls[0]["params"] == ["0x14", "latest", [10, 50, 90]]


async def test_times_are_whole_seconds_and_at_least_one() -> None:
    async with chain(by_method({"eth_feeHistory": HISTORY}), block_time_ms=250) as setting:
        estimates = (await setting.service.prices(setting.network)).estimates
    assert [speed.estimated_seconds for speed in (estimates.slow, estimates.standard, estimates.fast)] == [2, 1, 1]


@pytest.mark.parametrize("reward", [None, [], [["0x0", "0x0", "0x0"]] * 2])
async def test_without_tips_in_recent_blocks_the_node_is_asked_for_one(reward: Any) -> None:
    table = {"eth_feeHistory": HISTORY | {"reward": reward}, "eth_maxPriorityFeePerGas": hex(5 * GWEI)}
    async with chain(by_method(table)) as setting:
        estimates = (await setting.service.prices(setting.network)).estimates
        assert estimates.slow.max_priority_fee_gwei == estimates.fast.max_priority_fee_gwei == "5"


async def test_a_chain_that_knows_no_tips_gets_none() -> None:
    table = {"eth_feeHistory": HISTORY | {"reward": []}, "eth_maxPriorityFeePerGas": ABSENT}
    async with chain(by_method(table)) as setting:
        estimates = (await setting.service.prices(setting.network)).estimates
        assert estimates.standard.max_priority_fee_gwei == "0"
        assert estimates.standard.max_fee_gwei == "24"


@pytest.mark.parametrize(
    ("history", "eip1559"),
    [
        (ABSENT, True),
        (HISTORY | {"baseFeePerGas": ["0x0", "0x0", "0x0"]}, True),
        (HISTORY | {"baseFeePerGas": []}, True),
        (HISTORY, False),
    ],
)
async def test_a_chain_without_base_fee_is_priced_by_its_gas_price(history: Any, eip1559: bool) -> None:
    table = {
        "eth_feeHistory": history,
        "eth_getBlockByNumber": {"number": "0x64", "hash": "0x1"},
        "eth_gasPrice": hex(20 * GWEI),
    }
    async with chain(by_method(table), eip1559=eip1559) as setting:
        prices = await setting.service.prices(setting.network)
    assert (prices.block_number, prices.base_fee_gwei) == (100, "0")
    assert prices.estimates.slow.max_fee_gwei == prices.estimates.slow.max_priority_fee_gwei == "20"
    assert (prices.estimates.standard.max_fee_gwei, prices.estimates.fast.max_fee_gwei) == ("22", "25")
    assert eip1559 or "eth_feeHistory" not in setting.node.methods


async def test_an_answer_is_kept_for_a_block_time_at_most() -> None:
    async with chain(by_method({"eth_feeHistory": HISTORY})) as setting:
        first = await setting.service.prices(setting.network)
        setting.clock.advance(11.9)
        assert await setting.service.prices(setting.network) is first
        setting.clock.advance(0.2)
        assert await setting.service.prices(setting.network) is not first
        assert len(setting.node.calls) == 2


async def test_a_newer_block_ends_the_answer() -> None:
    async with chain(by_method({"eth_feeHistory": HISTORY})) as setting:
        await setting.service.prices(setting.network)
        setting.head = 17
        await setting.service.prices(setting.network)
        assert len(setting.node.calls) == 1
        setting.head = 18
        await setting.service.prices(setting.network)
        assert len(setting.node.calls) == 2


async def test_callers_at_the_same_moment_share_one_reading_even_if_one_leaves() -> None:
    gate = asyncio.Event()

    async def waits(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        await asyncio.wait_for(gate.wait(), 10)
        return await by_method({"eth_feeHistory": HISTORY})(request, call)

    async with chain(waits) as setting:
        callers = [asyncio.create_task(setting.service.prices(setting.network)) for _ in range(5)]
        await setting.node.wait_for_calls(1)
        callers[0].cancel()
        gate.set()
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert all(outcome is outcomes[1] for outcome in outcomes[1:])
        assert len(setting.node.calls) == 1


async def test_a_failure_is_reported_and_not_kept() -> None:
    async with chain(text("<html>")) as setting:
        with pytest.raises(UpstreamError, match="ethereum/devnet"):
            await setting.service.prices(setting.network)
        setting.node.answer = by_method({"eth_feeHistory": HISTORY})
        assert (await setting.service.prices(setting.network)).block_number == 17


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"eth_feeHistory": HISTORY | {"oldestBlock": "soon"}},
        {"eth_feeHistory": "0x1"},
        {"eth_getBlockByNumber": {"number": "0x1"}, "eth_gasPrice": None},
    ],
)
async def test_nonsense_from_a_node_is_an_upstream_error(table: dict[str, Any]) -> None:
    async with chain(by_method(table)) as setting:
        with pytest.raises(UpstreamError):
            await setting.service.prices(setting.network)


async def test_solana_has_no_gas_prices() -> None:
    async with chain(by_method({}), family="solana") as setting:
        with pytest.raises(NotFound, match="only EVM"):
            await setting.service.prices(setting.network)


async def test_closing_stops_a_reading_under_way() -> None:
    async with chain(stalls) as setting:
        caller = asyncio.create_task(setting.service.prices(setting.network))
        await setting.node.wait_for_calls(1)
        await setting.service.close()
        with pytest.raises(asyncio.CancelledError):
            await caller
