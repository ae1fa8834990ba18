"""Accounts that delegate to a contract (EIP-7702): as senders with their tuple, and where they may not be."""

from typing import Any, cast

import msgspec
import pytest
from eth_account import Account
from eth_account.datastructures import SignedSetCodeAuthorization
from eth_account.signers.local import LocalAccount

from capstan.bundler.refusals import INVALID_FIELDS, REJECTED_BY_ACCOUNT, RULE_VIOLATION, Refusal
from capstan.bundler.validating import Validated
from capstan.bundler.validation.workers import Workers
from capstan.core.hexes import keccak256, to_checksum_address
from capstan.devnet.evm import CHAIN_ID
from capstan.userops.models import Authorization, UserOperation
from tests.support import bytecode
from tests.support.bytecode import calling
from tests.support.devnet import EvmDevnet
from tests.support.validation import ETHER, Deployer, operation_of, validation_of
from tests.validation.conftest import DEPLOYER

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def deployer(quiet_devnet: EvmDevnet) -> Deployer:
    deployment = quiet_devnet.deployment
    return Deployer(quiet_devnet, "0.8", deployment.accounts[DEPLOYER], deployment.entry_points["0.8"])


def _tuple(owner: LocalAccount, delegate: bytes, *, chain_id: int = CHAIN_ID, nonce: int = 0) -> Authorization:
    given = {"chainId": chain_id, "address": to_checksum_address(delegate), "nonce": nonce}
    # eth-account declares that it returns a signed message, and returns this.
    signed = cast("SignedSetCodeAuthorization", owner.sign_authorization(given))
    return Authorization(chain_id, delegate, nonce, signed.y_parity, signed.r, signed.s)


def _operation(deployer: Deployer, owner: LocalAccount, **changes: Any) -> UserOperation:
    """An operation of an account that delegates to an implementation, with its tuple."""
    delegate = deployer.deploy(bytecode.account(deployer.entry_point, "1 SLOAD POP"))
    sender = bytes.fromhex(owner.address[2:])
    deployer.deposit(sender)
    return operation_of(sender, authorization=_tuple(owner, delegate), **changes)


async def _validate(deployer: Deployer, workers: Workers, operation: UserOperation) -> Validated:
    async with validation_of(deployer.chain.url, CHAIN_ID, workers) as validation:
        return await validation.validator("0.8", bytes.fromhex(deployer.entry_point[2:])).validate(operation)


async def _refused(deployer: Deployer, workers: Workers, operation: UserOperation) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        await _validate(deployer, workers, operation)
    return caught.value.code, caught.value.message


def _delegate(deployer: Deployer, owner: LocalAccount, delegate: bytes) -> bytes:
    """Delegate on the chain itself."""
    devnet = deployer.chain
    assert isinstance(devnet, EvmDevnet)
    authorization = owner.sign_authorization(
        {"chainId": CHAIN_ID, "address": to_checksum_address(delegate), "nonce": 0}
    )
    transaction = {
        "type": 4,
        "chainId": CHAIN_ID,
        "nonce": int(devnet.call("eth_getTransactionCount", deployer.account.address, "latest"), 16),
        "to": owner.address,
        "value": 0,
        "gas": 300_000,
        "maxFeePerGas": 20 * 10**9,
        "maxPriorityFeePerGas": 10**9,
        "authorizationList": [authorization],
    }
    signed = Account.sign_transaction(transaction, deployer.account.private_key)
    devnet.mine_transaction(devnet.call("eth_sendRawTransaction", "0x" + signed.raw_transaction.hex()))
    return bytes.fromhex(owner.address[2:])


async def test_the_tuple_of_the_operation_counts_in_its_validation(deployer: Deployer, workers: Workers) -> None:
    operation = _operation(deployer, Account.create())
    found = await _validate(deployer, workers, operation)
    assert operation.authorization is not None
    code = bytes.fromhex("ef0100") + operation.authorization.address
    assert found.code_hashes[operation.sender] == keccak256(code)
    assert operation.authorization.address in found.code_hashes
    assert found.factory is None


