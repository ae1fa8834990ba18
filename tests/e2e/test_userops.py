"""The codecs against the entry points that run on the development chain: hashes, bundles, events, errors, costs."""

import random

import msgspec
import pytest
from eth_abi.abi import decode, encode
from eth_account import Account
from eth_utils.crypto import keccak

from capstan.core.hexes import to_data
from capstan.devnet.errors import NodeRpcError
from capstan.devnet.install import NodeProject
from capstan.userops.codec import decode_handle_ops, encode_handle_ops
from capstan.userops.events import (
    AccountDeployed,
    BeforeExecution,
    OperationHandled,
    OperationReverted,
)
from capstan.userops.failures import FailedOperation, decode_failure
from capstan.userops.gas import OVERHEADS, pre_verification_gas
from capstan.userops.models import UserOperation
from capstan.userops.simulation import nonce_override
from capstan.userops.versions import Version
from tests.support.devnet import EvmDevnet
from tests.support.entrypoint import EntryPoint, changed

VERSIONS: tuple[Version, ...] = ("0.6", "0.7", "0.8")
every_version = pytest.mark.parametrize("version", VERSIONS)
_DEPLOYER, _OWNER = 14, 15


@pytest.fixture(params=VERSIONS)
def entry_point(request: pytest.FixtureRequest, evm_devnet: EvmDevnet, node_project: NodeProject) -> EntryPoint:
    return EntryPoint(evm_devnet, node_project, request.param)


def _random_operation(version: Version, source: random.Random) -> UserOperation:
    bits = 256 if version == "0.6" else 128
    operation = UserOperation(
        sender=source.randbytes(20),
        nonce=source.getrandbits(256),
        call_data=source.randbytes(source.choice([0, 1, 31, 32, 33, 500])),
        call_gas_limit=source.getrandbits(bits),
        verification_gas_limit=source.getrandbits(bits),
        pre_verification_gas=source.getrandbits(256),
        max_fee_per_gas=source.getrandbits(bits),
        max_priority_fee_per_gas=source.getrandbits(bits),
        signature=source.randbytes(source.choice([0, 65])),
    )
    if source.random() < 0.5:
        operation = changed(
            operation, factory=source.randbytes(20), factory_data=source.randbytes(source.choice([0, 68]))
        )
    if source.random() < 0.5:
        operation = changed(operation, paymaster=source.randbytes(20), paymaster_data=source.randbytes(129))
        if version != "0.6":
            limits = {"paymaster_verification_gas_limit": source.getrandbits(128)}
            operation = changed(operation, paymaster_post_op_gas_limit=source.getrandbits(128), **limits)
    return operation


def test_hashes_are_those_of_the_entry_point(entry_point: EntryPoint) -> None:
    source = random.Random(4337)
    for _ in range(40):
        operation = _random_operation(entry_point.version, source)
        assert entry_point.our_hash(operation) == entry_point.hash(operation)


def test_a_delegated_sender_is_hashed_with_its_delegate(evm_devnet: EvmDevnet, node_project: NodeProject) -> None:
    entry_point = EntryPoint(evm_devnet, node_project, "0.8")
    delegate, sender = bytes(19) + b"\x77", Account.create()
    evm_devnet.call("hardhat_setCode", sender.address, to_data(b"\xef\x01\x00" + delegate))
    for data in (b"", b"init"):
        operation = UserOperation(
            sender=bytes.fromhex(sender.address[2:]), nonce=1, factory=b"\x77\x02", factory_data=data
        )
        assert entry_point.our_hash(operation, delegate=delegate) == entry_point.hash(operation)


