"""Reads that are sent without a task: the reply, the record and the cache are those of the ordinary way."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Raw

from capstan.core.errors import UpstreamError
from capstan.rpc.cache.gateway import Plan
from capstan.rpc.errands import Errand
from capstan.rpc.models import RpcReply
from capstan.rpc.preparing import PreparedRead
from tests.support.faulty_node import errors, held, results, text
from tests.support.rpc_gateway import BOTH, Gateway, call, gateway

BALANCE = call("eth_getBalance", "0x" + "11" * 20, "latest", id=7)


class Asker(Errand):
    """Wants the reply to one body, and carries on as the fast path does."""

    def __init__(self, tested: Gateway, body: Any) -> None:
        prepared = tested.service.prepare(tested.network, json.dumps(body).encode())
        assert isinstance(prepared, PreparedRead)
        plan = tested.service.look(BOTH, tested.network, prepared)
        assert isinstance(plan, Plan)
        super().__init__(BOTH, tested.network, prepared, plan, asyncio.get_running_loop().time())
        self.tested = tested
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.carried_on = False
        self.task: asyncio.Task[None] | None = None

    def send(self) -> bool:
        return self.tested.service.begin(self)

    def answered(self, result: Raw) -> None:
        self.reply.set_result(json.loads(self.tested.service.finish(self, result, 0.001)))

    def carry_on(self) -> None:
        self.carried_on = True
        self.task = asyncio.create_task(self._carry_on())

    async def _carry_on(self) -> None:
        try:
            reply: RpcReply = await self.tested.service.answer(
                BOTH,
                self.tested.network,
                self.read,
                refund=self.tested.refund,
                request_id="req_1",
                plan=self.plan,
                errand=self,
            )
        except Exception as error:
            self.reply.set_exception(error)
        else:
            answer = json.loads(reply.body)
            self.reply.set_result(answer.get("result", answer))


async def test_a_result_is_replied_recorded_and_kept() -> None:
    async with gateway(results("0x5"), head=100) as tested:
        asker = Asker(tested, BALANCE)
        assert asker.send()
        assert await asker.reply == "0x5"
        assert not asker.carried_on
        assert tested.usage.records == [("eth_getBalance", 2, False, False)]
        again = tested.service.answer_now(BOTH, tested.network, asker.read, 0.0)
        assert again == b'{"jsonrpc":"2.0","id":7,"result":"0x5"}'
        assert len(tested.nodes[0].calls) == 1


async def test_an_error_of_the_node_is_passed_on_as_it_is() -> None:
    async with gateway(errors(3, "execution reverted", "0x08c379a0"), head=100) as tested:
        asker = Asker(tested, BALANCE)
        assert asker.send()
        assert (await asker.reply)["error"] == {"code": 3, "message": "execution reverted", "data": "0x08c379a0"}
        assert asker.carried_on
        assert tested.usage.records == [("eth_getBalance", 2, True, False)]
        assert tested.refunded == []


async def test_when_no_upstream_answers_the_units_are_given_back() -> None:
    async with gateway(text("<html>"), head=100) as tested:
        asker = Asker(tested, BALANCE)
        assert asker.send()
        with pytest.raises(UpstreamError, match="req_1"):
            await asker.reply
        assert tested.usage.records == [("eth_getBalance", 0, True, False)]
        assert tested.refunded == [2]
        assert len(tested.nodes[0].calls) == 1


async def test_those_who_ask_the_same_meanwhile_share_the_call() -> None:
    gate = asyncio.Event()
    async with gateway(held(gate, results("0x5")), head=100) as tested:
        first, second = Asker(tested, BALANCE), Asker(tested, BALANCE)
        assert first.send()
        assert not second.send(), "one of them leads"
        other = asyncio.create_task(tested.ask(BALANCE))
        await tested.nodes[0].wait_for_calls(1)
        await asyncio.sleep(0)
        gate.set()
        assert (await first.reply) == (await other)["result"] == "0x5"
        assert len(tested.nodes[0].calls) == 1
        assert sorted(tested.usage.records) == [
            ("eth_getBalance", 2, False, False),
            ("eth_getBalance", 2, False, True),
        ]


async def test_what_may_not_be_kept_is_sent_and_not_shared() -> None:
    async with gateway(results("0x5"), head=None) as tested:
        one, two = Asker(tested, BALANCE), Asker(tested, BALANCE)
        assert one.send()
        assert two.send()
        assert (await one.reply) == (await two.reply) == "0x5"
        assert len(tested.nodes[0].calls) == 2


async def test_what_is_abandoned_is_recorded_as_failed_and_leaves_nothing_behind() -> None:
    gate = asyncio.Event()
    async with gateway(held(gate, results("0x5")), head=100) as tested:
        asker = Asker(tested, BALANCE)
        assert asker.send()
        tested.service.abandon(asker)
        assert tested.usage.records == [("eth_getBalance", 2, True, False)]
        assert tested.network.pool.members[0].in_flight == 0
        gate.set()
        # Whoever asks now asks anew.
        assert (await tested.ask(BALANCE))["result"] == "0x5"
        assert not asker.reply.done()


async def test_after_a_mistake_of_ours_nobody_waits_for_what_is_lost() -> None:
    gate = asyncio.Event()
    async with gateway(held(gate, results("0x5")), head=100) as tested:
        asker = Asker(tested, BALANCE)
        assert asker.send()
        other = asyncio.create_task(tested.ask(BALANCE))
        await asyncio.sleep(0)
        # As the fast path does when `finish` raises.
        tested.service.drop(asker)
        gate.set()
        assert (await other)["result"] == "0x5"
        assert (await tested.ask(BALANCE))["result"] == "0x5"
