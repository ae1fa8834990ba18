"""Batches, notifications, and what each request is charged."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from capstan.core.errors import UpstreamError
from capstan.rpc.forwarding import Asking, Forwarder
from capstan.rpc.preparing import RpcLimits
from tests.support.faulty_node import by_method, errors, results, stalls, text
from tests.support.rpc_gateway import call, gateway, notification

BROKEN = text("<html>")


async def test_a_batch_is_answered_in_its_order_item_by_item() -> None:
    reverted = {"error": {"code": 3, "message": "execution reverted"}}
    async with gateway(by_method({"eth_chainId": "0x7a69", "eth_call": reverted})) as tested:
        body = [
            call("eth_call", id="a"),
            5,
            notification("eth_chainId"),
            call("eth_chainId", id=None),
            call("no", id=2),
        ]
        answered = await tested.ask(body)
        assert [item["id"] for item in answered] == ["a", None, None, 2]
        assert answered[0]["error"]["code"] == 3
        assert answered[1]["error"]["code"] == -32600
        assert answered[2]["result"] == "0x7a69"
        assert answered[3]["error"]["code"] == -32601


async def test_a_batch_runs_at_once_but_within_its_bound() -> None:
    running, most = 0, 0

    async def counts(request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return await results("0x1")(request, asked)

    async with gateway(counts, limits=RpcLimits(batch_concurrency=4)) as tested:
        asked = [call("eth_getBalance", f"0x{number:040x}", "latest", id=number) for number in range(20)]
        answered = await tested.ask(asked)
        assert [item["id"] for item in answered] == list(range(20))
        assert most == 4


async def test_equal_calls_of_a_batch_are_asked_once() -> None:
    async with gateway() as tested:
        answered = await tested.ask([call("eth_chainId", id=number) for number in range(20)])
        assert [item["result"] for item in answered] == ["0x1"] * 20
        assert len(tested.nodes[0].calls) == 1


async def test_items_that_are_in_memory_are_told_among_those_that_are_asked_for() -> None:
    async with gateway(results("0x1"), head=100) as tested:
        known = call("eth_getBalance", f"0x{1:040x}", "latest", id="known")
        await tested.ask(known)
        tested.usage.records.clear()
        other = call("eth_getBalance", f"0x{2:040x}", "latest", id="other")
        silent = notification("eth_getBalance", f"0x{1:040x}", "latest")
        answered = await tested.ask([other, known, silent, known | {"id": None}, 7])
        assert [item["id"] for item in answered] == ["other", "known", None, None]
        assert [item.get("result") for item in answered] == ["0x1", "0x1", "0x1", None]
        assert len(tested.nodes[0].calls) == 2
        assert sorted(tested.usage.records) == [
            ("eth_getBalance", 2, False, False),
            ("eth_getBalance", 2, False, True),
            ("eth_getBalance", 2, False, True),
        ]


async def test_a_batch_whose_answers_are_too_large_stops_asking() -> None:
    limits = RpcLimits(batch_concurrency=1, max_batch_reply_bytes=1_000)
    async with gateway(results("0x" + "00" * 400), limits=limits) as tested:
        answered = await tested.ask([call("eth_call", id=number) for number in range(5)])
        assert ["result" in item for item in answered] == [True, True, False, False, False]
        assert answered[4]["error"]["code"] == -32603
        assert len(tested.nodes[0].calls) == 2


@pytest.mark.parametrize(
    "body",
    [
        notification("eth_chainId"),
        notification("eth_nonsense"),
        notification("eth_chainId") | {"params": 5},
        [notification("eth_chainId"), notification("eth_call")],
    ],
)
async def test_notifications_alone_are_answered_with_nothing(body: Any) -> None:
    async with gateway() as tested:
        reply = await tested.send(json.dumps(body).encode())
        assert (reply.status, reply.body, reply.headers) == (204, b"", ())
        assert not tested.nodes[0].calls


async def test_a_notification_that_submits_is_passed_on() -> None:
    async with gateway() as tested:
        reply = await tested.send(json.dumps([notification("eth_sendRawTransaction", "0x12")]).encode())
        assert reply.status == 204
        assert tested.nodes[0].methods == ["eth_sendRawTransaction"]


async def test_the_failure_of_a_notification_in_a_batch_is_silent() -> None:
    async with gateway(BROKEN) as tested:
        body = [notification("eth_sendRawTransaction", "0x12"), call("eth_accounts")]
        assert await tested.ask(body) == [{"jsonrpc": "2.0", "id": 1, "result": []}]


async def test_a_fault_of_ours_is_an_error_of_its_item_and_refunded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as tested:
        ask = Forwarder.ask

        async def breaks(self: Forwarder, asking: Asking) -> Any:
            if asking.method == "eth_call":
                raise TypeError("the password is hunter2")
            return await ask(self, asking)

        monkeypatch.setattr(Forwarder, "ask", breaks)
        body = [call("eth_chainId", id=1), call("eth_call", id=2), notification("eth_call"), call("eth_chainId", id=3)]
        answered = await tested.ask(body)
        assert [item.get("result") for item in answered] == ["0x1", None, "0x1"]
        assert answered[1]["id"] == 2
        assert answered[1]["error"]["code"] == -32603
        assert "req_1" in answered[1]["error"]["message"]
        assert "hunter2" not in answered[1]["error"]["message"]
        assert tested.refunded == [3]


# --- charges


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (call("eth_chainId"), (1, 0)),
        (call("eth_call"), (1, 3)),
        (call("eth_nonsense"), (1, 2)),
        ([call("eth_call"), call("eth_blockNumber"), 5, notification("eth_call")], (4, 7)),
        (call("eth_call", {}, "0x1"), (1, 30)),
        (call("eth_call", {}, hex(1_000 - 128)), (1, 3)),
        (call("eth_getStorageAt", "0x", "0x0", "0x1"), (1, 20)),
        (call("eth_getBalance", "0x", "earliest"), (1, 20)),
        (call("eth_getBalance", "0x", "latest"), (1, 2)),
    ],
)
async def test_a_request_is_charged_once_by_items_and_units(body: Any, expected: tuple[int, int]) -> None:
    async with gateway(head=1_000) as tested:
        await tested.ask(body)
        assert tested.charged == [expected]
        assert not tested.refunded


async def test_without_a_known_head_nothing_is_an_archive_read() -> None:
    async with gateway(head=None) as tested:
        await tested.ask(call("eth_call", {}, "0x1"))
        assert tested.charged == [(1, 3)]


async def test_failures_of_our_own_are_refunded() -> None:
    async with gateway(BROKEN, head=1_000) as tested:
        with pytest.raises(UpstreamError):
            await tested.ask(call("eth_call", {}, "0x1"))
        assert tested.refunded == [30]
        await tested.ask([call("eth_call"), call("eth_blockNumber"), call("eth_nonsense"), call("eth_accounts")])
        assert tested.refunded == [30, 4]


async def test_errors_of_the_node_are_not_refunded() -> None:
    async with gateway(errors(3, "execution reverted")) as tested:
        await tested.ask([call("eth_call")])
        assert not tested.refunded


async def test_a_caller_who_goes_away_stops_the_work() -> None:
    async with gateway(stalls, deadline_seconds=15.0, timeout_seconds=15.0) as tested:
        work = asyncio.create_task(tested.ask([call("eth_call", id=number) for number in range(3)]))
        await tested.nodes[0].wait_for_calls(3)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
