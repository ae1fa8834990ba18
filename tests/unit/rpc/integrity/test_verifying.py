"""A proxy that lies about a real chain is found out, and its answer reaches nobody."""

import asyncio
from typing import Any

import pytest

from capstan.chain.errors import EveryUpstreamFailed
from capstan.chain.models import Attempt
from tests.support.devnet import EvmDevnet
from tests.support.lying_node import Lie, honest
from tests.unit.rpc.integrity import lies
from tests.unit.rpc.integrity.chain import Guarded, guarded, verifying

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


class Questions:
    """What is asked of the chain: the last transfer of a token, its block, and all transfers up to the head."""

    def __init__(self, logs: list[dict[str, Any]]) -> None:
        self.log = logs[-1]
        self.number = self.log["blockNumber"]
        self.transaction = self.log["transactionHash"]
        self.filter = {"fromBlock": "0x0", "toBlock": "latest", "address": self.log["address"], "topics": [TRANSFER]}


@pytest.fixture
async def questions(evm_devnet: EvmDevnet) -> Questions:
    token = evm_devnet.deployment.tokens[0].address
    wanted = {"fromBlock": "0x0", "toBlock": "latest", "address": token, "topics": [TRANSFER]}
    logs = await evm_devnet.call_async("eth_getLogs", wanted)
    assert logs, "the deployment mints tokens"
    return Questions(logs)


LOG_LIES = {
    "all dropped": lies.without_logs,
    "one dropped": lies.without_one_log,
    "another amount": lies.with_other_amount,
    "ruled out by the bloom": lies.with_log_of_nobody,
    "one twice": lies.with_repeated_log,
    "of another transaction": lies.of_another_transaction,
}


@pytest.mark.parametrize("change", LOG_LIES.values(), ids=LOG_LIES.keys())
@pytest.mark.parametrize("known", [1000, 0], ids=["recent blocks", "old blocks"])
async def test_wrong_logs_are_refuted(evm_devnet: EvmDevnet, questions: Questions, change: Any, known: int) -> None:
    liar = lies.about("eth_getLogs", change)
    async with guarded(evm_devnet, liar, honest, honest, rules=verifying(), known=known) as tested:
        attempts: list[Attempt] = []
        answer = await tested.ask("eth_getLogs", questions.filter, attempts=attempts)
        assert answer == await evm_devnet.call_async(
            "eth_getLogs", {**questions.filter, "toBlock": hex(len(tested.view.hashes) - 1)}
        )
        assert tested.liars == ["node-0"]
        assert [(one.upstream, one.outcome) for one in attempts] == [("node-0", "refuted"), ("node-1", "ok")]
        assert tested.counted("proved", check="logs") == 1
        # From now on it is passed over.
        await tested.ask("eth_getLogs", questions.filter)
        assert tested.nodes[0].methods.count("eth_getLogs") == 1


async def test_a_liar_that_forges_headers_and_receipts_too_is_refuted(
    evm_devnet: EvmDevnet, questions: Questions
) -> None:
    """It drops the logs, and everything that shows them: the bloom, the receipts root, the receipts."""
    empty = "0x" + "00" * 256
    liar = lies.together(
        lies.about("eth_getLogs", lies.without_logs),
        lies.in_every_block(lies.rebuilt("logsBloom", empty)),
        lies.about("eth_getBlockReceipts", lambda _: []),
        lies.about("eth_getTransactionReceipt", lambda receipt: {**receipt, "logs": [], "logsBloom": empty}),
    )
    for known in (1000, 0):
        async with guarded(evm_devnet, liar, honest, honest, rules=verifying(), known=known) as tested:
            assert questions.log in await tested.ask("eth_getLogs", questions.filter)
            assert tested.liars == ["node-0"]


