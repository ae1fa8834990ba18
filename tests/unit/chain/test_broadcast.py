"""Signed transactions: given to several upstreams, reported as sent if any of them has them."""

import asyncio
import base64
from typing import Any

import msgspec
import pytest
from eth_account import Account
from solders.signature import Signature

from capstan.chain.errors import DeadlinePassed, EveryUpstreamFailed, NodeError
from capstan.chain.pool import Repeat
from tests.support.faulty_node import (
    Answer,
    Setting,
    by_method,
    errors,
    held,
    pool_of,
    resets,
    results,
    stalls,
    text,
)

SIGNED = Account.sign_transaction(
    {"nonce": 0, "to": "0x" + "22" * 20, "value": 1, "gas": 21_000, "gasPrice": 1, "chainId": 31337}, "0x" + "11" * 32
)
SEND = "eth_sendRawTransaction"
SEND_PARAMS = msgspec.json.encode(["0x" + SIGNED.raw_transaction.hex()])
HASH = msgspec.json.encode("0x" + SIGNED.hash.hex())
BROKEN = text("<html>")
REJECTED = errors(-32000, "insufficient funds for gas * price + value")


async def submit(setting: Setting, method: str = SEND, repeat: Repeat = Repeat.ELSEWHERE) -> bytes:
    return bytes(await setting.pool.call(method, SEND_PARAMS, repeat=repeat))


async def test_a_lost_answer_to_a_transaction_goes_to_another_upstream_only() -> None:
    async with pool_of(resets, results("0xabc")) as setting:
        assert await submit(setting) == b'"0xabc"'
        assert setting.counts == [1, 1]


async def test_already_known_after_a_lost_answer_is_success_with_the_hash() -> None:
    async with pool_of(resets, errors(-32000, "already known")) as setting:
        assert await submit(setting) == HASH


async def test_a_used_nonce_after_a_lost_answer_is_success_if_the_transaction_is_there() -> None:
    used = {"error": {"code": -32000, "message": "nonce too low"}}
    async with pool_of(resets, by_method({SEND: used, "eth_getTransactionByHash": {"hash": "0x1"}})) as setting:
        assert await submit(setting) == HASH
        assert setting.nodes[1].calls[1]["params"] == [msgspec.json.decode(HASH)]


async def test_a_nonce_used_by_another_transaction_stays_an_error() -> None:
    used = {"error": {"code": -32000, "message": "nonce too low"}}
    async with pool_of(resets, by_method({SEND: used, "eth_getTransactionByHash": None})) as setting:
        with pytest.raises(NodeError, match="nonce too low"):
            await submit(setting)


async def test_a_lost_answer_without_another_upstream_is_reported_with_caution() -> None:
    async with pool_of(resets) as setting:
        with pytest.raises(EveryUpstreamFailed, match="may have taken effect"):
            await submit(setting)
        assert setting.counts == [1]
    async with pool_of(stalls, timeout_seconds=0.1) as setting:
        with pytest.raises(DeadlinePassed, match="may have taken effect"):
            await submit(setting)


async def test_a_transaction_that_was_not_delivered_is_reported_without_caution() -> None:
    async with pool_of(errors(-32000, "x", status=429)) as setting:
        with pytest.raises(EveryUpstreamFailed) as caught:
            await submit(setting)
    assert "may have taken effect" not in caught.value.message


@pytest.mark.parametrize("message", ["already known", "ALREADY_EXISTS: already known", "Known transaction: 0x12"])
async def test_already_known_is_success_with_the_hash(message: str) -> None:
    async with pool_of(errors(-32000, message)) as setting:
        assert await submit(setting) == HASH
    async with pool_of(errors(-32000, "x", status=429), errors(-32000, message)) as setting:
        assert await submit(setting) == HASH


async def test_a_transaction_goes_to_several_upstreams_but_not_to_all() -> None:
    async with pool_of(*[results("0xabc")] * 5) as setting:
        assert await submit(setting) == b'"0xabc"'
        for node in setting.nodes[:3]:
            await node.wait_for_calls(1)
        assert setting.counts == [1, 1, 1, 0, 0]
    async with pool_of(*[results("0xabc")] * 3, broadcast=1) as setting:
        await submit(setting)
        assert setting.counts == [1, 0, 0]


