"""What stops a network, what begins it anew, and what the metrics say."""

from __future__ import annotations

from capstan.chain.follower.models import Demand, Reverted
from capstan.chain.heads.source import HeadOptions
from tests.support.stream_nodes import StreamNode, Walker, grow, stream_spec, until
from tests.unit.chain.follower.conftest import Build


async def test_a_branch_below_finality_stops_the_network_until_the_chain_is_back(build: Build) -> None:
    chain = grow([], 40)
    node = StreamNode("one", chain)
    world = build(node, heads=HeadOptions(finality_tags=False, finality_depth=5))
    await world.poll(times=3)
    walker = Walker()
    world.follower.subscribe(walker, Demand.LOGS)
    chain = grow(chain, 12)
    node.adopt(chain)
    await world.settle()
    told = list(walker.deltas)
    node.adopt(grow(chain[:42], 30, branch=1))
    await world.poll(times=6)
    await until(lambda: world.follower.halted is not None, what="the halt")
    assert walker.deltas == told, "nothing is guessed"
    assert "final" in (world.follower.halted or "")
    chain = grow(chain, 3)
    node.adopt(chain)
    await world.settle()
    await until(lambda: world.follower.halted is None, what="the end of the halt")
    assert walker.hashes == [made.hash for made in chain[40:]]


async def test_a_development_chain_that_begins_anew_is_followed(build: Build) -> None:
    chain = grow([], 40)
    node = StreamNode("one", chain)
    world = build(node, spec=stream_spec(dev_methods=True))
    await world.poll()
    walker = Walker(joins_later=True)
    world.follower.subscribe(walker, Demand.LOGS)
    chain = grow(chain, 5)
    node.adopt(chain)
    await world.settle()
    anew = grow([], 7, branch=9)
    node.adopt(anew)
    node.forget_orphans()
    await world.settle()
    assert walker.hashes == [made.hash for made in anew]
    assert [delta.block.number for delta in walker.deltas if isinstance(delta, Reverted)] == [
        44,
        43,
        42,
        41,
        40,
        39,
    ]


async def test_the_metrics_tell_lag_reorganisations_and_halts(build: Build) -> None:
    chain = grow([], 40)
    node = StreamNode("one", chain)
    world = build(node, heads=HeadOptions(finality_tags=False, finality_depth=8))
    await world.poll(times=3)
    world.follower.subscribe(Walker(joins_later=True), Demand.LOGS)
    chain = grow(chain, 4)
    node.adopt(chain)
    await world.settle()
    node.adopt(grow(chain[:-3], 5, branch=1))
    await world.settle()
    assert world.metric("capstan_stream_deltas_total", kind="applied") == 9
    assert world.metric("capstan_stream_deltas_total", kind="reverted") == 3
    assert world.metric("capstan_stream_reorg_depth_sum") == 3
    assert world.metric("capstan_stream_reorg_depth_count") == 1
    assert (world.metric("capstan_stream_content_seconds_count", demand="logs") or 0) >= 9
    assert world.metric("capstan_stream_lag_blocks") == 0
    assert world.metric("capstan_stream_lag_seconds") == 0
    node.late = 1_000_000
    node.adopt(grow(node.chain, 2))
    await world.poll(times=10)
    assert world.metric("capstan_stream_lag_blocks") == 2
    assert (world.metric("capstan_stream_lag_seconds") or 0) >= 3
    node.late = 0
    await world.settle()
    node.adopt(grow(chain[:20], 60, branch=2))
    await world.poll(times=6)
    await until(lambda: world.metric("capstan_stream_halted") == 1, what="the halt")
    await world.follower.close()
    assert world.metric("capstan_stream_halted") is None