async def test_logs_by_block_hash_are_checked(evm_devnet: EvmDevnet, questions: Questions) -> None:
    liar = lies.about("eth_getLogs", lies.without_logs)
    async with guarded(evm_devnet, liar, honest, rules=verifying()) as tested:
        assert questions.log in await tested.ask("eth_getLogs", {"blockHash": questions.log["blockHash"]})
        assert tested.liars == ["node-0"]


BLOCK_LIES = {
    "gas": lies.with_field("gasUsed", "0x5208"),
    "time": lies.with_field("timestamp", "0x1"),
    "state": lies.with_field("stateRoot", "0x" + "ab" * 32),
    "bloom": lies.with_field("logsBloom", "0x" + "ff" * 256),
    "hash": lies.with_field("hash", "0x" + "cd" * 32),
    "another number": lies.rebuilt("number", "0x1"),
    "forged": lies.rebuilt("miner", "0x" + "44" * 20),
    "a transaction": lies.other_value,
    "no transactions": lies.without_transactions,
    "mixed transactions": lies.of_mixed_transactions,
    "hashes for transactions": lies.of_hashes,
    "cut short": lies.cut_short(),
    "with a gap": lies.with_a_gap,
    "unknown type": lies.of_unknown_type,
}
# Nothing is proved by these, not even that they are wrong.
UNPROVABLE = ("cut short", "with a gap", "unknown type")


@pytest.mark.parametrize("change", BLOCK_LIES.values(), ids=BLOCK_LIES.keys())
@pytest.mark.parametrize("by_hash", [False, True], ids=["by number", "by hash"])
@pytest.mark.parametrize("known", [1000, 0], ids=["recent blocks", "old blocks"])
async def test_altered_blocks_are_not_passed_on(
    evm_devnet: EvmDevnet, questions: Questions, change: Any, by_hash: bool, known: int
) -> None:
    name = "eth_getBlockByHash" if by_hash else "eth_getBlockByNumber"
    argument = questions.log["blockHash"] if by_hash else questions.number
    async with guarded(
        evm_devnet, lies.in_every_block(change), honest, honest, rules=verifying(), known=known
    ) as tested:
        answer = await tested.ask(name, argument, True)
        assert answer == await evm_devnet.call_async(name, argument, True)
        # A recent block that is right in itself may just have left the chain: passed over for this call, not blamed.
        forged = change is BLOCK_LIES["forged"] and not by_hash and known
        unprovable = any(change is BLOCK_LIES[name] for name in UNPROVABLE)
        assert tested.liars == ([] if forged or unprovable else ["node-0"])
        assert tested.counted("proved", check="header") == 1


RECEIPT_LIES = {
    "failed": lies.failed,
    "no logs": lambda receipt: {**receipt, "logs": []},
    "no logs, no bloom": lambda receipt: {**receipt, "logs": [], "logsBloom": "0x" + "00" * 256},
    "gas": lambda receipt: {**receipt, "gasUsed": "0x1"},
    "block number": lambda receipt: {**receipt, "blockNumber": "0x1"},
    "block that nobody has": lambda receipt: {**receipt, "blockHash": "0x" + "ee" * 32},
    "another transaction": lambda receipt: {**receipt, "transactionHash": "0x" + "ee" * 32},
    "not a receipt": lambda receipt: {"transactionHash": receipt["transactionHash"]},
    "unknown type": lies.unknown,
}


@pytest.mark.parametrize("change", RECEIPT_LIES.values(), ids=RECEIPT_LIES.keys())
async def test_altered_receipts_are_not_passed_on(evm_devnet: EvmDevnet, questions: Questions, change: Any) -> None:
    liar = lies.about("eth_getTransactionReceipt", change)
    async with guarded(evm_devnet, liar, honest, honest, rules=verifying()) as tested:
        answer = await tested.ask("eth_getTransactionReceipt", questions.transaction)
        assert answer == await evm_devnet.call_async("eth_getTransactionReceipt", questions.transaction)
        assert tested.liars == ["node-0"]


