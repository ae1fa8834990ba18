"""The gateway: every row of its table of cases, single and in a batch.

Nodes are faulty ones or none here; calls that work are tested against a real node in tests/e2e/test_rpc_service.py.
"""

import json
from typing import Any

import pytest
from aiohttp import web

from capstan.core.errors import Forbidden, InvalidRequest, PayloadTooLarge, RateLimited, UpstreamError, UpstreamTimeout
from capstan.rpc.cache.gateway import Plan
from capstan.rpc.preparing import RpcLimits
from tests.support.faulty_node import errors, resets, results, stalls, text
from tests.support.rpc_gateway import BOTH, Key, call, gateway

BROKEN = text("<html>")


async def test_the_result_and_the_id_are_passed_on_byte_for_byte() -> None:
    async def oddly(_: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        start = json.dumps({"jsonrpc": "2.0", "id": asked["id"]})[:-1]
        return web.Response(text=start + ',"result": {"b" :1.50,"a":"\\u0041"}}')

    async with gateway(oddly) as tested:
        reply = await tested.send(b'{"jsonrpc":"2.0","method":"eth_call","params":[ 1.0 ],"id": "a\\u0062" }')
        assert reply.body == b'{"jsonrpc":"2.0","id":"a\\u0062","result":{"b" :1.50,"a":"\\u0041"}}'
        assert tested.nodes[0].calls[0]["params"] == [1.0]


# --- HTTP errors


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "empty"),
        (b"not json", "not valid JSON"),
        (b"42", "object"),
        (b'{"id":1}', "method"),
        (b'{"jsonrpc":"1.0","id":1,"method":"eth_chainId"}', "jsonrpc"),
        (b'{"jsonrpc":"2.0","id":{},"method":"eth_chainId"}', "id"),
        (b"[]", "batch is empty"),
        (b"[" + b",".join([b"{}"] * 101) + b"]", "more than 100 items"),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    ],
)
async def test_a_malformed_request_is_a_400_and_counts_as_one_request(body: bytes, named: str) -> None:
    async with gateway() as tested:
        with pytest.raises(InvalidRequest, match=named):
            await tested.send(body)
        assert tested.charged == [(1, 0)]


async def test_a_body_that_is_too_large_is_a_413() -> None:
    async with gateway(limits=RpcLimits(max_body_bytes=100)) as tested:
        with pytest.raises(PayloadTooLarge, match="100"):
            await tested.send(b" " * 101)


async def test_a_spent_limit_stops_everything() -> None:
    async with gateway() as tested:
        tested.refuse = RateLimited("Slow down.", retry_after=3)
        for body in (call("eth_chainId"), [call("eth_chainId")], {}):
            with pytest.raises(RateLimited):
                await tested.ask(body)
        assert not tested.nodes[0].calls


@pytest.mark.parametrize(
    ("method", "scopes", "missing"),
    [
        ("eth_blockNumber", ["rpc:write"], "rpc:read"),
        ("eth_sendRawTransaction", ["rpc:read"], "rpc:write"),
        ("eth_accounts", [], "rpc:read"),
        ("eth_subscribe", [], "rpc:read"),
        ("debug_traceCall", [], "rpc:read"),
    ],
)
async def test_a_missing_scope_is_a_403_or_an_error_of_the_item(method: str, scopes: list[str], missing: str) -> None:
    async with gateway() as tested:
        key = Key(*scopes)
        with pytest.raises(Forbidden, match=missing):
            await tested.ask(call(method), key)
        answered = await tested.ask([call(method, id="x"), call("eth_nonsense", id="y")], key)
        assert answered[0]["id"] == "x"
        assert answered[0]["error"]["code"] == -32003
        assert missing in answered[0]["error"]["message"]
        assert answered[1]["error"]["code"] == -32601
        assert not tested.nodes[0].calls


async def test_all_upstreams_failing_is_a_502_or_an_error_of_the_item() -> None:
    async with gateway(BROKEN, BROKEN) as tested:
        with pytest.raises(UpstreamError, match="Request id: req_1"):
            await tested.ask(call("eth_blockNumber"))
        [answered] = await tested.ask([call("eth_blockNumber")])
        assert answered["error"]["code"] == -32603
        assert "req_1" in answered["error"]["message"]


async def test_a_passed_deadline_is_a_504_or_an_error_of_the_item() -> None:
    async with gateway(stalls, deadline_seconds=0.2) as tested:
        with pytest.raises(UpstreamTimeout, match="Request id: req_1"):
            await tested.ask(call("eth_blockNumber"))
        [answered] = await tested.ask([call("eth_blockNumber")])
        assert answered["error"]["code"] == -32002


async def test_the_deadline_is_one_for_the_whole_batch() -> None:
    limits = RpcLimits(batch_concurrency=1)
    async with gateway(stalls, deadline_seconds=0.3, limits=limits) as tested:
        answered = await tested.ask([call("eth_blockNumber", id=number) for number in range(5)])
        assert {item["error"]["code"] for item in answered} == {-32002}
        assert len(tested.nodes[0].calls) == 1


