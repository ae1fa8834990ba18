"""What is said of operations beyond the opcode and storage rules: failures, times, stakes, code that changes."""

import time

import pytest

from capstan.bundler.models import Entity
from capstan.bundler.refusals import (
    OUT_OF_TIME_RANGE,
    REJECTED_BY_ACCOUNT,
    REJECTED_BY_PAYMASTER,
    RULE_VIOLATION,
    SIGNATURE_FAILED,
    STAKE_TOO_LOW,
    UNSUPPORTED_AGGREGATOR,
    Refusal,
)
from capstan.bundler.validating import Validated
from capstan.bundler.validation.workers import Workers
from capstan.core.hexes import to_checksum_address, to_data
from capstan.devnet.evm import CHAIN_ID
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version
from tests.support import bytecode
from tests.support.bytecode import SENDER, assemble, calling
from tests.support.devnet import EvmDevnet
from tests.support.validation import ETHER, Deployer, operation_of, validation_of
from tests.validation.conftest import DEPLOYER

pytestmark = pytest.mark.asyncio(loop_scope="module")

_GAS = {"paymaster_verification_gas_limit": 500_000, "paymaster_post_op_gas_limit": 50_000}
# `Error("no")`, in memory, and reverted with.
_REVERTING = assemble(
    "0x08c379a0 224 SHL PUSH0 MSTORE 32 4 MSTORE 2 36 MSTORE 0x6e6f 240 SHL 68 MSTORE 100 PUSH0 REVERT"
)


async def _found(deployer: Deployer, workers: Workers, operation: UserOperation) -> Validated:
    async with validation_of(deployer.chain.url, CHAIN_ID, workers) as validation:
        return await validation.validator(deployer.version, bytes.fromhex(deployer.entry_point[2:])).validate(operation)


async def _refused(deployer: Deployer, workers: Workers, operation: UserOperation) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await _found(deployer, workers, operation)
    return caught.value


def _account(deployer: Deployer, *, validation_data: int = 0, deposit: int = ETHER) -> bytes:
    code = bytecode.account(deployer.entry_point, validation_data=validation_data)
    return deployer.deploy(code, deposit=deposit)


def _times(until: int, after: int = 0) -> int:
    return until << 160 | after << 208


async def test_who_cannot_pay_is_refused_with_the_words_of_the_entry_point(
    on_devnet: Deployer, workers: Workers
) -> None:
    refusal = await _refused(on_devnet, workers, operation_of(_account(on_devnet, deposit=0)))
    assert (refusal.code, refusal.message) == (REJECTED_BY_ACCOUNT, "AA21 didn't pay prefund")


async def test_a_nonce_that_is_not_next_is_refused(on_devnet: Deployer, workers: Workers) -> None:
    refusal = await _refused(on_devnet, workers, operation_of(_account(on_devnet), nonce=7))
    assert (refusal.code, refusal.message) == (REJECTED_BY_ACCOUNT, "AA25 invalid account nonce")


async def test_the_reason_of_an_account_that_reverts_is_told(on_devnet: Deployer, workers: Workers) -> None:
    sender = on_devnet.deploy(_REVERTING, deposit=ETHER)
    refusal = await _refused(on_devnet, workers, operation_of(sender))
    assert (refusal.code, refusal.message) == (REJECTED_BY_ACCOUNT, "AA23 reverted: no")


async def test_the_paymaster_is_named_that_reverts(on_devnet: Deployer, workers: Workers) -> None:
    paymaster = on_devnet.deploy(_REVERTING, deposit=ETHER)
    refusal = await _refused(on_devnet, workers, operation_of(_account(on_devnet), paymaster=paymaster, **_GAS))
    assert (refusal.code, refusal.message) == (REJECTED_BY_PAYMASTER, "AA33 reverted: no")
    assert refusal.data["paymaster"] == to_checksum_address(paymaster)


async def test_a_signature_that_the_account_rejects_is_refused(on_devnet: Deployer, workers: Workers) -> None:
    refusal = await _refused(on_devnet, workers, operation_of(_account(on_devnet, validation_data=1)))
    assert (refusal.code, refusal.message) == (SIGNATURE_FAILED, "AA24 signature error")


async def test_an_aggregator_is_not_supported(on_devnet: Deployer, workers: Workers) -> None:
    sender = _account(on_devnet, validation_data=0xA66)
    refusal = await _refused(on_devnet, workers, operation_of(sender))
    assert (refusal.code, refusal.data) == (UNSUPPORTED_AGGREGATOR, {"aggregator": f"0x{0xA66:040x}".replace("a", "A")})


async def test_the_time_range_is_that_which_account_and_paymaster_share(on_devnet: Deployer, workers: Workers) -> None:
    now = int(time.time())
    sender = _account(on_devnet, validation_data=_times(now + 5000, 5))
    code = bytecode.paymaster(on_devnet.entry_point, validation_data=_times(now + 4000, 4))
    paymaster = on_devnet.deploy(code, deposit=ETHER)
    found = await _found(on_devnet, workers, operation_of(sender, paymaster=paymaster, **_GAS))
    assert (found.valid_after, found.valid_until) == (5, now + 4000)