async def test_what_is_true_is_passed_on_as_it_came(evm_devnet: EvmDevnet, questions: Questions) -> None:
    async with guarded(evm_devnet, honest, honest, rules=verifying(), known=0) as tested:
        for method, params in (
            ("eth_getBlockByNumber", [questions.number, False]),
            ("eth_getBlockByNumber", ["0x0", True]),
            ("eth_getBlockByNumber", ["earliest", False]),
            ("eth_getBlockByHash", [questions.log["blockHash"], True]),
            ("eth_getBlockByHash", ["0x" + "00" * 32, True]),
            ("eth_getTransactionReceipt", [questions.transaction]),
            ("eth_getTransactionReceipt", ["0x" + "00" * 32]),
            ("eth_getLogs", [{"fromBlock": "0x0", "toBlock": questions.number}]),
            ("eth_getLogs", [{"fromBlock": "0x1", "toBlock": questions.number, "address": lies.NOBODY}]),
        ):
            assert await tested.ask(method, *params) == await evm_devnet.call_async(method, *params), (method, params)
        assert tested.liars == []
        assert tested.counted("refuted", check="header") == 0


async def test_a_block_that_the_chain_has_is_not_said_to_be_absent(evm_devnet: EvmDevnet) -> None:
    liar = lies.about("eth_getBlockByNumber", lambda _: None)
    async with guarded(evm_devnet, liar, honest, rules=verifying()) as tested:
        assert (await tested.ask("eth_getBlockByNumber", "0x1", False))["number"] == "0x1"
        assert tested.liars == []


async def test_only_liars_is_an_error_and_not_an_answer(evm_devnet: EvmDevnet, questions: Questions) -> None:
    liar = lies.about("eth_getLogs", lies.without_logs)
    async with guarded(evm_devnet, liar, liar, rules=verifying()) as tested:
        with pytest.raises(EveryUpstreamFailed, match="passes the checks"):
            await tested.ask("eth_getLogs", questions.filter)
        assert tested.liars == ["node-0", "node-1"]


async def test_a_single_upstream_is_held_to_what_its_blocks_prove(evm_devnet: EvmDevnet, questions: Questions) -> None:
    async with guarded(evm_devnet, lies.about("eth_getLogs", lies.with_other_amount), rules=verifying()) as tested:
        with pytest.raises(EveryUpstreamFailed):
            await tested.ask("eth_getLogs", questions.filter)
        tested.nodes[0].lie = honest
        # It is the only one, so it is asked although it is not believed; and its answer is checked as before.
        assert questions.log in await tested.ask("eth_getLogs", questions.filter)


WEAK: dict[str, tuple[Any, Lie, bool]] = {
    "bloom: a log that it rules out": (("bloom",), lies.about("eth_getLogs", lies.with_log_of_nobody), True),
    "bloom: another amount": (("bloom",), lies.about("eth_getLogs", lies.with_other_amount), False),
    "no receipts: all dropped": (("header", "bloom"), lies.about("eth_getLogs", lies.without_logs), False),
    "header only: out of order": (("header",), lies.about("eth_getLogs", lambda logs: logs[::-1] * 2), True),
}


@pytest.mark.parametrize(("proofs", "liar", "caught"), WEAK.values(), ids=WEAK.keys())
async def test_chains_that_prove_less_are_checked_for_less_and_that_is_counted(
    evm_devnet: EvmDevnet, questions: Questions, proofs: Any, liar: Lie, caught: bool
) -> None:
    async with guarded(evm_devnet, liar, honest, rules=verifying(*proofs)) as tested:
        await tested.ask("eth_getLogs", questions.filter)
        assert tested.liars == (["node-0"] if caught else [])
        assert tested.counted("unproved", check="logs") == 1