async def test_the_first_success_is_the_answer_and_the_slow_upstream_still_gets_the_transaction() -> None:
    gate = asyncio.Event()
    async with pool_of(held(gate, results("0xslow")), results("0xabc")) as setting:
        assert await submit(setting) == b'"0xabc"'
        assert setting.pool.members[0].in_flight == 1
        gate.set()
        while setting.pool.members[0].in_flight:
            await asyncio.sleep(0.005)
        assert setting.pool.members[0].outcomes == {"ok": 1}


@pytest.mark.parametrize("failure", [REJECTED, BROKEN, resets, errors(-32603, "Internal error"), stalls])
async def test_the_hash_is_returned_although_others_fail(failure: Answer) -> None:
    async with pool_of(failure, results("0xabc"), failure) as setting:
        assert await submit(setting) == b'"0xabc"'


async def test_when_no_node_takes_it_the_most_telling_error_is_returned() -> None:
    used = by_method({SEND: {"error": {"code": -32000, "message": "nonce too low"}}, "eth_getTransactionByHash": None})
    async with pool_of(used, REJECTED, errors(-32603, "Internal error")) as setting:
        with pytest.raises(NodeError, match="insufficient funds"):
            await submit(setting)


async def test_the_most_telling_error_is_returned_whichever_comes_first() -> None:
    used = by_method({SEND: {"error": {"code": -32000, "message": "nonce too low"}}, "eth_getTransactionByHash": None})
    gate = asyncio.Event()
    async with pool_of(used, held(gate, REJECTED)) as setting:
        sending = asyncio.create_task(submit(setting))
        await setting.nodes[0].wait_for_calls(2)
        while setting.pool.members[0].in_flight:
            await asyncio.sleep(0.005)
        gate.set()
        with pytest.raises(NodeError, match="insufficient funds"):
            await sending


async def test_a_rejection_does_not_wait_long_for_an_upstream_that_stalls() -> None:
    async with pool_of(REJECTED, stalls, timeout_seconds=60, real_time=True) as setting, asyncio.timeout(30):
        with pytest.raises(NodeError, match="insufficient funds"):
            await submit(setting)


async def test_when_the_first_upstreams_fail_the_others_are_given_the_transaction() -> None:
    async with pool_of(BROKEN, BROKEN, BROKEN, results("0xabc")) as setting:
        assert await submit(setting) == b'"0xabc"'
        assert setting.counts == [1, 1, 1, 1]


async def test_upstreams_out_of_rotation_are_spared_as_long_as_there_are_others() -> None:
    async with pool_of(BROKEN, results("0xabc")) as setting:
        for _ in range(3):
            await setting.pool.request("m", [])
        assert not setting.pool.members[0].in_rotation
        setting.nodes[0].calls.clear()
        await submit(setting)
        assert setting.counts[0] == 0


async def test_sendings_that_go_on_end_with_the_pool() -> None:
    async with pool_of(stalls, results("0xabc"), timeout_seconds=60) as setting:
        await submit(setting)
        assert setting.pool.members[0].in_flight == 1
        await setting.pool.close()
        assert setting.pool.members[0].in_flight == 0


async def test_a_private_transaction_is_not_spread() -> None:
    async with pool_of(*[results("0xabc")] * 3) as setting:
        await submit(setting, "eth_sendPrivateTransaction")
        assert setting.counts == [1, 0, 0]


# --- Solana

SIGNATURE_BYTES = bytes(range(1, 65))
SIGNATURE = str(Signature(SIGNATURE_BYTES))
PROCESSED = errors(-32002, "Transaction simulation failed: This transaction has already been processed")


def solana_params(raw: bytes, encoding: str = "base64") -> bytes:
    return msgspec.json.encode([base64.b64encode(raw).decode(), {"encoding": encoding}])


async def send_to_solana(setting: Setting, params: bytes) -> Any:
    result = await setting.pool.call("sendTransaction", params, repeat=Repeat.ELSEWHERE)
    return msgspec.json.decode(result)


async def test_on_solana_a_transaction_that_was_processed_already_is_success_with_its_signature() -> None:
    params = solana_params(b"\x01" + SIGNATURE_BYTES + b"message")
    async with pool_of(resets, PROCESSED, family="solana") as setting:
        assert await send_to_solana(setting, params) == SIGNATURE


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x02" + SIGNATURE_BYTES])
async def test_on_solana_an_unreadable_transaction_leaves_the_nodes_error(raw: bytes) -> None:
    async with pool_of(PROCESSED, family="solana") as setting:
        with pytest.raises(NodeError, match="already been processed"):
            await send_to_solana(setting, solana_params(raw))