def test_a_bundle_lands_and_tells_what_it_did(entry_point: EntryPoint) -> None:
    owner = entry_point.devnet.deployment.accounts[_OWNER]
    token = entry_point.bench.token
    good = keccak(b"mint(address,uint256)")[:4] + encode(["address", "uint256"], [owner.address, 1])
    first = entry_point.signed(entry_point.creation(owner, token.address, good), owner)
    # A transfer of what the account does not have reverts.
    bad = keccak(b"transfer(address,uint256)")[:4] + encode(["address", "uint256"], [owner.address, 5])
    second = entry_point.signed(entry_point.creation(owner, token.address, bad), owner)
    receipt = entry_point.bundle(first, second)
    assert receipt["status"] == "0x1"
    found = entry_point.events(receipt)
    hashes = [entry_point.our_hash(first), entry_point.our_hash(second)]
    factory = bytes.fromhex(entry_point.bench.factory.address[2:])
    assert [each for each in found if isinstance(each, AccountDeployed)] == [
        AccountDeployed(hashes[0], first.sender, factory, None),
        AccountDeployed(hashes[1], second.sender, factory, None),
    ]
    assert [each for each in found if isinstance(each, BeforeExecution)] == [BeforeExecution()]
    handled = [each for each in found if isinstance(each, OperationHandled)]
    assert [(each.hash, each.success, each.paymaster) for each in handled] == [
        (hashes[0], True, None),
        (hashes[1], False, None),
    ]
    assert [each.hash for each in found if isinstance(each, OperationReverted)] == [hashes[1]]
    transaction = entry_point.devnet.call("eth_getTransactionByHash", receipt["transactionHash"])
    operations, _ = decode_handle_ops(entry_point.version, bytes.fromhex(transaction["input"][2:]))
    assert operations == [first, second]


@pytest.mark.parametrize("count", [1, 3])
def test_the_cost_before_verification_is_covered_and_not_wasted(entry_point: EntryPoint, count: int) -> None:
    """What a bundle really spends beyond what the entry point measures is never more than we say, and not much less."""
    owner = entry_point.devnet.deployment.accounts[_OWNER]
    for size in (0, 1, 1000, 5000):
        # Without a call there is no unused gas, for which 0.7 and later charge a penalty that would count as measured.
        operations = [
            entry_point.signed(
                changed(entry_point.creation(owner, owner.address, b""), call_data=b"\1" * size, call_gas_limit=0),
                owner,
            )
            for _ in range(count)
        ]
        overheads = msgspec.structs.replace(OVERHEADS[entry_point.version], bundle_size=count)
        estimate = sum(
            pre_verification_gas(entry_point.version, each, overheads=overheads).total for each in operations
        )
        receipt = entry_point.bundle(*operations, gas=10_000_000)
        assert receipt["status"] == "0x1"
        handled = [event for event in entry_point.events(receipt) if isinstance(event, OperationHandled)]
        assert len(handled) == count
        measured = sum(event.actual_gas_used - operations[0].pre_verification_gas for event in handled)
        spent = int(receipt["gasUsed"], 16) - measured
        assert spent <= estimate <= spent + 1_500 * count, (size, spent, estimate)


def test_the_nonce_is_where_a_queued_operation_is_validated_with_another(entry_point: EntryPoint) -> None:
    owner = entry_point.devnet.deployment.accounts[_OWNER]
    operation = entry_point.signed(entry_point.creation(owner, owner.address, b""), owner)
    assert entry_point.bundle(operation)["status"] == "0x1"
    slot, value = nonce_override(changed(operation, nonce=1))
    assert entry_point.devnet.call("eth_getStorageAt", entry_point.address, to_data(slot), "latest") == to_data(value)


def test_a_refused_operation_tells_its_code(entry_point: EntryPoint) -> None:
    owner, other = entry_point.devnet.deployment.accounts[_OWNER], entry_point.devnet.deployment.accounts[_DEPLOYER]
    operation = entry_point.creation(owner, entry_point.bench.token.address, b"")
    wrong = entry_point.signed(operation, other)
    poor = entry_point.signed(changed(operation, max_fee_per_gas=10**18), owner)
    for refused, code in ((wrong, "AA24"), (poor, "AA21")):
        data = encode_handle_ops(entry_point.version, [refused], bytes(19) + b"\1")
        failure = decode_failure(_revert_data(entry_point, data))
        assert isinstance(failure, FailedOperation)
        assert (failure.index, failure.code, failure.entity) == (0, code, "account")


def _revert_data(entry_point: EntryPoint, data: bytes) -> bytes:
    with pytest.raises(NodeRpcError) as caught:
        entry_point.devnet.call("eth_call", {"to": entry_point.address, "data": to_data(data)}, "latest")
    found = caught.value.data
    # Hardhat wraps the bytes in an object.
    assert isinstance(found, dict)
    return bytes.fromhex(str(found["data"])[2:])


def test_the_result_of_the_hash_is_one_word(entry_point: EntryPoint) -> None:
    (value,) = decode(["bytes32"], entry_point.hash(UserOperation(sender=bytes(20), nonce=0)))
    assert len(value) == 32
