"""The gateway in front of a real node: what goes through it is what the node says."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from eth_account import Account

from capstan.chain.follower.followers import Followers
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.models import UpstreamSpec
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.core.decimals import parse_units
from capstan.devnet.evm import CHAIN_ID
from capstan.gas.models import GasPrices
from capstan.gas.service import GasPriceService
from tests.support.devnet import EvmDevnet
from tests.support.faulty_node import FaultyNode, network_spec, resets, stalls, text
from tests.support.rpc_gateway import call, gateway_to

NOBODY = "0x" + "11" * 20
# The accounts this file sends from; no other test may.
SENDER, SECOND_SENDER = 12, 13


def upstream(devnet: EvmDevnet, name: str = "node") -> UpstreamSpec:
    return UpstreamSpec(name=name, url=devnet.url)


async def ask_directly(devnet: EvmDevnet, body: bytes) -> bytes:
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session, session.post(devnet.url, data=body, headers=headers) as response:
        return await response.read()


async def signed_transfer(devnet: EvmDevnet, account: int) -> tuple[str, str]:
    """A raw transaction from the account, and its hash."""
    sender = devnet.deployment.accounts[account]
    fields = {
        "type": 2,
        "chainId": CHAIN_ID,
        "nonce": int(await devnet.call_async("eth_getTransactionCount", sender.address, "pending"), 16),
        "to": NOBODY,
        "value": 1,
        "gas": 21_000,
        "maxFeePerGas": 20 * 10**9,
        "maxPriorityFeePerGas": 10**9,
    }
    signed = Account.sign_transaction(fields, sender.private_key)
    return "0x" + signed.raw_transaction.hex(), "0x" + signed.hash.hex()


# Answers that do not change between asking the gateway and asking the node.
def stable_calls(devnet: EvmDevnet) -> list[dict[str, Any]]:
    token = devnet.deployment.tokens[0].address
    first = devnet.deployment.accounts[0].address
    supply = {"to": token, "data": "0x18160ddd"}
    block = devnet.call("eth_getBlockByNumber", "0x3", True)
    transaction = block["transactions"][0]["hash"] if block["transactions"] else "0x" + "0" * 64
    return [
        call("eth_chainId"),
        call("net_version"),
        call("net_listening"),
        call("web3_clientVersion"),
        call("web3_sha3", "0x1234"),
        call("eth_getBlockByNumber", "0x3", True),
        call("eth_getBlockByNumber", "0xffffff", False),
        call("eth_getBlockByHash", block["hash"], False),
        call("eth_getBlockTransactionCountByNumber", "0x3"),
        call("eth_getTransactionByHash", transaction),
        call("eth_getTransactionReceipt", transaction),
        call("eth_getTransactionByBlockNumberAndIndex", "0x3", "0x0"),
        call("eth_getBalance", first, "0x0"),
        call("eth_getCode", token, "latest"),
        call("eth_getStorageAt", token, "0x0", "0x3"),
        call("eth_getTransactionCount", first, "0x0"),
        call("eth_call", supply, "latest"),
        call("eth_call", {"to": token, "data": "0xdeadbeef"}, "latest"),
        call("eth_estimateGas", {"from": first, "to": NOBODY, "value": "0x1"}),
        call("eth_estimateGas", {"from": NOBODY, "to": token, "data": "0xdeadbeef"}),
        call("eth_getLogs", {"fromBlock": "0x0", "toBlock": "0x10"}),
        call("eth_getLogs", {"fromBlock": "0x0", "toBlock": "0x10", "address": NOBODY}),
        call("eth_feeHistory", "0x2", "0x5", [50]),
        call("eth_syncing"),
        call("eth_getBalance", "not an address", "latest"),
        call("eth_getBalance"),
        call("eth_sendRawTransaction", "0x00"),
        call("debug_traceTransaction", transaction, {"disableStack": True, "disableStorage": True}),
    ]


async def test_every_answer_is_byte_equal_to_the_nodes_own(evm_devnet: EvmDevnet) -> None:
    groups = frozenset({"debug"})
    calls = await asyncio.to_thread(stable_calls, evm_devnet)
    async with gateway_to(upstream(evm_devnet), method_groups=groups) as tested:
        for body in (json.dumps(asked).encode() for asked in calls):
            reply = await tested.send(body)
            assert reply.status == 200
            assert reply.body == await ask_directly(evm_devnet, body), body


async def test_a_batch_of_a_hundred_is_answered_like_the_single_calls(evm_devnet: EvmDevnet) -> None:
    accounts = [account.address for account in evm_devnet.deployment.accounts]
    batch = [call("eth_getBalance", accounts[place % len(accounts)], "0x0", id=place) for place in range(100)]
    async with gateway_to(upstream(evm_devnet)) as tested:
        answered = await tested.ask(batch)
    assert [item["id"] for item in answered] == list(range(100))
    assert {item["result"] for item in answered} == {hex(10_000 * 10**18)}
    assert tested.charged == [(100, 200)]


async def test_a_transaction_goes_through_and_lands(evm_devnet: EvmDevnet) -> None:
    raw, expected = await signed_transfer(evm_devnet, SENDER)
    async with gateway_to(upstream(evm_devnet)) as tested:
        assert (await tested.ask(call("eth_sendRawTransaction", raw)))["result"] == expected
        receipt = await asyncio.to_thread(evm_devnet.mine_transaction, expected)
        assert receipt["status"] == "0x1"
        # Sent again, by a client that missed the answer, it is no error: that very transaction is on the chain.
        assert (await tested.ask(call("eth_sendRawTransaction", raw)))["result"] == expected


async def test_a_transaction_whose_answer_was_lost_is_reported_as_sent(evm_devnet: EvmDevnet) -> None:
    """The first upstream delivers the transaction to the chain and loses the answer; the second is the same chain."""
    raw, expected = await signed_transfer(evm_devnet, SECOND_SENDER)

    async def delivers_and_resets(request: Any, asked: dict[str, Any]) -> Any:
        await ask_directly(evm_devnet, json.dumps(asked).encode())
        await evm_devnet.mine_async()
        return await resets(request, asked)

    async with (
        FaultyNode(delivers_and_resets) as lossy,
        gateway_to(lossy.spec("lossy"), upstream(evm_devnet)) as tested,
    ):
        assert (await tested.ask(call("eth_sendRawTransaction", raw)))["result"] == expected
        assert len(lossy.calls) == 1


@pytest.mark.parametrize("fault", [text("<html>"), resets, stalls], ids=["html", "reset", "stall"])
async def test_a_faulty_first_upstream_is_not_noticed_by_the_caller(evm_devnet: EvmDevnet, fault: Any) -> None:
    async with (
        FaultyNode(fault) as faulty,
        gateway_to(faulty.spec("faulty", timeout_seconds=0.3), upstream(evm_devnet)) as tested,
    ):
        for _ in range(6):
            assert (await tested.ask(call("eth_chainId")))["result"] == hex(CHAIN_ID)
        assert tested.refunded == []


async def test_development_methods_reach_a_development_chain(evm_devnet: EvmDevnet) -> None:
    async with gateway_to(upstream(evm_devnet), dev_methods=True) as tested:
        before = int((await tested.ask(call("eth_blockNumber")))["result"], 16)
        assert "error" not in await tested.ask(call("evm_mine"))
        assert int((await tested.ask(call("eth_blockNumber")))["result"], 16) > before


async def test_filters_work(evm_devnet: EvmDevnet) -> None:
    async with gateway_to(upstream(evm_devnet)) as tested:
        number = (await tested.ask(call("eth_newBlockFilter")))["result"]
        await evm_devnet.mine_async(2)
        changes = (await tested.ask(call("eth_getFilterChanges", number)))["result"]
        assert len(changes) >= 2
        assert (await tested.ask(call("eth_uninstallFilter", number)))["result"] is True


async def test_gas_prices_are_those_of_the_chain_and_follow_it(evm_devnet: EvmDevnet) -> None:
    clock = SystemClock()
    registry, heads = ChainRegistry(open_session(), clock), LatestHeads(clock)
    registry.replace([network_spec(upstream(evm_devnet))])
    (network,) = registry.networks()
    heads.sync([network])
    followers = Followers(heads, clock)
    followers.sync([network])
    service = GasPriceService(followers, heads, clock)

    async def at_least(number: int) -> GasPrices:
        async with asyncio.timeout(60):
            while (found := await service.prices(network)).block_number < number:
                await asyncio.sleep(0.1)
        return found

    try:
        for prices in ((first := await at_least(0)), await at_least(first.block_number + 2)):
            block = await evm_devnet.call_async("eth_getBlockByNumber", hex(prices.block_number), False)
            assert prices.chain == "ethereum"
            assert parse_units(prices.base_fee_gwei, 9) == int(block["baseFeePerGas"], 16)
            estimates = prices.estimates
            offers = [
                parse_units(each.max_fee_gwei, 9) for each in (estimates.slow, estimates.standard, estimates.fast)
            ]
            assert int(block["baseFeePerGas"], 16) < offers[0] <= offers[1] <= offers[2]
    finally:
        await service.close()
        await followers.close()
        await heads.close()
        await registry.close()
