"""Filters that live on one upstream, seen through the gateway."""

import json
from typing import Any

import pytest
from aiohttp import web

from capstan.chain.errors import EveryUpstreamFailed, NodeError
from capstan.chain.filters import FilterRouter
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import ManualClock
from tests.support.faulty_node import Answer, FaultyNode, Setting, errors, network_spec, pool_of, resets, stalls, text

MINE, YOURS = "account-1", "account-2"


def filtering(label: str) -> Answer:
    """A node that numbers its filters from one, as several nodes do alike, and answers with its own name."""
    known: list[str] = []

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        reply: dict[str, Any] = {}
        if call["method"].startswith("eth_new"):
            known.append(hex(len(known) + 1))
            reply = {"result": known[-1]}
        elif call["params"][0] not in known:
            reply = {"error": {"code": -32000, "message": "filter not found"}}
        elif call["method"] == "eth_uninstallFilter":
            known.remove(call["params"][0])
            reply = {"result": True}
        else:
            reply = {"result": [label, call["params"][0]]}
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], **reply})

    return answer


class Filters:
    """A router in front of the pool of a setting."""

    def __init__(self, setting: Setting, **limits: int) -> None:
        self.setting = setting
        self.router = FilterRouter(setting.clock, **limits)

    async def ask(self, method: str, *params: Any, owner: str = MINE) -> Any:
        raw = await self.router.call(self.setting.pool, owner, f"eth_{method}", json.dumps(params).encode())
        return json.loads(bytes(raw))

    async def create(self, owner: str = MINE) -> str:
        made: str = await self.ask("newBlockFilter", owner=owner)
        return made


async def test_calls_go_to_the_upstream_that_has_the_filter() -> None:
    async with pool_of(*map(filtering, "abc"), in_order=False) as setting:
        filters = Filters(setting)
        made = [await filters.create() for _ in range(40)]
        first = [await filters.ask("getFilterChanges", number) for number in made]
        assert {label for label, _ in first} == {"a", "b", "c"}
        for _ in range(3):
            assert [await filters.ask("getFilterLogs", number) for number in made] == first


async def test_ids_are_ours_and_cannot_be_guessed() -> None:
    async with pool_of(filtering("a")) as setting:
        filters = Filters(setting)
        made = [await filters.create() for _ in range(50)]
        assert len(set(made)) == 50
        assert all(len(number) == 2 + 32 and int(number, 16) for number in made)
        with pytest.raises(NodeError, match="filter not found"):
            await filters.ask("getFilterChanges", "0x1")


async def test_an_id_is_the_same_number_however_it_is_written() -> None:
    async with pool_of(filtering("a")) as setting:
        filters = Filters(setting)
        made = await filters.create()
        assert await filters.ask("getFilterChanges", "0x00" + made[2:].upper()) == ["a", "0x1"]


async def test_another_account_does_not_see_the_filter() -> None:
    async with pool_of(filtering("a")) as setting:
        filters = Filters(setting)
        made = await filters.create(MINE)
        with pytest.raises(NodeError, match="filter not found") as caught:
            await filters.ask("getFilterChanges", made, owner=YOURS)
        assert json.loads(bytes(caught.value.raw)) == {"code": -32000, "message": "filter not found"}
        assert await filters.ask("uninstallFilter", made, owner=YOURS) is False
        assert await filters.ask("getFilterChanges", made) == ["a", "0x1"]


async def test_an_uninstalled_filter_is_gone_here_and_on_the_node() -> None:
    async with pool_of(filtering("a")) as setting:
        filters = Filters(setting)
        made = await filters.create()
        assert await filters.ask("uninstallFilter", made) is True
        assert await filters.ask("uninstallFilter", made) is False
        assert setting.nodes[0].methods == ["eth_newBlockFilter", "eth_uninstallFilter"]
        assert filters.router.count("ethereum/devnet") == 0


async def test_a_filter_is_forgotten_after_five_minutes_without_use() -> None:
    async with pool_of(filtering("a")) as setting:
        filters = Filters(setting)
        idle, used = await filters.create(), await filters.create()
        setting.clock.advance(200)
        await filters.ask("getFilterChanges", used)
        setting.clock.advance(101)
        assert await filters.ask("getFilterChanges", used) == ["a", "0x2"]
        with pytest.raises(NodeError, match="filter not found"):
            await filters.ask("getFilterChanges", idle)
        assert filters.router.count("ethereum/devnet") == 1


