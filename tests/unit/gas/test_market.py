"""Gas prices made from the stream of a network: what a block changes, what is asked of nodes, and what is not told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from capstan.catalogue.networks import DataFee
from capstan.chain.registry import Network
from capstan.core.clock import ManualClock
from capstan.core.errors import Unavailable, UpstreamError
from capstan.gas.estimates import HISTORY_BLOCKS, PERCENTILES, highest_base_fee
from capstan.gas.market import Market
from capstan.gas.models import GasPrices
from tests.support.fee_node import LIMIT, FeeNode
from tests.support.stream_nodes import World, grow, stream_spec, until

GWEI = 10**9


class Setting:
    def __init__(self, node: FeeNode, world: World, clock: ManualClock, data_fee: DataFee) -> None:
        self.node = node
        self.world = world
        self.clock = clock
        self.network = Network(world.spec, world.pool)
        self.market = Market(world.follower, world.tracker, clock, lambda _network: data_fee)

    async def prices(self) -> GasPrices:
        return await self.market.prices(self.network)

    async def grow(self, length: int = 1) -> None:
        self.node.adopt(grow(self.node.chain, length))
        await self.world.settle(seconds=30)

    async def until_at(self, number: int) -> GasPrices:
        async def reached() -> bool:
            await self.world.poll(after=0.0)
            return (await self.prices()).block_number == number

        await until(reached, seconds=30, what=f"prices of block {number}")
        return await self.prices()

    async def until_asked(self, times: int) -> None:
        await until(lambda: self.asked >= times, seconds=30, what="the question about the block")

    @property
    def questions(self) -> list[Any]:
        return [arguments for method, arguments in self.node.calls if method == "eth_feeHistory"]

    @property
    def asked(self) -> int:
        return self.node.count("eth_feeHistory")


@asynccontextmanager
async def market(
    change: Callable[[FeeNode], None] = lambda _node: None,
    *,
    length: int = 100,
    data_fee: DataFee = "none",
    **spec: Any,
) -> AsyncIterator[Setting]:
    node, clock = FeeNode(grow([], length)), ManualClock(1_700_000_000.0)
    change(node)
    world = World(node, spec=stream_spec(**{"block_time_ms": 12_000} | spec), clock=clock)
    setting = Setting(node, world, clock, data_fee)
    await world.poll()
    try:
        async with asyncio.timeout(120):
            yield setting
    finally:
        await setting.market.close()
        await world.close()


async def test_prices_are_those_of_the_last_blocks() -> None:
    async with market() as setting:
        prices = msgspec.to_builtins(await setting.prices())
        fee, following = setting.node.base_fee(99), setting.node.base_fee(100)
    assert prices["chain"] == "ethereum"
    assert prices["block_number"] == 99
    assert prices["base_fee_gwei"] == f"{fee // GWEI}.{fee % GWEI:09}".rstrip("0")
    assert prices["updated_at"] == "2023-11-14T22:13:21Z"
    assert "data_fee" not in prices
    fast = prices["estimates"]["fast"]
    expected = highest_base_fee(following, 6) + GWEI
    assert fast["max_priority_fee_gwei"] == "1"
    assert fast["max_fee_gwei"] == f"{expected // GWEI}.{expected % GWEI:09}".rstrip("0")
    assert setting.questions == [[hex(HISTORY_BLOCKS), "latest", list(PERCENTILES)]]


async def test_requests_ask_nobody_and_a_block_asks_once() -> None:
    async with market(lambda node: setattr(node, "pending_tip", 0)) as setting:
        await setting.prices()
        assert setting.asked == 1
        for block in range(3):
            await setting.grow()
            prices = await setting.until_at(100 + block)
            await setting.until_asked(2 + block)
            for _ in range(50):
                assert await setting.prices() == await setting.prices()
            assert prices.base_fee_gwei.replace(".", "").startswith(str(setting.node.base_fee(100 + block))[:5])
        assert setting.asked == 4
        # Only what is not known yet, and the pending block.
        assert setting.questions[1:] == [["0x2", "pending", list(PERCENTILES)]] * 3


async def test_callers_at_the_same_moment_share_one_reading_even_if_one_leaves() -> None:
    async with market() as setting:
        setting.node.held = asyncio.Event()
        callers = [asyncio.create_task(setting.prices()) for _ in range(5)]
        await asyncio.sleep(0)
        callers[0].cancel()
        setting.node.held.set()
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert all(outcome is outcomes[1] for outcome in outcomes[1:])
        assert setting.asked == 1


async def test_the_base_fee_is_projected_before_any_node_tells_it() -> None:
    async with market() as setting:
        await setting.prices()
        await setting.grow()
        await setting.until_at(100)
        await setting.until_asked(2)
        setting.node.held = asyncio.Event()
        await setting.grow()
        prices = await setting.until_at(101)
        expected = highest_base_fee(setting.node.base_fee(102), 6) + GWEI
        assert prices.estimates.fast.max_fee_gwei == f"{expected // GWEI}.{expected % GWEI:09}".rstrip("0")
        setting.node.held.set()


async def test_on_a_chain_with_a_rule_of_its_own_the_node_is_believed() -> None:
    async with market(lambda node: setattr(node, "drift", 12_345)) as setting:
        await setting.prices()
        await setting.grow()
        await setting.until_at(100)
        setting.node.held = asyncio.Event()
        await setting.grow()
        # Nobody has told the base fee of block 102, and the rule does not give it.
        assert (await setting.prices()).block_number == 100
        setting.node.held.set()
        prices = await setting.until_at(101)
        expected = highest_base_fee(setting.node.base_fee(102), 6) + GWEI
        assert prices.estimates.fast.max_fee_gwei == f"{expected // GWEI}.{expected % GWEI:09}".rstrip("0")


async def test_the_pending_block_counts_where_nodes_offer_it() -> None:
    async with market(lambda node: setattr(node, "pending_tip", 3 * GWEI)) as setting:
        await setting.prices()
        await setting.grow()
        await setting.until_at(100)
        await setting.until_asked(2)

        async def counted() -> bool:
            return (await setting.prices()).estimates.fast.max_priority_fee_gwei == "1"

        await until(counted, seconds=30)
        # Where most blocks to come pay more, so does the fast level.
        setting.node.tip = 3 * GWEI
        await setting.grow(3)
        await setting.until_at(103)

        async def raised() -> bool:
            return (await setting.prices()).estimates.fast.max_priority_fee_gwei == "3"

        await until(raised, seconds=30)
        assert (await setting.prices()).estimates.slow.max_priority_fee_gwei == "1"


async def test_after_a_reorganisation_prices_are_those_of_the_new_branch() -> None:
    async with market() as setting:
        await setting.prices()
        await setting.grow(2)
        await setting.until_at(101)
        setting.node.gas_used = lambda block: LIMIT if block.branch else LIMIT // 2 + 1_000_000 * (block.number % 3 - 1)
        setting.node.adopt(grow(setting.node.chain[:-2], 3, branch=1))
        await setting.world.settle(seconds=30)
        prices = await setting.until_at(102)
        fee = setting.node.base_fee(102)
        assert prices.base_fee_gwei == f"{fee // GWEI}.{fee % GWEI:09}".rstrip("0")


async def test_times_follow_the_blocks_and_not_what_is_said_of_the_network() -> None:
    # The headers of the nodes are a second apart.
    async with market() as setting:
        assert (await setting.prices()).estimates.slow.estimated_seconds == 1
    async with market(length=5) as setting:
        # Too few to measure.
        assert (await setting.prices()).estimates.slow.estimated_seconds == 12


@pytest.mark.parametrize("reward", [None, [], [["0x0"] * 4] * 2])
async def test_without_tips_in_recent_blocks_the_node_is_asked_for_one(reward: Any) -> None:
    def change(node: FeeNode) -> None:
        node.changed["eth_feeHistory"] = _short(reward=reward)

    async with market(change) as setting:
        estimates = (await setting.prices()).estimates
        assert estimates.slow.max_priority_fee_gwei == estimates.fast.max_priority_fee_gwei == "5"


async def test_a_chain_that_knows_no_tips_gets_none() -> None:
    def change(node: FeeNode) -> None:
        node.changed["eth_feeHistory"] = _short(reward=[])
        node.lacks.add("eth_maxPriorityFeePerGas")

    async with market(change) as setting:
        assert (await setting.prices()).estimates.standard.max_priority_fee_gwei == "0"


@pytest.mark.parametrize("lacking", [True, False])
async def test_a_chain_of_which_only_the_gas_price_is_known_is_priced_by_it(lacking: bool) -> None:
    def change(node: FeeNode) -> None:
        node.first_fee = 0
        if lacking:
            node.lacks.add("eth_feeHistory")
        else:
            node.changed["eth_feeHistory"] = _short(baseFeePerGas=["0x0"] * 3, reward=None)

    async with market(change, eip1559=False) as setting:
        prices = await setting.prices()
        assert (prices.block_number, prices.base_fee_gwei) == (99, "0")
        assert prices.estimates.slow.max_fee_gwei == prices.estimates.slow.max_priority_fee_gwei == "20"
        assert (prices.estimates.standard.max_fee_gwei, prices.estimates.fast.max_fee_gwei) == ("22", "25")
        await setting.grow()
        assert (await setting.until_at(100)).base_fee_gwei == "0"


async def test_a_chain_without_base_fee_that_tells_prices_is_priced_by_them() -> None:
    async with market(lambda node: setattr(node, "first_fee", 0), eip1559=False) as setting:
        prices = await setting.prices()
        assert prices.base_fee_gwei == "0"
        assert prices.estimates.fast.max_fee_gwei == prices.estimates.fast.max_priority_fee_gwei == "1"
        assert setting.node.count("eth_gasPrice") == 0


async def test_the_fee_for_data_of_a_rollup_is_named() -> None:
    async with market(data_fee="op_stack") as setting:
        assert (await setting.prices()).data_fee == "op_stack"


async def test_a_stream_that_is_stopped_has_no_prices() -> None:
    async with market() as setting:
        await setting.prices()
        setting.world.follower.condition.note_halt("live", "block 7 was taken back")
        with pytest.raises(Unavailable, match="block 7 was taken back"):
            await setting.prices()
        setting.world.follower.condition.note_halt("live", None)
        assert (await setting.prices()).block_number == 99


async def test_old_prices_are_not_told_when_no_node_answers() -> None:
    async with market(block_time_ms=1_000) as setting:
        first = await setting.prices()
        setting.node.fail()
        await setting.world.poll(after=14.0)
        assert (await setting.prices()) == first
        await setting.world.poll(after=2.0)
        with pytest.raises(Unavailable, match="do not answer"):
            await setting.prices()
        setting.node.heal()
        await setting.grow()
        assert (await setting.until_at(100)).updated_at > first.updated_at


async def test_old_prices_are_not_told_when_the_chain_went_on() -> None:
    async with market(lambda node: setattr(node, "drift", 1), block_time_ms=1_000) as setting:
        await setting.prices()
        setting.node.lacks.add("eth_feeHistory")
        await setting.grow()
        setting.clock.advance(20.0)
        with pytest.raises(Unavailable, match="at block 100, and what is known is from block 99"):
            await setting.prices()


async def test_a_chain_that_stands_still_keeps_its_prices() -> None:
    async with market() as setting:
        first = await setting.prices()
        for _ in range(4):
            await setting.world.poll(after=20.0)
            prices = await setting.prices()
            assert prices.block_number == first.block_number


async def test_a_market_that_nobody_asks_sleeps_and_wakes() -> None:
    async with market(block_time_ms=1_000) as setting:
        await setting.prices()
        setting.clock.advance(300.0)
        setting.node.adopt(grow(setting.node.chain, 1))
        await setting.world.poll()
        await until(lambda: not [each for each in asyncio.all_tasks() if "gas prices" in each.get_name()], seconds=30)
        asked = setting.asked
        setting.node.adopt(grow(setting.node.chain, 5))
        await setting.world.poll(times=3)
        assert setting.asked == asked
        assert (await setting.prices()).block_number == 105


async def test_a_failure_is_reported_and_not_kept() -> None:
    async with market() as setting:
        setting.node.fail()
        with pytest.raises(UpstreamError, match="ethereum/devnet"):
            await setting.prices()
        setting.node.heal()
        assert (await setting.prices()).block_number == 99


@pytest.mark.parametrize(
    "changed",
    [
        {"eth_feeHistory": {"oldestBlock": "soon", "baseFeePerGas": ["0x1", "0x2"]}},
        {"eth_feeHistory": "0x1"},
        {"eth_feeHistory": {"oldestBlock": "0x0", "baseFeePerGas": []}, "eth_gasPrice": None},
    ],
)
async def test_nonsense_from_a_node_is_an_upstream_error(changed: dict[str, Any]) -> None:
    async with market(lambda node: node.changed.update(changed)) as setting:
        with pytest.raises(UpstreamError):
            await setting.prices()


async def test_closing_ends_the_wait_of_callers() -> None:
    async with market() as setting:
        setting.node.held = asyncio.Event()
        caller: Awaitable[GasPrices] = asyncio.create_task(setting.prices())
        await asyncio.sleep(0)
        await setting.market.close()
        with pytest.raises(Unavailable):
            await caller


def _short(**changes: Any) -> dict[str, Any]:
    return {
        "oldestBlock": hex(98),
        "baseFeePerGas": [hex(10 * GWEI), hex(11 * GWEI), hex(12 * GWEI)],
        "gasUsedRatio": [0.5, 0.5],
        "reward": [["0x1"] * 4] * 2,
    } | changes