@pytest.mark.parametrize(
    ("until", "after", "message"),
    [
        (29, 0, "expires too soon"),
        (-1000, 0, "AA22 expired or not due"),
        (0, 1000, "AA22 expired or not due"),
    ],
)
async def test_an_operation_out_of_its_time_range_is_refused(
    on_devnet: Deployer, workers: Workers, until: int, after: int, message: str
) -> None:
    now = int(time.time())
    until, after = until and now + until, after and now + after
    refusal = await _refused(
        on_devnet, workers, operation_of(_account(on_devnet, validation_data=_times(until, after)))
    )
    assert (refusal.code, refusal.message) == (OUT_OF_TIME_RANGE, message)
    assert refusal.data == {"validAfter": hex(after), "validUntil": hex(until)}


async def test_a_stake_that_is_too_low_is_told_so(on_devnet: Deployer, workers: Workers) -> None:
    code = bytecode.paymaster(on_devnet.entry_point, "1 SLOAD POP")
    paymaster = on_devnet.deploy(code, deposit=ETHER, stake=ETHER - 1)
    refusal = await _refused(on_devnet, workers, operation_of(_account(on_devnet), paymaster=paymaster, **_GAS))
    assert refusal.code == STAKE_TOO_LOW
    assert refusal.data == {
        "paymaster": to_checksum_address(paymaster),
        "minimumStake": hex(ETHER),
        "minimumUnstakeDelay": hex(86_400),
    }


@pytest.mark.parametrize(
    ("version", "staked", "accepted"), [("0.6", False, False), ("0.6", True, True), ("0.7", False, True)]
)
async def test_an_unstaked_paymaster_of_the_first_version_may_not_return_a_context(
    quiet_devnet: EvmDevnet, workers: Workers, version: Version, *, staked: bool, accepted: bool
) -> None:
    deployment = quiet_devnet.deployment
    deployer = Deployer(quiet_devnet, version, deployment.accounts[DEPLOYER], deployment.entry_points[version])
    code = bytecode.paymaster(deployer.entry_point, context=1)
    paymaster = deployer.deploy(code, deposit=ETHER, stake=ETHER if staked else 0)
    operation = operation_of(_account(deployer), paymaster=paymaster, **({} if version == "0.6" else _GAS))
    if accepted:
        assert (await _found(deployer, workers, operation)).paymaster == Entity("paymaster", paymaster, staked)
    else:
        refusal = await _refused(deployer, workers, operation)
        assert (refusal.code, refusal.message) == (RULE_VIOLATION, "unstaked paymaster returned a context (EREP-050)")


@pytest.mark.parametrize("length", [2048, 2049])
async def test_lim_020_a_context_has_a_greatest_length(on_devnet: Deployer, workers: Workers, length: int) -> None:
    paymaster = on_devnet.deploy(bytecode.paymaster(on_devnet.entry_point, context=length), deposit=ETHER)
    operation = operation_of(_account(on_devnet), paymaster=paymaster, **_GAS)
    if length > 2048:
        refusal = await _refused(on_devnet, workers, operation)
        assert (refusal.code, refusal.data) == (RULE_VIOLATION, {"paymaster": to_checksum_address(paymaster)})
        assert "LIM-020" in refusal.message
    else:
        found = await _found(on_devnet, workers, operation)
        assert found.context_bytes == length
        assert found.gas["paymaster"] > 0


async def test_storage_of_others_that_is_associated_is_told_to_the_pool(on_devnet: Deployer, workers: Workers) -> None:
    store = bytes.fromhex(on_devnet.helper("mapped_writer")[2:])
    code = bytecode.paymaster(on_devnet.entry_point, calling(on_devnet.helper("mapped_writer"), SENDER, "PUSH0"))
    sender, paymaster = _account(on_devnet), on_devnet.deploy(code, deposit=ETHER)
    found = await _found(on_devnet, workers, operation_of(sender, paymaster=paymaster, **_GAS))
    assert found.associated == {store}
    assert set(found.storage) == set(found.written) == {store}
    assert len(found.written[store]) == 1


async def test_code_that_changes_after_the_first_validation_is_noticed(
    on_devnet: Deployer, quiet_devnet: EvmDevnet, workers: Workers
) -> None:
    other = on_devnet.deploy(assemble("STOP"))
    program = calling("0x" + other.hex())
    sender = on_devnet.deploy(bytecode.account(on_devnet.entry_point, program), deposit=ETHER)
    operation = operation_of(sender)
    async with validation_of(on_devnet.chain.url, CHAIN_ID, workers) as validation:
        validator = validation.validator("0.7", bytes.fromhex(on_devnet.entry_point[2:]))
        earlier = await validator.validate(operation)
        again = await validator.validate(operation, earlier=earlier)
        assert again.code_hashes == earlier.code_hashes
        quiet_devnet.call("hardhat_setCode", to_data(other), to_data(assemble("1 POP STOP")))
        quiet_devnet.mine()
        with pytest.raises(Refusal, match="modified code after first validation") as caught:
            await validator.validate(operation, earlier=earlier)
        assert caught.value.code == RULE_VIOLATION
        # Also when the operation does not go there any more.
        quiet_devnet.call("hardhat_setCode", to_data(sender), to_data(bytecode.account(on_devnet.entry_point)))
        quiet_devnet.mine()
        with pytest.raises(Refusal, match="modified code after first validation"):
            await validator.validate(operation, earlier=earlier)