@pytest.mark.parametrize("fault", [resets, stalls, text("<html>")], ids=["reset", "stall", "html"])
async def test_a_filter_ends_with_a_lost_answer(fault: Answer) -> None:
    async with pool_of(filtering("a"), filtering("b"), timeout_seconds=0.3) as setting:
        filters = Filters(setting)
        made = await filters.create()
        healthy, setting.nodes[0].answer = setting.nodes[0].answer, fault
        with pytest.raises(NodeError, match="filter not found"):
            await filters.ask("getFilterChanges", made)
        assert setting.counts == [2, 0]
        setting.nodes[0].answer = healthy
        with pytest.raises(NodeError, match="filter not found"):
            await filters.ask("getFilterChanges", made)


async def test_a_refused_call_keeps_the_filter() -> None:
    async with pool_of(filtering("a")) as setting:
        filters = Filters(setting)
        made = await filters.create()
        healthy, setting.nodes[0].answer = setting.nodes[0].answer, errors(-32000, "slow down", status=429)
        with pytest.raises(EveryUpstreamFailed, match="refused"):
            await filters.ask("getFilterChanges", made)
        setting.nodes[0].answer = healthy
        assert await filters.ask("getFilterChanges", made) == ["a", "0x1"]


async def test_a_filter_that_the_node_forgot_is_forgotten() -> None:
    async with pool_of(filtering("a")) as setting:
        filters = Filters(setting)
        made = await filters.create()
        setting.nodes[0].answer = errors(-32000, "filter not found")
        with pytest.raises(NodeError, match="filter not found"):
            await filters.ask("getFilterChanges", made)
        assert filters.router.count("ethereum/devnet") == 0


async def test_the_number_of_filters_is_bounded_for_each_account_and_in_all() -> None:
    async with pool_of(filtering("a")) as setting:
        filters = Filters(setting, max_per_network=3, max_per_owner=2)
        first = await filters.create(MINE)
        await filters.create(MINE)
        with pytest.raises(NodeError, match="too many filters"):
            await filters.create(MINE)
        await filters.create(YOURS)
        with pytest.raises(NodeError, match="too many filters"):
            await filters.create(YOURS)
        await filters.ask("uninstallFilter", first)
        assert await filters.create(MINE)


async def test_creating_goes_to_another_upstream_when_the_first_fails() -> None:
    async with pool_of(resets, filtering("b")) as setting:
        filters = Filters(setting)
        assert await filters.ask("getFilterChanges", await filters.create()) == ["b", "0x1"]


@pytest.mark.parametrize("params", [[], [1], [None], [{}]])
async def test_a_missing_or_odd_id_is_an_error_of_the_call(params: list[Any]) -> None:
    async with pool_of(filtering("a")) as setting:
        with pytest.raises(NodeError) as caught:
            await Filters(setting).ask("getFilterChanges", *params)
        assert caught.value.code == -32602


@pytest.mark.parametrize("number", ["", "0x", "zz", "0xzz", "0x" + "1" * 5_000, "-0x1", "0x-1"])
async def test_an_id_that_is_none_is_not_found(number: str) -> None:
    async with pool_of(filtering("a")) as setting:
        with pytest.raises(NodeError, match="filter not found"):
            await Filters(setting).ask("getFilterChanges", number)


async def test_a_filter_ends_when_its_upstream_is_no_longer_configured() -> None:
    clock = ManualClock()
    registry, router = ChainRegistry(open_session(), clock), FilterRouter(clock)
    try:
        async with FaultyNode(filtering("a")) as old, FaultyNode(filtering("b")) as new:
            registry.replace([network_spec(old.spec("old"))])
            pool = registry.networks()[0].pool
            made = bytes(await router.call(pool, MINE, "eth_newBlockFilter", b"[]"))
            registry.replace([network_spec(old.spec("old"), new.spec("new"))])
            pool = registry.networks()[0].pool
            assert json.loads(bytes(await router.call(pool, MINE, "eth_getFilterChanges", b"[" + made + b"]")))
            registry.replace([network_spec(new.spec("new"))])
            pool = registry.networks()[0].pool
            with pytest.raises(NodeError, match="filter not found"):
                await router.call(pool, MINE, "eth_getFilterChanges", b"[" + made + b"]")
    finally:
        await registry.close()
