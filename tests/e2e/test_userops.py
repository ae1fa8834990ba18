"""The codecs against the entry points that run on the development chain: hashes, bundles, events, errors, costs."""

import random
from typing import Any

import msgspec
import pytest
from eth_abi.abi import decode, encode
from eth_account import Account
from eth_utils.crypto import keccak

from capstan.core.hexes import to_data
from capstan.devnet.errors import NodeRpcError
from capstan.devnet.evm import CHAIN_ID
from capstan.devnet.install import NodeProject
from capstan.devnet.models import DevAccount
from capstan.userops.codec import codec_for, decode_handle_ops, encode_handle_ops
from capstan.userops.events import (
    AccountDeployed,
    BeforeExecution,
    Event,
    OperationHandled,
    OperationReverted,
    decode_event,
)
from capstan.userops.failures import FailedOperation, decode_failure
from capstan.userops.gas import Overheads, pre_verification_gas
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version
from tests.contracts.chain import Chain
from tests.contracts.operations import Bench
from tests.support.devnet import EvmDevnet
from tests.unit.userops import reference

VERSIONS: tuple[Version, ...] = ("0.6", "0.7", "0.8")
every_version = pytest.mark.parametrize("version", VERSIONS)
_DEPLOYER, _OWNER, _BUNDLER = 14, 15, 16


class EntryPoint:
    """One entry point of the chain, called with our encodings."""

    def __init__(self, devnet: EvmDevnet, project: NodeProject, version: Version) -> None:
        self.devnet = devnet
        self.version = version
        self.address = devnet.deployment.entry_points[version]
        self.bench = Bench(Chain(devnet), project, version)

    def hash(self, operation: UserOperation) -> bytes:
        """What the contract says the hash is."""
        kind = reference.kind(self.version)
        data = keccak(f"getUserOpHash({kind})".encode())[:4] + encode(
            [kind], [reference.values(self.version, operation)]
        )
        found: str = self.devnet.call("eth_call", {"to": self.address, "data": to_data(data)}, "latest")
        return bytes.fromhex(found[2:])

    def our_hash(self, operation: UserOperation, **options: Any) -> bytes:
        """What we say it is."""
        return codec_for(self.version).hash(operation, bytes.fromhex(self.address[2:]), CHAIN_ID, **options)

    def signed(self, operation: UserOperation, owner: DevAccount) -> UserOperation:
        """With the owner's signature over our hash."""
        digest = self.our_hash(operation)
        if self.version != "0.8":
            digest = keccak(b"\x19Ethereum Signed Message:\n32" + digest)
        signature = bytes(Account.unsafe_sign_hash(digest, owner.private_key).signature)
        return _with(operation, signature=signature)

    def creation(self, owner: DevAccount, target: str, call: bytes) -> UserOperation:
        """An operation that creates an account of this owner, which then calls `target`."""
        salt = random.SystemRandom().getrandbits(64)
        factory = self.bench.factory
        sender: str = factory.functions.getAddress(owner.address, salt).call()
        create = keccak(b"createAccount(address,uint256)")[:4] + encode(["address", "uint256"], [owner.address, salt])
        execute = keccak(b"execute(address,uint256,bytes)")[:4] + encode(
            ["address", "uint256", "bytes"], [target, 0, call]
        )
        self.devnet.send(owner, sender, value=10**18)
        return UserOperation(
            sender=bytes.fromhex(sender[2:]),
            nonce=0,
            factory=bytes.fromhex(factory.address[2:]),
            factory_data=create,
            call_data=execute,
            call_gas_limit=100_000,
            verification_gas_limit=600_000,
            pre_verification_gas=60_000,
            max_fee_per_gas=20 * 10**9,
            max_priority_fee_per_gas=10**9,
        )

    def events(self, receipt: dict[str, Any]) -> list[Event | None]:
        """What its logs say; None for those of other contracts."""
        return [
            decode_event([bytes.fromhex(topic[2:]) for topic in log["topics"]], bytes.fromhex(log["data"][2:]))
            for log in receipt["logs"]
        ]

    def bundle(self, *operations: UserOperation, gas: int = 5_000_000) -> dict[str, Any]:
        """The receipt of the transaction that carries them."""
        bundler = self.devnet.deployment.accounts[_BUNDLER]
        data = encode_handle_ops(self.version, operations, bytes.fromhex(bundler.address[2:]))
        return self.devnet.send(bundler, self.address, data=data, gas=gas)


def _with(operation: UserOperation, **changes: Any) -> UserOperation:
    return msgspec.structs.replace(operation, **changes)


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
        operation = _with(
            operation, factory=source.randbytes(20), factory_data=source.randbytes(source.choice([0, 68]))
        )
    if source.random() < 0.5:
        operation = _with(operation, paymaster=source.randbytes(20), paymaster_data=source.randbytes(129))
        if version != "0.6":
            limits = {"paymaster_verification_gas_limit": source.getrandbits(128)}
            operation = _with(operation, paymaster_post_op_gas_limit=source.getrandbits(128), **limits)
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
                _with(entry_point.creation(owner, owner.address, b""), call_data=b"\1" * size, call_gas_limit=0), owner
            )
            for _ in range(count)
        ]
        overheads = Overheads(bundle_size=count)
        estimate = sum(
            pre_verification_gas(entry_point.version, each, overheads=overheads).total for each in operations
        )
        receipt = entry_point.bundle(*operations, gas=10_000_000)
        assert receipt["status"] == "0x1"
        handled = [event for event in entry_point.events(receipt) if isinstance(event, OperationHandled)]
        assert len(handled) == count
        measured = sum(event.actual_gas_used - operations[0].pre_verification_gas for event in handled)
        spent = int(receipt["gasUsed"], 16) - measured
        assert spent <= estimate <= spent + 5_000 * count, (size, spent, estimate)


def test_a_refused_operation_tells_its_code(entry_point: EntryPoint) -> None:
    owner, other = entry_point.devnet.deployment.accounts[_OWNER], entry_point.devnet.deployment.accounts[_DEPLOYER]
    operation = entry_point.creation(owner, entry_point.bench.token.address, b"")
    wrong = entry_point.signed(operation, other)
    poor = entry_point.signed(_with(operation, max_fee_per_gas=10**18), owner)
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
