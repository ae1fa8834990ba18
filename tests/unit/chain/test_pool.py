"""Several upstreams as one: order, failover, health, and what is repeated."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from capstan.chain.errors import DeadlinePassed, EveryUpstreamFailed, NodeError, NodeUnable
from capstan.chain.health import FAILURES_BEFORE_OPENING
from capstan.chain.models import Attempt
from capstan.chain.pool import Repeat
from tests.support.faulty_node import (
    Answer,
    Setting,
    errors,
    held,
    pool_of,
    resets,
    results,
    stalls,
    text,
)

BROKEN = text("<html>")


async def test_the_lowest_tier_is_preferred() -> None:
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
        asyncio.timeout(30),
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
        assert setting.counts == [FAILURES_BEFORE_OPENING, 10]
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
        for _ in range(FAILURES_BEFORE_OPENING):
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
        for _ in range(FAILURES_BEFORE_OPENING):
            with pytest.raises(EveryUpstreamFailed):
                await setting.pool.request("m", [])
        setting.nodes[1].answer = results("0x2")
        assert await setting.pool.request("m", []) == "0x2"


async def test_errors_of_the_node_do_not_count_against_its_health() -> None:
    async with pool_of(errors(3, "execution reverted"), results("0x2")) as setting:
        for _ in range(FAILURES_BEFORE_OPENING * 2):
            with pytest.raises(NodeError):
                await setting.pool.request("m", [])
        assert setting.counts == [FAILURES_BEFORE_OPENING * 2, 0]


async def test_a_result_of_another_type_is_an_upstream_failure() -> None:
    async with pool_of(results({"a": 1})) as setting:
        with pytest.raises(EveryUpstreamFailed, match="answered m"):
            await setting.pool.request_as(str, "m", [])


# --- what changes something and cannot be repeated


async def act(setting: Setting) -> bytes:
    return bytes(await setting.pool.call("requestAirdrop", b"[]", repeat=Repeat.NEVER))


@pytest.mark.parametrize("failure", [resets, BROKEN, errors(-32603, "Internal error")])
async def test_an_action_is_never_repeated_once_it_may_have_been_executed(failure: Answer) -> None:
    async with pool_of(failure, results("0x1")) as setting:
        with pytest.raises((EveryUpstreamFailed, NodeError)):
            await act(setting)
        assert setting.counts == [1, 0]


async def test_an_action_that_was_refused_goes_to_the_next_upstream() -> None:
    async with pool_of(errors(-32000, "x", status=429), results("0x1")) as setting:
        assert await act(setting) == b'"0x1"'


# --- choice, budgets and explanations


async def test_upstreams_of_one_tier_share_the_calls() -> None:
    async with pool_of(results("0x1"), results("0x2"), results("0x3"), in_order=False) as setting:
        for _ in range(60):
            await setting.pool.request("m", [])
        assert min(setting.counts) >= 10
        assert sum(setting.counts) == 60


async def test_an_unreachable_upstream_is_left_at_once() -> None:
    async with pool_of(results("0x1"), results("0x2")) as setting:
        await setting.nodes[0].__aexit__(None, None, None)
        attempts: list[Attempt] = []
        for _ in range(5):
            assert bytes(await setting.pool.call("m", b"[]", attempts=attempts)) == b'"0x2"'
        assert [(attempt.upstream, attempt.outcome) for attempt in attempts] == [
            ("node-0", "unreachable"),
            *[("node-1", "ok")] * 5,
        ]


async def test_methods_go_only_to_upstreams_that_take_them() -> None:
    async with pool_of(results("0x1"), upstream={"methods_deny": ("debug_*",)}) as setting:
        assert await setting.pool.request("eth_call", []) == "0x1"
        with pytest.raises(EveryUpstreamFailed, match="No upstream of ethereum/devnet is configured to take debug_x"):
            await setting.pool.request("debug_x", [])
        assert setting.counts == [1]


async def test_a_call_over_the_budget_goes_to_another_upstream() -> None:
    async with pool_of(results("0x1"), results("0x2"), upstream={"requests_per_second": 3}) as setting:
        assert [await setting.pool.request("m", []) for _ in range(6)] == ["0x1"] * 3 + ["0x2"] * 3
        setting.clock.advance(1.0)
        assert await setting.pool.request("m", []) == "0x1"


async def test_a_call_waits_briefly_when_every_budget_is_spent() -> None:
    async with pool_of(results("0x1"), real_time=True, upstream={"requests_per_second": 5}) as setting:
        started = asyncio.get_running_loop().time()
        for _ in range(6):
            assert await setting.pool.request("m", []) == "0x1"
        assert 0.9 < asyncio.get_running_loop().time() - started < 5


async def test_a_call_that_would_wait_too_long_for_a_budget_fails_and_says_why() -> None:
    async with pool_of(results("0x1"), upstream={"requests_per_second": 1}) as setting:
        await setting.pool.request("m", [])
        with pytest.raises(EveryUpstreamFailed, match="has reached its requests per second"):
            await setting.pool.call("m", b"[]", timeout=0.5)
        assert setting.counts == [1]


async def test_a_block_that_is_needed_goes_to_an_upstream_that_has_it() -> None:
    async with pool_of(results("0x1"), results("0x2")) as setting:
        for member, head in zip(setting.pool.members, (99, 100), strict=True):
            member.note_head(head)
        assert bytes(await setting.pool.call("m", b"[]", needs_block=99)) == b'"0x1"'
        assert bytes(await setting.pool.call("m", b"[]", needs_block=100)) == b'"0x2"'
        # When nobody has it, the one that is tried may have learnt of it meanwhile.
        assert bytes(await setting.pool.call("m", b"[]", needs_block=101)) == b'"0x1"'


async def test_a_lagging_upstream_comes_last() -> None:
    async with pool_of(results("0x1"), results("0x2")) as setting:
        for member, head in zip(setting.pool.members, (10, 100), strict=True):
            member.note_head(head)
        assert await setting.pool.request("m", []) == "0x2"
        assert [(row.upstream, row.standing, row.lag) for row in setting.pool.explain("m")] == [
            ("node-1", "ready", 0),
            ("node-0", "lagging", 90),
        ]
        setting.pool.members[0].note_head(100)
        assert await setting.pool.request("m", []) == "0x1"


async def test_a_node_that_cannot_do_what_others_can_becomes_a_worse_choice() -> None:
    broken, good = errors(-32603, "Internal error"), results("0x2")
    async with pool_of(broken, good, in_order=False) as setting:
        for _ in range(40):
            assert await setting.pool.request("m", []) == "0x2"
        assert setting.counts[0] <= 6


async def test_an_answer_that_is_too_large_is_no_fault_of_the_upstream() -> None:
    async with pool_of(results("0x" + "00" * 2_000), upstream={"max_response_bytes": 1_000}) as setting:
        for _ in range(FAILURES_BEFORE_OPENING * 2):
            with pytest.raises(EveryUpstreamFailed):
                await setting.pool.request("m", [])
        assert setting.pool.members[0].in_rotation


async def test_an_upstream_that_goes_silent_is_avoided_before_its_calls_time_out() -> None:
    gate = asyncio.Event()
    async with pool_of(held(gate, results("0x1")), results("0x2"), timeout_seconds=60) as setting:
        stuck = asyncio.create_task(setting.pool.request("m", []))
        await setting.nodes[0].wait_for_calls(1)
        setting.clock.advance(1.5)
        assert await setting.pool.request("m", []) == "0x2"
        gate.set()
        assert await stuck == "0x1"
        assert await setting.pool.request("m", []) == "0x1"


async def test_a_cancelled_call_is_not_held_against_the_upstream() -> None:
    async with pool_of(stalls, timeout_seconds=60) as setting:
        for count in range(1, FAILURES_BEFORE_OPENING + 2):
            call = asyncio.create_task(setting.pool.request("m", []))
            await setting.nodes[0].wait_for_calls(count)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        assert setting.pool.members[0].in_rotation
        assert setting.pool.members[0].in_flight == 0