async def test_a_node_without_block_receipts_is_asked_for_each_and_remembered(
    evm_devnet: EvmDevnet, questions: Questions
) -> None:
    async with guarded(evm_devnet, honest, rules=verifying()) as tested:
        assert questions.log in await tested.ask("eth_getLogs", questions.filter)
        assert tested.nodes[0].methods.count("eth_getTransactionReceipt") > 1
        before = tested.nodes[0].methods.count("eth_getBlockReceipts")
        await tested.ask("eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest"})
        assert tested.nodes[0].methods.count("eth_getBlockReceipts") == before
        assert tested.liars == []


BLOCK_RECEIPT_LIES = {
    "none": lambda _: [],
    "one failed": lambda receipts: [*receipts[:-1], lies.failed(receipts[-1])],
    "one dropped": lambda receipts: receipts[:-1],
    "another transaction": lambda receipts: [
        *receipts[:-1],
        {
            **receipts[-1],
            "transactionHash": "0x" + "12" * 32,
            "logs": lies.of_another_transaction(receipts[-1]["logs"]),
        },
    ],
    "unknown type": lambda receipts: [lies.unknown(receipt) for receipt in receipts],
    "absent": lambda _: None,
}
# Not proved to be wrong.
BLAMELESS = ("unknown type", "absent")


@pytest.mark.parametrize("change", BLOCK_RECEIPT_LIES.values(), ids=BLOCK_RECEIPT_LIES.keys())
async def test_wrong_receipts_of_a_block_are_not_passed_on(
    evm_devnet: EvmDevnet, questions: Questions, change: Any
) -> None:
    liar = lies.about("eth_getBlockReceipts", change)
    async with guarded(evm_devnet, liar, honest, honest, rules=verifying()) as tested:
        for node in tested.nodes:
            node.has_block_receipts = True
        true = await tested.nodes[1].block_receipts(questions.number)
        assert await tested.ask("eth_getBlockReceipts", questions.number) == true
        blameless = any(change is BLOCK_RECEIPT_LIES[name] for name in BLAMELESS)
        assert tested.liars == ([] if blameless else ["node-0"])
        assert await tested.ask("eth_getBlockReceipts", questions.log["blockHash"]) == true


async def test_logs_are_proved_by_receipts_whoever_gives_them(evm_devnet: EvmDevnet, questions: Questions) -> None:
    """The liar is honest about logs, and lies about the receipts that others are to be checked with."""
    liar = lies.about("eth_getBlockReceipts", lambda receipts: [lies.failed(receipt) for receipt in receipts])
    async with guarded(evm_devnet, honest, liar, honest, rules=verifying()) as tested:
        for node in tested.nodes:
            node.has_block_receipts = True
        assert questions.log in await tested.ask("eth_getLogs", questions.filter)
        assert tested.liars == ["node-1"]


async def test_pending_blocks_go_unchecked_and_are_counted(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, rules=verifying()) as tested:
        assert (await tested.ask("eth_getBlockByNumber", "pending", False))["parentHash"]
        assert tested.counted("unproved", check="pending") == 1


async def test_checks_end_with_the_deadline(evm_devnet: EvmDevnet, questions: Questions) -> None:
    async with guarded(evm_devnet, honest, honest, rules=verifying()) as tested:
        with pytest.raises(Exception, match=r"in time|failed|passes the checks"):
            async with asyncio.timeout(30):
                await tested.ask("eth_getLogs", questions.filter, timeout=0.02)


async def test_an_upstream_on_another_branch_is_passed_over_and_not_blamed(
    evm_devnet: EvmDevnet, questions: Questions
) -> None:
    """It has other blocks, and the logs of those. As long as they are not final that may be honest."""
    other = lies.together(
        lies.about("eth_getLogs", lies.without_logs), lies.in_every_block(lies.rebuilt("miner", "0x" + "44" * 20))
    )
    async with guarded(evm_devnet, other, honest, rules=verifying()) as tested:
        tested.view.finalized_number = 0
        assert questions.log in await tested.ask("eth_getLogs", questions.filter)
        assert tested.liars == []
    async with guarded(evm_devnet, lies.about("eth_getLogs", lies.without_logs), honest, rules=verifying()) as tested:
        tested.view.finalized_number = 0
        assert questions.log in await tested.ask("eth_getLogs", questions.filter)
        # This one has the very blocks.
        assert tested.liars == ["node-0"]


