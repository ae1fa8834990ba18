"""What Prometheus is told about upstreams."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from capstan.chain.errors import EveryUpstreamFailed
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import ManualClock
from tests.support.faulty_node import FaultyNode, network_spec, results, text

LABELS = {"network": "ethereum/devnet", "upstream": "good"}


async def test_calls_latencies_and_the_breaker_are_shown() -> None:
    metrics = CollectorRegistry()
    registry = ChainRegistry(open_session(), ManualClock(), metrics=metrics)
    try:
        async with FaultyNode(text("<html>")) as broken, FaultyNode(results("0x1")) as good:
            registry.replace([network_spec(broken.spec("broken"), good.spec("good"))])
            pool = registry.networks()[0].pool
            for _ in range(5):
                await pool.request("m", [])
            for member, head in zip(pool.members, (7, 10), strict=True):
                member.note_head(head)

        def value(name: str, **labels: str) -> float | None:
            return metrics.get_sample_value(name, {**LABELS, **labels})

        assert value("capstan_upstream_calls_total", outcome="ok") == 5
        assert value("capstan_upstream_calls_total", upstream="broken", outcome="bad_reply") == 3
        assert value("capstan_upstream_seconds_count") == 5
        assert value("capstan_upstream_seconds_bucket", le="+Inf") == 5
        assert value("capstan_upstream_seconds_bucket", le="0.001") == 5
        assert value("capstan_upstream_breaker") == 0
        assert value("capstan_upstream_breaker", upstream="broken") == 2
        assert value("capstan_upstream_blocks_behind", upstream="broken") == 3
        assert value("capstan_upstream_in_flight") == 0
        hedges = {"network": "ethereum/devnet", "event": "sent"}
        assert metrics.get_sample_value("capstan_upstream_hedges_total", hedges) == 0
        registry.replace([])
        assert value("capstan_upstream_seconds_count") is None
    finally:
        await registry.close()


async def test_upstreams_of_the_same_name_are_told_apart() -> None:
    metrics = CollectorRegistry()
    registry = ChainRegistry(open_session(), ManualClock(), metrics=metrics)
    try:
        async with FaultyNode(results("0x1")) as one:
            registry.replace([network_spec(one.spec("node"), one.spec("node-2"), one.spec("node"))])
            pool = registry.networks()[0].pool
            await pool.request("m", [])
            assert [member.name for member in pool.members] == ["node", "node-2", "node-3"]
            lines = [line for line in generate_latest(metrics).decode().splitlines() if "_breaker{" in line]
            assert len(set(lines)) == 3
    finally:
        await registry.close()


async def test_no_secret_of_an_address_is_shown() -> None:
    metrics = CollectorRegistry()
    registry = ChainRegistry(open_session(), ManualClock(), metrics=metrics)
    try:
        async with FaultyNode(text("<html>")) as node:
            spec = node.spec("node", headers=(("Authorization", "secret-header"),))
            registry.replace([network_spec(spec)])
            with pytest.raises(EveryUpstreamFailed):
                await registry.networks()[0].pool.request("m", [])
            shown = generate_latest(metrics).decode()
            assert "secret-header" not in shown
            assert "127.0.0.1" not in shown
    finally:
        await registry.close()