async def test_a_sender_is_initialised_by_its_own_data(deployer: Deployer, workers: Workers) -> None:
    """The factory is the mark of EIP-7702, and what follows it is a call of the sender itself."""
    operation = _operation(deployer, Account.create(), factory=bytes.fromhex("7702"), factory_data=b"\x01\x02\x03\x04")
    found = await _validate(deployer, workers, operation)
    assert found.factory is None
    clock = deployer.deploy(bytecode.account(deployer.entry_point, "CALLDATASIZE 4 EQ POP TIMESTAMP POP"))
    owner = Account.create()
    deployer.deposit(bytes.fromhex(owner.address[2:]))
    bad = msgspec.structs.replace(
        operation, sender=bytes.fromhex(owner.address[2:]), authorization=_tuple(owner, clock)
    )
    assert await _refused(deployer, workers, bad) == (
        RULE_VIOLATION,
        "account uses banned opcode: TIMESTAMP (OP-011)",
    )


async def test_a_sender_that_delegated_before_needs_no_tuple(deployer: Deployer, workers: Workers) -> None:
    delegate = deployer.deploy(bytecode.account(deployer.entry_point))
    sender = _delegate(deployer, Account.create(), delegate)
    deployer.deposit(sender)
    found = await _validate(deployer, workers, operation_of(sender))
    assert delegate in found.code_hashes


async def test_a_tuple_that_the_chain_would_skip_is_refused(deployer: Deployer, workers: Workers) -> None:
    owner, other = Account.create(), Account.create()
    operation = _operation(deployer, owner)
    assert operation.authorization is not None
    delegate = operation.authorization.address

    async def refused(given: Authorization) -> tuple[int, str]:
        return await _refused(deployer, workers, msgspec.structs.replace(operation, authorization=given))

    assert await refused(_tuple(owner, delegate, chain_id=1)) == (
        INVALID_FIELDS,
        f"eip7702Auth: chainId must be {CHAIN_ID}, or 0 for every chain, not 1",
    )
    assert await refused(_tuple(other, delegate)) == (
        INVALID_FIELDS,
        f"eip7702Auth: the signer must be the sender, and is {other.address}",
    )
    assert await refused(_tuple(owner, delegate, nonce=2)) == (
        REJECTED_BY_ACCOUNT,
        "eip7702Auth: nonce must be 0, the sender's nonce, not 2",
    )
    malleable = msgspec.structs.replace(operation.authorization, s=2**256 - 1)
    assert (await refused(malleable))[0] == INVALID_FIELDS
    good = msgspec.structs.replace(operation, authorization=_tuple(owner, delegate, chain_id=0))
    assert isinstance(await _validate(deployer, workers, good), Validated)


async def test_a_delegated_account_is_no_paymaster(deployer: Deployer, workers: Workers) -> None:
    """AUTH-020."""
    delegate = deployer.deploy(bytecode.paymaster(deployer.entry_point))
    paymaster = _delegate(deployer, Account.create(), delegate)
    deployer.deposit(paymaster)
    sender = deployer.deploy(bytecode.account(deployer.entry_point), deposit=ETHER)
    limits = {"paymaster_verification_gas_limit": 500_000, "paymaster_post_op_gas_limit": 50_000}
    assert await _refused(deployer, workers, operation_of(sender, paymaster=paymaster, **limits)) == (
        RULE_VIOLATION,
        "paymaster is an account with an EIP-7702 delegation (AUTH-020)",
    )


async def test_a_delegated_account_is_called_as_sender_only(deployer: Deployer, workers: Workers) -> None:
    """AUTH-030."""
    delegated = _delegate(deployer, Account.create(), deployer.deploy(b"\x00"))
    program = calling("0x" + delegated.hex())
    sender = deployer.deploy(bytecode.account(deployer.entry_point, program), deposit=ETHER)
    code, message = await _refused(deployer, workers, operation_of(sender))
    assert (code, message) == (
        RULE_VIOLATION,
        f"account calls {to_checksum_address(delegated)}, an account with an EIP-7702 delegation that is not the sender"
        " (AUTH-030)",
    )