async def test_logs_beyond_the_head_are_believed_when_the_head_is_there(
    evm_devnet: EvmDevnet, questions: Questions
) -> None:
    async def follow(tested: Guarded) -> None:
        latest = int(await evm_devnet.call_async("eth_blockNumber"), 16)
        for number in range(len(tested.view.hashes), latest + 1):
            block = await evm_devnet.call_async("eth_getBlockByNumber", hex(number), False)
            tested.view.hashes.append(block["hash"])
        tested.view.latest_number = latest

    def in_the_next_block(logs: list[Any]) -> list[Any]:
        return [{**questions.log, "blockNumber": hex(head + 1)}]

    async with guarded(evm_devnet, lies.about("eth_getLogs", in_the_next_block), honest, rules=verifying()) as tested:
        head = len(tested.view.hashes) - 1
        beyond = {"fromBlock": hex(head + 1), "toBlock": hex(head + 1), "address": lies.NOBODY}
        asked = asyncio.create_task(tested.ask("eth_getLogs", beyond))
        await evm_devnet.mine_async()
        await follow(tested)
        assert await asked == []
        assert tested.liars == ["node-0"]


async def test_nothing_is_checked_before_the_head_is_known(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, rules=verifying()) as tested:
        tested.view.latest_number = None
        with pytest.raises(EveryUpstreamFailed, match=r"head of .* is not known yet"):
            await tested.ask("eth_getBlockByNumber", "0x1", False)


async def test_a_head_that_is_not_fresh_is_waited_for(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, rules=verifying()) as tested:
        tested.view.is_fresh = False
        asked = asyncio.create_task(tested.ask("eth_getBlockByNumber", "latest", False))
        await asyncio.sleep(0)
        tested.view.latest_number = 1
        tested.view.is_fresh = True
        assert (await asked)["number"] == "0x1"


async def test_a_chain_that_begins_anew_is_not_measured_by_the_old_one(
    evm_devnet: EvmDevnet, questions: Questions
) -> None:
    async with guarded(evm_devnet, honest, honest, rules=verifying(), known=0) as tested:
        await tested.ask("eth_getBlockByNumber", "0x1", False)
        asked = [len(node.calls) for node in tested.nodes]
        tested.guard.forget(tested.network.name)
        await tested.ask("eth_getBlockByNumber", "0x1", False)
        # The number of the block had to be settled again.
        assert sum(len(node.calls) for node in tested.nodes) == sum(asked) + 3


async def test_blocks_and_logs_that_nobody_else_has_yet_are_not_believed(
    evm_devnet: EvmDevnet, questions: Questions
) -> None:
    """A block far beyond the head, right in itself, and a log in it: only the liar vouches for them."""
    made_up = await evm_devnet.call_async("eth_getBlockByNumber", questions.number, False)
    far = 1_000_000
    block = lies.rebuilt("number", hex(far))(made_up)
    log = {**questions.log, "blockNumber": hex(far), "blockHash": block["hash"]}

    def liar(method: str, params: list[Any], result: Any) -> Any:
        if method == "eth_getLogs":
            return [log]
        return block if method.startswith("eth_getBlockBy") and params[0] in (hex(far), block["hash"]) else result

    async with guarded(evm_devnet, liar, honest, rules=verifying()) as tested:
        assert await tested.ask("eth_getBlockByNumber", hex(far), False) is None
        beyond = {"fromBlock": hex(far), "toBlock": hex(far), "address": questions.log["address"]}
        assert await tested.ask("eth_getLogs", beyond) == []
