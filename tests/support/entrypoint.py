"""An entry point of the development chain, called with our encodings: makes, signs and bundles operations.

Used by the tests of user operations and of the bundler. Everything runs on the real contracts.
"""

import random
from typing import Any

import msgspec
from eth_abi.abi import encode
from eth_account import Account
from eth_utils.crypto import keccak

from capstan.core.hexes import to_data
from capstan.devnet.artifacts import load_package_contract
from capstan.devnet.evm import CHAIN_ID
from capstan.devnet.install import NodeProject
from capstan.devnet.models import DevAccount
from capstan.userops.codec import codec_for, encode_handle_ops
from capstan.userops.events import Event, decode_event
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version
from tests.contracts.chain import Chain
from tests.contracts.operations import Bench
from tests.support.devnet import EvmDevnet
from tests.unit.userops import reference

_BUNDLER = 16
# What clients put in the place of a signature they do not have yet.
DUMMY_SIGNATURE = bytes.fromhex(
    "fffffffffffffffffffffffffffffff0000000000000000000000000000000007aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1c"
)


class EntryPoint:
    """One entry point of the chain, called with our encodings."""

    def __init__(self, devnet: EvmDevnet, project: NodeProject, version: Version) -> None:
        self.devnet = devnet
        self.project = project
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
        return changed(operation, signature=signature)

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

    def deploy_7702_account(self) -> bytes:
        """A contract that accounts of keys may delegate to (EIP-7702), made for this entry point."""
        compiled = load_package_contract(self.project, "aa08", "Simple7702Account")
        made = self.bench.chain.deploy(compiled.abi, compiled.bytecode, self.address)
        return bytes.fromhex(made.address[2:])

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


def changed(operation: UserOperation, **changes: Any) -> UserOperation:
    """The operation with other fields."""
    return msgspec.structs.replace(operation, **changes)
