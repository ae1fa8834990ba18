"""Several upstreams, one answer: who agrees, who is outvoted, and what the caller is told when nobody is sure."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from capstan.chain.errors import EveryUpstreamFailed, NodeError
from capstan.chain.models import Attempt, Integrity, Quorum
from capstan.chain.trust import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Trust
from capstan.core.clock import ManualClock
from tests.support.devnet import EvmDevnet
from tests.support.lying_node import honest
from tests.unit.rpc.integrity import lies
from tests.unit.rpc.integrity.chain import Guarded, guarded, verifying

# Nobody sends anything to this address, in any test on the same chain.
NOBODY = "0x" + "7e57" * 10
RULE = Quorum(2, 3)


def voting(*methods: str, rule: Quorum = RULE) -> Integrity:
    return Integrity(quorum=dict.fromkeys(methods, rule))


rich = lies.about("eth_getBalance", lambda _: "0xffff")
poor = lies.about("eth_getBalance", lambda _: "0x1")


async def settled(tested: Guarded) -> None:
    """Wait for the late voices."""
    await asyncio.gather(*tested.guard._background)


async def test_the_answer_of_most_is_given_and_the_liar_is_outvoted(evm_devnet: EvmDevnet) -> None:
    owner = evm_devnet.deployment.accounts[0].address
    async with guarded(evm_devnet, rich, honest, honest, rules=voting("eth_getBalance")) as tested:
        attempts: list[Attempt] = []
        with capture_logs() as logged:
            answer = await tested.ask("eth_getBalance", owner, "latest", attempts=attempts)
        assert answer == await evm_devnet.call_async("eth_getBalance", owner, hex(len(tested.view.hashes) - 1))
        assert sorted((one.upstream, one.outcome) for one in attempts) == [
            ("node-0", "outvoted"),
            ("node-1", "agrees"),
            ("node-2", "agrees"),
        ]
        assert tested.liars == ["node-0"]
        assert tested.counted("disagreements", method="eth_getBalance") == 1
        (entry,) = [entry for entry in logged if entry["event"] == "integrity.disagreement"]
        assert sorted(entry["agreed"]) == ["node-1", "node-2"]
        assert entry["answers"]["node-0"] == '"0xffff"'
        assert entry["answers"]["node-1"] == f'"{answer}"'


async def test_a_liar_that_speaks_late_is_noticed_all_the_same(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, honest, rich, rules=voting("eth_getBalance")) as tested:
        gate = asyncio.Event()
        slow = tested.nodes[2].answer

        async def late(request: Any, call: Any) -> Any:
            await asyncio.wait_for(gate.wait(), 10)
            return await slow(request, call)

        tested.nodes[2].answer = late
        assert await tested.ask("eth_getBalance", NOBODY, "latest") == "0x0"
        assert tested.liars == []
        gate.set()
        await settled(tested)
        assert tested.liars == ["node-2"]
        assert tested.counted("disagreements", method="eth_getBalance") == 1


async def test_latest_is_one_block_for_all(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, honest, honest, rules=voting("eth_getBalance", "eth_call")) as tested:
        # Blocks that are mined meanwhile make no difference.
        head = len(tested.view.hashes) - 1
        await evm_devnet.mine_async()
        await tested.ask("eth_getBalance", NOBODY, "latest")
        await tested.ask("eth_getBalance", NOBODY)
        await tested.ask("eth_call", {"to": NOBODY})
        await settled(tested)
        named = [call["params"][-1] for node in tested.nodes for call in node.calls]
        assert named == [hex(head)] * len(named)
        assert len(named) == 9


async def test_upstreams_without_the_block_have_no_voice(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, honest, rich, rules=voting("eth_getBalance")) as tested:
        tested.members[2].note_head(0)
        assert await tested.ask("eth_getBalance", NOBODY, "latest") == "0x0"
        await settled(tested)
        assert tested.nodes[2].calls == []


async def test_latest_is_an_older_block_when_too_few_have_the_head(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, honest, honest, rules=voting("eth_getBalance")) as tested:
        head = len(tested.view.hashes) - 1
        for member in tested.members[:2]:
            member.note_head(head - 2)
        assert await tested.ask("eth_getBalance", NOBODY, "latest") == "0x0"
        assert {call["params"][1] for node in tested.nodes for call in node.calls} == {hex(head - 2)}


async def test_disagreement_without_a_majority_is_an_error_that_says_so(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, rich, poor, honest, rules=voting("eth_getBalance")) as tested:
        with pytest.raises(EveryUpstreamFailed, match="disagree about eth_getBalance"):
            await tested.ask("eth_getBalance", NOBODY, "latest")
        # Nobody knows who is right.
        assert tested.liars == []
        assert tested.counted("undecided", method="eth_getBalance") == 1


async def test_too_few_upstreams_is_an_error_that_says_so(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, honest, honest, rules=voting("eth_getBalance")) as tested:
        for node in tested.nodes[1:]:
            await node.stop()
        with pytest.raises(
            EveryUpstreamFailed, match=r"2 upstreams .* must agree on eth_getBalance, and only 1 answered"
        ):
            await tested.ask("eth_getBalance", NOBODY, "latest")


async def test_an_upstream_that_fails_is_replaced_by_the_next(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, honest, honest, honest, rules=voting("eth_getBalance")) as tested:
        await tested.nodes[0].stop()
        await tested.nodes[1].stop()
        assert await tested.ask("eth_getBalance", NOBODY, "latest") == "0x0"


async def test_a_revert_is_an_answer_that_upstreams_agree_on(evm_devnet: EvmDevnet) -> None:
    token = evm_devnet.deployment.tokens[0].address
    # transfer() of more than the caller has.
    data = "0xa9059cbb" + "11".rjust(64, "0") + "f" * 64
    made_up = lies.about("eth_call", lambda _: "0x01")
    async with guarded(evm_devnet, honest, honest, made_up, rules=voting("eth_call")) as tested:
        with pytest.raises(NodeError) as raised:
            await tested.ask("eth_call", {"from": NOBODY, "to": token, "data": data}, "latest", attempts=[])
        assert "revert" in raised.value.message.lower()


async def test_answers_are_compared_by_meaning_and_given_as_they_came(evm_devnet: EvmDevnet) -> None:
    def shuffled(block: dict[str, Any]) -> dict[str, Any]:
        changed = {key: block[key] for key in reversed(block)}
        return {**changed, "hash": block["hash"].upper().replace("0X", "0x"), "totalDifficulty": None}

    liar = lies.in_every_block(shuffled)
    async with guarded(evm_devnet, liar, honest, rules=voting("eth_getBlockByNumber", rule=Quorum(2, 2))) as tested:
        assert (await tested.ask("eth_getBlockByNumber", "0x1", False, attempts=[]))["number"] == "0x1"
        assert tested.liars == []


async def test_pending_reads_are_asked_once_and_counted_as_unproved(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, honest, honest, rules=voting("eth_getTransactionCount")) as tested:
        await tested.ask("eth_getTransactionCount", NOBODY, "pending")
        assert sum(len(node.calls) for node in tested.nodes) == 1
        assert tested.counted("unproved", check="pending") == 1


@pytest.mark.parametrize("tag", ["safe", "finalized"])
async def test_while_finality_is_unknown_nobody_is_believed_alone(evm_devnet: EvmDevnet, tag: str) -> None:
    async with guarded(evm_devnet, rich, honest, honest, rules=voting("eth_getBalance")) as tested:
        tested.view.safe_number = tested.view.finalized_number = None
        with pytest.raises(EveryUpstreamFailed, match=f"{tag} block is not known yet"):
            await tested.ask("eth_getBalance", NOBODY, tag)
        assert not any(node.calls for node in tested.nodes)


async def test_voices_that_cannot_be_proved_count_only_when_none_can(evm_devnet: EvmDevnet) -> None:
    cut = lies.in_every_block(lies.cut_short())
    rules = Integrity(quorum={"eth_getBlockByNumber": RULE}, verify=True, proofs=verifying().proofs)
    async with guarded(evm_devnet, cut, cut, honest, rules=rules) as tested:
        with pytest.raises(EveryUpstreamFailed, match="only 1 answered"):
            await tested.ask("eth_getBlockByNumber", "0x1", False)
    async with guarded(evm_devnet, cut, honest, honest, rules=rules) as tested:
        true = await evm_devnet.call_async("eth_getBlockByNumber", "0x1", False)
        assert await tested.ask("eth_getBlockByNumber", "0x1", False) == true
    async with guarded(evm_devnet, cut, cut, cut, rules=rules) as tested:
        assert "mixHash" not in await tested.ask("eth_getBlockByNumber", "0x1", False, attempts=[])
        assert tested.counted("unproved", check="header") >= 2


async def test_a_voice_must_pass_the_checks_too(evm_devnet: EvmDevnet) -> None:
    altered = lies.in_every_block(lies.with_field("gasUsed", "0x5208"))
    rules = Integrity(quorum={"eth_getBlockByNumber": RULE}, verify=True, proofs=verifying().proofs)
    async with guarded(evm_devnet, altered, altered, honest, rules=rules) as tested:
        # Two who tell the same lie are most of three.
        with pytest.raises(EveryUpstreamFailed, match="only 1 answered"):
            await tested.ask("eth_getBlockByNumber", "0x1", False)
        assert tested.liars == ["node-0", "node-1"]


async def test_a_distrusted_upstream_is_not_asked_while_there_are_enough_others(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, rich, honest, honest, rules=voting("eth_getBalance")) as tested:
        await tested.ask("eth_getBalance", NOBODY, "latest", attempts=[])
        asked = len(tested.nodes[0].calls)
        for _ in range(3):
            assert await tested.ask("eth_getBalance", NOBODY, "latest", attempts=[]) == "0x0"
        assert len(tested.nodes[0].calls) == asked
        # Reads that nobody checks go elsewhere too.
        assert await tested.network.pool.request("eth_chainId", []) == "0x7a69"
        assert len(tested.nodes[0].calls) == asked


async def test_the_vote_ends_with_the_deadline(evm_devnet: EvmDevnet) -> None:
    async with guarded(evm_devnet, honest, honest, honest, rules=voting("eth_getBalance")) as tested:
        for node in tested.nodes[:2]:

            async def stall(request: Any, call: Any) -> Any:
                await asyncio.sleep(120)

            node.answer = stall
        async with asyncio.timeout(30):
            with pytest.raises(EveryUpstreamFailed, match="only 1 answered"):
                await tested.ask("eth_getBalance", NOBODY, "latest", timeout=0.5)


def test_trust_comes_back_and_is_lost_for_longer_the_next_time() -> None:
    clock = ManualClock()
    trust = Trust(clock)
    assert not trust.lost()
    pause = FIRST_PAUSE_SECONDS
    for _ in range(8):
        assert trust.lose() == pytest.approx(pause)
        clock.advance(pause / 2)
        assert trust.lost()
        # An answer that was under way does not make it longer.
        assert trust.lose() == pytest.approx(pause / 2)
        clock.advance(pause / 2 + 0.001)
        assert not trust.lost()
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
    clock.advance(LONGEST_PAUSE_SECONDS + 1)
    assert trust.lose() == pytest.approx(FIRST_PAUSE_SECONDS)
    assert trust.lies == 17