# --- JSON-RPC errors


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("eth_nonsense", -32601),
        ("admin_peers", -32601),
        ("eth_sendTransaction", -32601),
        ("eth_subscribe", -32601),
        ("evm_mine", -32601),
        ("debug_traceTransaction", -32004),
        ("txpool_content", -32004),
    ],
)
async def test_methods_that_are_not_offered_reach_no_node(method: str, code: int) -> None:
    async with gateway() as tested:
        answered = await tested.ask(call(method, id="x"))
        assert answered["id"] == "x"
        assert answered["error"]["code"] == code
        assert (await tested.ask([call(method, id="x")])) == [answered]
        assert not tested.nodes[0].calls


@pytest.mark.parametrize("commitment", [{}, [], {"finalized": 1}, 5])
@pytest.mark.parametrize("batch", [False, True])
async def test_a_commitment_of_another_type_is_for_the_node_to_refuse(commitment: Any, batch: bool) -> None:
    asked = call("getBalance", "x", {"commitment": commitment})
    async with gateway(errors(-32602, "Invalid params"), family="solana") as tested:
        if not batch:
            prepared = tested.service.prepare(tested.network, json.dumps(asked).encode())
            assert isinstance(tested.service.answer_now(BOTH, tested.network, prepared, 0.0), Plan)
        answered = await tested.ask([asked] if batch else asked)
        assert (answered[0] if batch else answered)["error"]["code"] == -32602
        assert [each["params"] for each in tested.nodes[0].calls] == [asked["params"]]


@pytest.mark.parametrize("method", ["eth_call", "debug_traceTransaction", "accountSubscribe"])
async def test_on_solana_all_that_is_not_offered_is_unknown(method: str) -> None:
    async with gateway(family="solana") as tested:
        assert (await tested.ask(call(method)))["error"]["code"] == -32601


async def test_the_service_has_no_accounts() -> None:
    async with gateway() as tested:
        assert (await tested.ask(call("eth_accounts")))["result"] == []
        assert not tested.nodes[0].calls


async def test_params_that_are_no_array_are_invalid_params() -> None:
    async with gateway() as tested:
        body = call("eth_call") | {"params": {"to": "0x"}}
        assert (await tested.ask(body))["error"]["code"] == -32602
        assert (await tested.ask([body]))[0]["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("code", "message", "data"),
    [
        (3, "execution reverted: no", "0x08c379a0"),
        (-32000, "nonce too low", None),
        (-32602, "invalid argument 0", None),
        (-32000, "header not found", None),
    ],
)
async def test_an_error_of_the_node_is_passed_on_unchanged(code: int, message: str, data: str | None) -> None:
    async with gateway(errors(code, message, data)) as tested:
        expected = {"code": code, "message": message} | ({} if data is None else {"data": data})
        assert (await tested.ask(call("eth_call"))) == {"jsonrpc": "2.0", "id": 1, "error": expected}
        assert (await tested.ask([call("eth_call")])) == [{"jsonrpc": "2.0", "id": 1, "error": expected}]


async def test_the_error_of_a_solana_node_keeps_its_code() -> None:
    async with gateway(errors(-32002, "Transaction simulation failed", {"err": "x"}), family="solana") as tested:
        answered = await tested.ask(call("sendTransaction", "AQ=="))
        assert answered["error"] == {"code": -32002, "message": "Transaction simulation failed", "data": {"err": "x"}}


async def test_a_providers_refusal_is_not_shown_to_the_caller() -> None:
    async with gateway(errors(-32005, "project ID abc: daily request count exceeded")) as tested:
        with pytest.raises(UpstreamError) as caught:
            await tested.ask(call("eth_call"))
        assert "abc" not in caught.value.message


async def test_a_log_range_that_is_too_wide_is_refused_with_advice() -> None:
    async with gateway(results([]), head=5_000, max_log_range=100) as tested:
        answered = await tested.ask(call("eth_getLogs", {"fromBlock": "0x10"}))
        assert answered["error"]["code"] == -32602
        assert answered["error"]["data"] == {"maxRange": 100, "fromBlock": "0x10", "toBlock": hex(115)}
        assert not tested.nodes[0].calls
        fitting = call("eth_getLogs", {"fromBlock": "0x10", "toBlock": hex(115)})
        assert (await tested.ask(fitting))["result"] == []


async def test_a_log_range_that_the_node_refuses_has_the_same_form() -> None:
    async with gateway(errors(-32000, "exceed maximum block range: 5000")) as tested:
        answered = await tested.ask(call("eth_getLogs", {"fromBlock": "0x0", "toBlock": "0xffff"}))
        assert answered["error"]["code"] == -32602
        assert answered["error"]["data"] == {"maxRange": 5000, "fromBlock": "0x0", "toBlock": hex(4999)}


# --- what is repeated


async def test_a_read_is_repeated_and_a_transaction_only_elsewhere() -> None:
    async with gateway(resets, results("0x1")) as tested:
        await tested.ask(call("eth_blockNumber"))
        assert [len(node.calls) for node in tested.nodes] == [2, 1]
    async with gateway(resets, results("0x1")) as tested:
        await tested.ask(call("eth_sendRawTransaction", "0x12"))
        assert [len(node.calls) for node in tested.nodes] == [1, 1]
    async with gateway(resets, results("0x1"), dev_methods=True) as tested:
        with pytest.raises(UpstreamError, match="may have taken effect"):
            await tested.ask(call("evm_mine"))
        assert [len(node.calls) for node in tested.nodes] == [1, 0]
