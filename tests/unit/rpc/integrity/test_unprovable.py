"""Where a chain proves its blocks, an answer that proves nothing is believed only if nobody has a better one."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from capstan.chain.errors import EveryUpstreamFailed
from capstan.chain.models import Attempt
from tests.support.devnet import EvmDevnet
from tests.support.lying_node import Lie, LyingNode, honest
from tests.unit.rpc.integrity import lies
from tests.unit.rpc.integrity.chain import guarded, verifying

EMPTY_BLOOM = "0x" + "00" * 256
# Headers without a hash to check, and with nothing in their bloom.
HIDING = lies.in_every_block(lies.cut_short("logsBloom", EMPTY_BLOOM))
CUT = lies.in_every_block(lies.cut_short())
ODD_RECEIPTS = lies.together(
    lies.about("eth_getBlockReceipts", lambda receipts: [lies.unknown(receipt) for receipt in receipts]),
    lies.about("eth_getTransactionReceipt", lies.unknown),
)


@pytest.fixture
async def logs(evm_devnet: EvmDevnet) -> list[dict[str, Any]]:
    """All logs of a token."""
    token = evm_devnet.deployment.tokens[0].address
    found: list[dict[str, Any]] = await evm_devnet.call_async(
        "eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest", "address": token}
    )
    assert found, "the deployment mints tokens"
    return found


def filter_of(logs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"fromBlock": "0x0", "toBlock": logs[-1]["blockNumber"], "address": logs[-1]["address"]}


HIDDEN: dict[str, tuple[Lie, ...]] = {
    "the liar is the evidence": (honest, HIDING, honest),
    "of two": (honest, HIDING),
    "the liar is asked": (lies.together(HIDING, lies.about("eth_getLogs", lies.without_logs)), honest, honest),
    "each of two liars has the other's part": (lies.about("eth_getLogs", lies.without_logs), HIDING, honest),
}


@pytest.mark.parametrize("nodes", HIDDEN.values(), ids=HIDDEN.keys())
@pytest.mark.parametrize("known", [1000, 0], ids=["recent blocks", "old blocks"])
async def test_headers_that_prove_nothing_hide_no_logs_and_blame_nobody(
    evm_devnet: EvmDevnet, logs: list[dict[str, Any]], nodes: tuple[Lie, ...], known: int
) -> None:
    async with guarded(evm_devnet, *nodes, rules=verifying(), known=known) as tested:
        for _ in range(2):
            assert await tested.ask("eth_getLogs", filter_of(logs)) == logs
        honest_ones = {member.name for member, lie in zip(tested.members, nodes, strict=True) if lie is honest}
        assert not honest_ones & set(tested.liars)
        # Nor is anything kept that later answers would be measured by.
        tested.nodes[0].lie = lies.about("eth_getLogs", lies.without_logs)
        assert await tested.ask("eth_getLogs", {**filter_of(logs), "fromBlock": "0x1"}) == logs


async def test_receipts_that_prove_nothing_are_no_evidence(evm_devnet: EvmDevnet, logs: list[dict[str, Any]]) -> None:
    """One alters the logs, the next one gives receipts that cannot be held against it."""
    altered = lies.about("eth_getLogs", lies.with_other_amount)
    for has_block_receipts in (True, False):
        async with guarded(evm_devnet, altered, ODD_RECEIPTS, honest, rules=verifying()) as tested:
            for node in tested.nodes:
                node.has_block_receipts = has_block_receipts
            assert await tested.ask("eth_getLogs", filter_of(logs)) == logs
            assert tested.liars == ["node-0"]


async def test_another_block_is_no_evidence_of_transactions(evm_devnet: EvmDevnet, logs: list[dict[str, Any]]) -> None:
    """Where the list of hashes is wrong the transactions decide, and those must be of the block in question."""
    before = hex(int(logs[-1]["blockNumber"], 16) - 1)
    other = await evm_devnet.call_async("eth_getBlockByNumber", before, True)

    def elsewhere(method: str, params: list[Any], result: Any) -> Any:
        return other if method == "eth_getBlockByHash" and params[1] else result

    def misnamed(method: str, params: list[Any], result: Any) -> Any:
        return lies.of_hashes(result) if method == "eth_getBlockByHash" and not params[1] else result

    async with guarded(evm_devnet, elsewhere, misnamed, honest, rules=verifying()) as tested:
        for node in tested.nodes:
            node.has_block_receipts = True
        true = await tested.nodes[0].block_receipts(logs[-1]["blockNumber"])
        assert await tested.ask("eth_getBlockReceipts", logs[-1]["blockNumber"]) == true
        assert tested.liars == ["node-0"]


async def test_receipts_of_a_block_that_nobody_has_are_absent(evm_devnet: EvmDevnet) -> None:
    """None of the upstreams can be blamed for that, and the caller gets the answer that they all give."""

    async def absent(_: Any, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": None})

    async with guarded(evm_devnet, honest, honest, rules=verifying()) as tested:
        for node in tested.nodes:
            node.answer = absent
        assert await tested.ask("eth_getBlockReceipts", "0x" + "ee" * 32) is None
        assert await tested.ask("eth_getBlockReceipts", hex(len(tested.view.hashes))) is None
        assert tested.liars == []


async def test_doubt_about_one_block_does_not_hide_a_lie_about_another(
    evm_devnet: EvmDevnet, logs: list[dict[str, Any]]
) -> None:
    """Nobody can prove the receipts of the first block with logs; the liar has altered the last log."""
    # An approval, so that there is a later block with a log.
    approve = "0x095ea7b3" + lies.NOBODY[2:].rjust(64, "0") + "1".rjust(64, "0")
    owner = evm_devnet.deployment.accounts[0].address
    call = {"from": owner, "to": logs[0]["address"], "data": approve}
    transaction = await evm_devnet.call_async("eth_sendTransaction", call)
    await evm_devnet.mine_async()
    last = (await evm_devnet.call_async("eth_getTransactionReceipt", transaction))["blockNumber"]
    true = await evm_devnet.call_async("eth_getLogs", {"fromBlock": "0x0", "toBlock": last})
    first = true[0]["blockNumber"]
    assert first != last == true[-1]["blockNumber"]

    def odd(method: str, _: list[Any], result: Any) -> Any:
        of_first = method == "eth_getTransactionReceipt" and result["blockNumber"] == first
        return {**result, "type": "0x7f"} if of_first else result

    altered = lies.about("eth_getLogs", lies.with_other_amount)
    block = await evm_devnet.call_async("eth_getBlockByNumber", first, False)
    waited_for = 3 * len(block["transactions"])
    served, doubted = [], asyncio.Event()

    def doubt_first(node: LyingNode) -> None:
        """Have all upstreams give what is odd before any gives what refutes the liar."""
        passed_on = node.answer

        async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
            if call["method"] == "eth_getTransactionReceipt" and call["params"] == [transaction]:
                await asyncio.wait_for(doubted.wait(), 30)
            response = await passed_on(request, call)
            if call["method"] == "eth_getTransactionReceipt" and call["params"][0] in block["transactions"]:
                served.append(call)
                if len(served) == waited_for:
                    doubted.set()
            return response

        node.answer = answer

    async with guarded(evm_devnet, lies.together(odd, altered), odd, odd, rules=verifying()) as tested:
        for node in tested.nodes:
            doubt_first(node)
        assert await tested.ask("eth_getLogs", {"fromBlock": "0x0", "toBlock": last}) == true
        assert tested.liars == ["node-0"]
        assert tested.counted("unproved", check="logs") == 1


async def test_what_no_upstream_can_prove_is_passed_on_and_counted(
    evm_devnet: EvmDevnet, logs: list[dict[str, Any]]
) -> None:
    for nodes in ((CUT,), (CUT, CUT), (CUT, CUT, CUT)):
        for name, known in (("blockHash", 1000), ("blockNumber", 1000), ("blockNumber", 0)):
            method = "eth_getBlockByHash" if name == "blockHash" else "eth_getBlockByNumber"
            async with guarded(evm_devnet, *nodes, rules=verifying(), known=known) as tested:
                attempts: list[Attempt] = []
                answer = await tested.ask(method, logs[-1][name], True, attempts=attempts)
                assert answer["hash"] == logs[-1]["blockHash"]
                assert [one.outcome for one in attempts] == ["ok"] + ["refuted"] * (len(nodes) - 1)
                assert tested.liars == []
                assert tested.counted("proved", check="header") == 0
                assert tested.counted("unproved", check="header") >= 1


async def test_logs_of_receipts_that_no_upstream_can_prove_are_passed_on_and_counted(
    evm_devnet: EvmDevnet, logs: list[dict[str, Any]]
) -> None:
    async with guarded(evm_devnet, ODD_RECEIPTS, ODD_RECEIPTS, rules=verifying()) as tested:
        assert await tested.ask("eth_getLogs", filter_of(logs)) == logs
        assert tested.liars == []
        assert tested.counted("proved", check="logs") == 0
        assert tested.counted("unproved", check="logs") == 1


async def test_what_proves_nothing_is_not_believed_when_the_others_are_down(
    evm_devnet: EvmDevnet, logs: list[dict[str, Any]]
) -> None:
    async with guarded(evm_devnet, CUT, honest, rules=verifying()) as tested:
        await tested.nodes[1].stop()
        with pytest.raises(EveryUpstreamFailed, match="passes the checks"):
            await tested.ask("eth_getBlockByHash", logs[-1]["blockHash"], False)
        assert tested.liars == []


async def test_of_answers_that_cannot_be_proved_the_one_with_a_proved_header_is_given(
    evm_devnet: EvmDevnet, logs: list[dict[str, Any]]
) -> None:
    """As on a rollup, blocks have a transaction of a kind that is not known here; the liar alters the header too."""
    rollup = lies.in_every_block(lies.of_unknown_type)
    async with guarded(evm_devnet, lies.together(rollup, CUT), rollup, rollup, rules=verifying()) as tested:
        for method, name in (("eth_getBlockByHash", "blockHash"), ("eth_getBlockByNumber", "blockNumber")):
            answer = await tested.ask(method, logs[-1][name], True)
            true = await evm_devnet.call_async(method, logs[-1][name], True)
            assert answer == lies.of_unknown_type(true)
        assert tested.liars == []
        assert tested.counted("unproved", check="transactions") == 2


async def test_a_header_is_not_held_to_the_form_of_a_block(evm_devnet: EvmDevnet, logs: list[dict[str, Any]]) -> None:
    """A caller that asks for a header with an argument too many must not get an honest node blamed."""
    block = await evm_devnet.call_async("eth_getBlockByHash", logs[-1]["blockHash"], False)
    header = {key: value for key, value in block.items() if key not in ("transactions", "uncles", "withdrawals")}

    async with guarded(evm_devnet, honest, rules=verifying()) as tested:
        node = tested.nodes[0]
        passed_on = node.answer

        async def with_headers(request: Any, call: dict[str, Any]) -> Any:
            if call["method"].startswith("eth_getHeaderBy"):
                return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": header})
            return await passed_on(request, call)

        node.answer = with_headers
        assert await tested.ask("eth_getHeaderByHash", logs[-1]["blockHash"], True) == header
        assert tested.liars == []


async def test_a_true_block_of_another_number_is_no_voice(evm_devnet: EvmDevnet, logs: list[dict[str, Any]]) -> None:
    """Its header has the right hash; it is only not the block that was asked for."""
    other = await evm_devnet.call_async("eth_getBlockByNumber", "0x0", False)
    elsewhere = lies.about("eth_getBlockByNumber", lambda _: other)
    wanted = {**filter_of(logs), "fromBlock": "0x1"}
    async with guarded(evm_devnet, honest, elsewhere, rules=verifying(), known=0) as tested:
        assert await tested.ask("eth_getLogs", wanted) == logs
        assert tested.liars == ["node-1"]
