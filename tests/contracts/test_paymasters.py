"""The verifying paymasters on the real chain, behind every entry point version."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from eth_abi.abi import decode, encode
from eth_account import Account
from eth_utils.crypto import keccak
from web3.exceptions import ContractLogicError

from capstan.devnet.artifacts import load_package_contract
from capstan.devnet.errors import NodeRpcError
from capstan.devnet.install import NodeProject
from tests.contracts.chain import ZERO_ADDRESS, Chain
from tests.contracts.operations import (
    FAR_FUTURE,
    NO_SIGNATURE,
    VERSIONS,
    Bench,
    Operation,
    digest_v06,
    digest_v07,
    personal_sign,
    random_operation,
    times,
)
from tests.support.devnet import wait_until

ETHER = 10**18
CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
SIG_FAILED = 1


@pytest.fixture(params=VERSIONS)
def bench(request: pytest.FixtureRequest, chain: Chain, node_project: NodeProject) -> Bench:
    return Bench(chain, node_project, request.param)


@pytest.fixture
def sponsored(bench: Bench) -> Operation:
    return bench.sponsor(bench.new_account_operation(bench.chain.alice))


def packed_times(until: int, after: int) -> int:
    return (until << 160) | (after << 208)


def failure_of(bench: Bench, operation: Operation) -> str:
    """The reason with which the entry point refuses the operation."""
    bundler = bench.chain.bob.address
    handle = bench.entry_point.functions.handleOps([operation.packed(bench.version)], bundler)
    call = {"from": bundler, "to": bench.entry_point.address, "data": handle._encode_transaction_data()}
    with pytest.raises(NodeRpcError) as caught:
        bench.chain.devnet.call("eth_call", call, "latest")
    assert isinstance(caught.value.data, dict)
    error = bytes.fromhex(caught.value.data["data"][2:])
    assert error[:4] == keccak(b"FailedOp(uint256,string)")[:4]
    return str(decode(["uint256", "string"], error[4:])[1])


# --- operations through the entry points


def test_an_operation_that_creates_its_account_is_paid_by_the_paymaster(bench: Bench) -> None:
    chain = bench.chain
    operation = bench.sign(bench.sponsor(bench.new_account_operation(chain.alice, minted=77)), chain.alice)
    deposit = bench.paymaster.functions.getDeposit().call()
    event = bench.handle(operation, chain.bob)
    assert event["success"] is True
    assert event["sender"] == operation.sender
    assert event["paymaster"] == bench.paymaster.address
    assert chain.web3.eth.get_code(operation.sender) != b""
    assert bench.token.functions.balanceOf(operation.sender).call() == 77
    assert bench.paymaster.functions.getDeposit().call() == deposit - event["actualGasCost"]
    assert chain.web3.eth.get_balance(operation.sender) == 0


def test_a_second_operation_of_the_account_is_paid_too(bench: Bench) -> None:
    chain = bench.chain
    first = bench.new_account_operation(chain.alice)
    bench.handle(bench.sign(bench.sponsor(first), chain.alice), chain.bob)
    second = replace(first, nonce=1, init_code=b"")
    assert bench.handle(bench.sign(bench.sponsor(second), chain.alice), chain.bob)["success"] is True


def test_an_operation_signed_by_another_is_refused_by_the_entry_point(bench: Bench) -> None:
    alice = bench.chain.alice
    operation = bench.sponsor(bench.new_account_operation(alice), signer_key=bench.chain.carol.private_key)
    assert failure_of(bench, bench.sign(operation, alice)) == "AA34 signature error"


def test_an_expired_sponsorship_is_refused(bench: Bench) -> None:
    alice = bench.chain.alice
    operation = bench.sponsor(bench.new_account_operation(alice), until=int(time.time()) - 60)
    assert failure_of(bench, bench.sign(operation, alice)) == "AA32 paymaster expired or not due"


def test_a_sponsorship_that_is_not_yet_valid_is_refused(bench: Bench) -> None:
    alice = bench.chain.alice
    operation = bench.sponsor(bench.new_account_operation(alice), after=int(time.time()) + 3600)
    assert failure_of(bench, bench.sign(operation, alice)) == "AA32 paymaster expired or not due"


def test_an_empty_deposit_is_refused(bench: Bench) -> None:
    alice = bench.chain.alice
    paymaster = bench.deploy_paymaster(bench.chain.carol, bench.signer.address)
    operation = bench.sponsor(bench.new_account_operation(alice), paymaster=paymaster)
    assert failure_of(bench, bench.sign(operation, alice)) == "AA31 paymaster deposit too low"


# --- what the validation answers


def test_a_good_signature_gives_the_times_and_no_context(bench: Bench) -> None:
    operation = bench.sponsor(bench.new_account_operation(bench.chain.alice), until=4_000_000_000, after=12)
    assert bench.validate(operation) == (b"", packed_times(4_000_000_000, 12))


def test_a_wrong_signer_gives_the_failure_mark_with_the_times(bench: Bench) -> None:
    operation = bench.sponsor(
        bench.new_account_operation(bench.chain.alice),
        signer_key=bench.chain.carol.private_key,
        until=4_000_000_000,
        after=12,
    )
    assert bench.validate(operation) == (b"", packed_times(4_000_000_000, 12) | SIG_FAILED)


@pytest.mark.parametrize(
    "change",
    [
        {"nonce": 5},
        {"init_code": b"\x01" * 64},
        {"call_data": b"other"},
        {"call_gas": 300_001},
        {"verification_gas": 600_001},
        {"pre_verification_gas": 60_001},
        {"max_fee": 30 * 10**9},
        {"max_priority_fee": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_signature_covers_every_field(bench: Bench, sponsored: Operation, change: dict[str, object]) -> None:
    assert bench.validate(sponsored)[1] & 1 == 0
    changed = replace(sponsored, **change)  # type: ignore[arg-type]  # the parameters name the fields
    assert bench.validate(changed)[1] & 1 == SIG_FAILED


def test_the_signature_covers_the_sender_and_the_times(bench: Bench, sponsored: Operation) -> None:
    assert bench.validate(replace(sponsored, sender=bench.entry_point.address))[1] & 1 == SIG_FAILED
    later = replace(sponsored, paymaster_data=times(FAR_FUTURE - 1, 0) + sponsored.paymaster_data[64:])
    assert bench.validate(later)[1] & 1 == SIG_FAILED
    earlier = replace(sponsored, paymaster_data=times(FAR_FUTURE, 1) + sponsored.paymaster_data[64:])
    assert bench.validate(earlier)[1] & 1 == SIG_FAILED


@pytest.mark.parametrize("bench", ["0.7", "0.8"], indirect=True)
def test_the_signature_covers_the_gas_limits_of_the_paymaster(bench: Bench, sponsored: Operation) -> None:
    assert bench.validate(replace(sponsored, paymaster_gas=150_001))[1] & 1 == SIG_FAILED
    assert bench.validate(replace(sponsored, post_operation_gas=1_001))[1] & 1 == SIG_FAILED


def test_a_signature_for_another_chain_is_not_valid(bench: Bench, sponsored: Operation) -> None:
    address = bench.paymaster.address
    for chain_id, failed in ((31337, 0), (1, SIG_FAILED)):
        if bench.version == "0.6":
            digest = digest_v06(sponsored, address, 0, FAR_FUTURE, 0, chain_id)
        else:
            digest = digest_v07(sponsored, address, FAR_FUTURE, 0, chain_id)
        signed = bench.with_paymaster_signature(sponsored, personal_sign(bench.signer.private_key, digest))
        assert bench.validate(signed)[1] & 1 == failed


def test_a_signature_for_another_paymaster_is_not_valid(bench: Bench, sponsored: Operation) -> None:
    other = bench.deploy_paymaster(bench.chain.carol, bench.signer.address)
    assert bench.validate(sponsored)[1] & 1 == 0
    assert bench.validate(sponsored, paymaster=other)[1] & 1 == SIG_FAILED


def test_malformed_signatures_of_full_length_are_failures_and_not_reverts(bench: Bench, sponsored: Operation) -> None:
    good = sponsored.paymaster_data[64:]
    s = int.from_bytes(good[32:64], "big")
    # The twin of a valid signature: same key, same message, but malleable.
    twin = good[:32] + (CURVE_ORDER - s).to_bytes(32, "big") + bytes([27 + 28 - good[64]])
    for signature in (twin, NO_SIGNATURE, b"\xff" * 65, good[:64] + b"\x00", good[:64] + b"\x1d"):
        assert bench.validate(bench.with_paymaster_signature(sponsored, signature))[1] & 1 == SIG_FAILED


@pytest.mark.parametrize("length", [0, 64, 66])
def test_a_signature_of_another_length_reverts(bench: Bench, sponsored: Operation, length: int) -> None:
    changed = bench.with_paymaster_signature(sponsored, b"\x01" * length)
    with pytest.raises(ContractLogicError, match="invalid signature length"):
        bench.validate(changed)


def test_times_that_do_not_fit_48_bits_revert(bench: Bench, sponsored: Operation) -> None:
    too_late = (2**48).to_bytes(32, "big") + bytes(32) + sponsored.paymaster_data[64:]
    with pytest.raises(ContractLogicError):
        bench.validate(replace(sponsored, paymaster_data=too_late))


def test_only_the_entry_point_may_ask_for_validation(bench: Bench, sponsored: Operation) -> None:
    function = bench.paymaster.functions.validatePaymasterUserOp(sponsored.packed(bench.version), bytes(32), 0)
    with pytest.raises(ContractLogicError, match="Sender not EntryPoint"):
        function.call({"from": bench.owner.address})


# --- the hash, against the original and against our own arithmetic


# The 0.8 package ships no VerifyingPaymaster; ours for 0.8 is the one for 0.7.
@pytest.mark.parametrize("bench", ["0.6", "0.7"], indirect=True)
def test_get_hash_equals_the_original_contract_on_random_operations(
    bench: Bench, chain: Chain, node_project: NodeProject
) -> None:
    original = load_package_contract(node_project, bench.package, "VerifyingPaymaster")
    deployed = chain.deploy(original.abi, original.bytecode, bench.entry_point.address, bench.signer.address)
    # The hash holds the paymaster's address, so the original's code is called at the address of ours.
    code = chain.web3.eth.get_code(deployed.address).to_0x_hex()
    source = random.Random(4337)
    for _ in range(40):
        operation = random_operation(source)
        until, after = source.getrandbits(48), source.getrandbits(48)
        packed = operation.packed(bench.version)
        data = bench.paymaster.functions.getHash(packed, until, after)._encode_transaction_data()
        call = {"to": bench.paymaster.address, "data": data}
        ours = chain.devnet.call("eth_call", call, "latest")
        theirs = chain.devnet.call("eth_call", call, "latest", {bench.paymaster.address: {"code": code}})
        assert ours == theirs
        if bench.version == "0.6":
            digest = digest_v06(operation, bench.paymaster.address, 0, until, after)
        else:
            digest = digest_v07(operation, bench.paymaster.address, until, after)
        assert ours == "0x" + digest.hex()


# --- replay, 0.6 only: later versions rely on the entry point's nonce alone


def test_a_06_sponsorship_counts_once(chain: Chain, node_project: NodeProject) -> None:
    bench = Bench(chain, node_project, "0.6")
    original = load_package_contract(node_project, "aa06", "VerifyingPaymaster")
    operation = bench.sign(bench.sponsor(bench.new_account_operation(chain.alice)), chain.alice)
    assert bench.validate(operation)[1] & 1 == 0
    assert bench.paymaster.functions.senderNonce(operation.sender).call() == 0
    bench.handle(operation, chain.bob)
    assert bench.paymaster.functions.senderNonce(operation.sender).call() == 1
    assert bench.validate(operation)[1] & 1 == SIG_FAILED
    # With a nonce that is not zero, the hash is still the original's. Its mapping is in storage slot 1.
    deployed = chain.deploy(original.abi, original.bytecode, bench.entry_point.address, bench.signer.address)
    slot = "0x" + keccak(encode(["address", "uint256"], [operation.sender, 1])).hex()
    override = {
        "code": chain.web3.eth.get_code(deployed.address).to_0x_hex(),
        "stateDiff": {slot: "0x" + (1).to_bytes(32, "big").hex()},
    }
    function = bench.paymaster.functions.getHash(operation.packed("0.6"), FAR_FUTURE, 0)
    call = {"to": bench.paymaster.address, "data": function._encode_transaction_data()}
    theirs = chain.devnet.call("eth_call", call, "latest", {bench.paymaster.address: override})
    assert "0x" + function.call().hex() == theirs


# --- the owner


def test_only_the_owner_manages_the_paymaster(bench: Bench) -> None:
    functions = bench.paymaster.functions
    stranger = bench.chain.carol.address
    for function in (
        functions.withdrawTo(stranger, 1),
        functions.addStake(86_400),
        functions.unlockStake(),
        functions.withdrawStake(stranger),
        functions.setSigner(stranger),
        functions.transferOwnership(stranger),
    ):
        with pytest.raises(ContractLogicError, match="caller is not the owner"):
            function.call({"from": stranger})


def test_the_owner_withdraws_what_anyone_deposited(bench: Bench) -> None:
    chain = bench.chain
    paymaster = bench.deploy_paymaster(chain.carol, bench.signer.address)
    receiver = Account.create().address
    chain.transact(chain.bob, paymaster.functions.deposit(), value=3 * ETHER)
    assert paymaster.functions.getDeposit().call() == 3 * ETHER
    chain.transact(chain.carol, paymaster.functions.withdrawTo(receiver, ETHER))
    assert paymaster.functions.getDeposit().call() == 2 * ETHER
    assert chain.web3.eth.get_balance(receiver) == ETHER


def test_the_owner_stakes_unlocks_and_withdraws_the_stake(bench: Bench) -> None:
    chain = bench.chain
    paymaster = bench.deploy_paymaster(chain.carol, bench.signer.address)
    receiver = Account.create().address
    chain.transact(chain.carol, paymaster.functions.addStake(1), value=ETHER)
    unlocked = chain.block_time(chain.transact(chain.carol, paymaster.functions.unlockStake())["blockNumber"])
    wait_until(lambda: chain.block_time("latest") > unlocked, 10, "the end of the unstake delay of one second")
    chain.transact(chain.carol, paymaster.functions.withdrawStake(receiver))
    assert chain.web3.eth.get_balance(receiver) == ETHER


def test_a_new_signer_replaces_the_old_one_at_once(bench: Bench) -> None:
    chain = bench.chain
    paymaster = bench.deploy_paymaster(chain.carol, bench.signer.address)
    operation = bench.new_account_operation(chain.alice)
    by_old = bench.sponsor(operation, paymaster=paymaster)
    by_new = bench.sponsor(operation, paymaster=paymaster, signer_key=chain.bob.private_key)
    assert [bench.validate(signed, paymaster=paymaster)[1] & 1 for signed in (by_old, by_new)] == [0, SIG_FAILED]
    chain.transact(chain.carol, paymaster.functions.setSigner(chain.bob.address))
    assert paymaster.functions.verifyingSigner().call() == chain.bob.address
    assert [bench.validate(signed, paymaster=paymaster)[1] & 1 for signed in (by_old, by_new)] == [SIG_FAILED, 0]


def test_ownership_moves_to_the_new_owner(bench: Bench) -> None:
    chain = bench.chain
    paymaster = bench.deploy_paymaster(chain.carol, bench.signer.address)
    chain.transact(chain.carol, paymaster.functions.transferOwnership(chain.bob.address))
    assert paymaster.functions.owner().call() == chain.bob.address
    with pytest.raises(ContractLogicError, match="caller is not the owner"):
        paymaster.functions.setSigner(chain.carol.address).call({"from": chain.carol.address})
    for function in (paymaster.functions.setSigner(ZERO_ADDRESS), paymaster.functions.transferOwnership(ZERO_ADDRESS)):
        with pytest.raises(ContractLogicError, match="zero address"):
            function.call({"from": chain.bob.address})
