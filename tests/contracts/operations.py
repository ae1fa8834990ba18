"""Builds, signs and sends UserOperations of every entry point version, for the paymaster tests.

The versions differ in data, not in steps: the fields of the operation, and how the account's signature is made. The
hashes the paymaster's signer signs are computed here once more, independently of the contracts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_defunct
from eth_typing import ChecksumAddress
from eth_utils.crypto import keccak
from web3.contract import Contract

from capstan.devnet.artifacts import load_contract, load_package_contract
from capstan.devnet.evm import CHAIN_ID
from capstan.devnet.install import NodeProject
from capstan.devnet.models import DevAccount
from capstan.devnet.plan import RELEASES
from tests.contracts.chain import Chain

VERSIONS = ("0.6", "0.7", "0.8")
FAR_FUTURE = 2**48 - 1
NO_SIGNATURE = bytes(65)


@dataclass(frozen=True)
class Operation:
    """A UserOperation, independent of the version. `data` is what follows the paymaster's address and gas limits."""

    sender: ChecksumAddress
    nonce: int = 0
    init_code: bytes = b""
    call_data: bytes = b""
    call_gas: int = 300_000
    verification_gas: int = 600_000
    pre_verification_gas: int = 60_000
    max_fee: int = 20 * 10**9
    max_priority_fee: int = 10**9
    paymaster: str = ""
    paymaster_gas: int = 150_000
    post_operation_gas: int = 1_000
    paymaster_data: bytes = b""
    signature: bytes = field(default=NO_SIGNATURE)

    def paymaster_and_data(self, version: str) -> bytes:
        if not self.paymaster:
            return b""
        limits = b"" if version == "0.6" else word16(self.paymaster_gas) + word16(self.post_operation_gas)
        return bytes.fromhex(self.paymaster[2:]) + limits + self.paymaster_data

    def packed(self, version: str) -> tuple[Any, ...]:
        """The struct that the entry point of this version takes."""
        start = (self.sender, self.nonce, self.init_code, self.call_data)
        end = (self.paymaster_and_data(version), self.signature)
        if version == "0.6":
            fees = (self.max_fee, self.max_priority_fee)
            return (*start, self.call_gas, self.verification_gas, self.pre_verification_gas, *fees, *end)
        gas_limits = word16(self.verification_gas) + word16(self.call_gas)
        return (
            *start,
            gas_limits,
            self.pre_verification_gas,
            word16(self.max_priority_fee) + word16(self.max_fee),
            *end,
        )


def word16(number: int) -> bytes:
    return number.to_bytes(16, "big")


def times(valid_until: int, valid_after: int) -> bytes:
    return encode(["uint48", "uint48"], [valid_until, valid_after])


def digest_v06(
    operation: Operation, paymaster: str, sender_nonce: int, until: int, after: int, chain_id: int = CHAIN_ID
) -> bytes:
    """What the 0.6 signer signs: the ABI-encoded operation up to paymasterAndData, then where and when it counts."""
    kinds = "(address,uint256,bytes,bytes,uint256,uint256,uint256,uint256,uint256,bytes,bytes)"
    # The first word only points behind itself.
    encoded = encode([kinds], [operation.packed("0.6")])[32:]
    length = 11 * 32 + 2 * 32 + -(-len(operation.init_code) // 32) * 32 + -(-len(operation.call_data) // 32) * 32
    return keccak(
        encode(
            ["bytes", "uint256", "address", "uint256", "uint48", "uint48"],
            [encoded[:length], chain_id, paymaster, sender_nonce, until, after],
        )
    )


def digest_v07(operation: Operation, paymaster: str, until: int, after: int, chain_id: int = CHAIN_ID) -> bytes:
    """What the 0.7 and 0.8 signer signs."""
    sender, nonce, init_code, call_data, gas_limits, pre_verification_gas, fees, _, _ = operation.packed("0.7")
    paymaster_limits = (operation.paymaster_gas << 128) | operation.post_operation_gas
    return keccak(
        encode(
            [
                *("address", "uint256", "bytes32", "bytes32", "bytes32", "uint256"),
                *("uint256", "bytes32", "uint256", "address", "uint48", "uint48"),
            ],
            [
                *(sender, nonce, keccak(init_code), keccak(call_data), gas_limits, paymaster_limits),
                *(pre_verification_gas, fees, chain_id, paymaster, until, after),
            ],
        )
    )


def personal_sign(key: str, digest: bytes) -> bytes:
    return bytes(Account.sign_message(encode_defunct(digest), key).signature)


def random_operation(source: random.Random) -> Operation:
    """An operation with fields of every size, none of which needs to make sense."""
    return Operation(
        sender=Account.from_key(source.randbytes(32)).address,
        nonce=source.getrandbits(256),
        init_code=source.randbytes(source.choice([0, 1, 31, 32, 33, 200, 4096])),
        call_data=source.randbytes(source.choice([0, 1, 31, 32, 33, 500, 8192])),
        call_gas=source.getrandbits(128),
        verification_gas=source.getrandbits(128),
        pre_verification_gas=source.getrandbits(256),
        max_fee=source.getrandbits(128),
        max_priority_fee=source.getrandbits(128),
        paymaster=Account.from_key(source.randbytes(32)).address,
        paymaster_gas=source.getrandbits(128),
        post_operation_gas=source.getrandbits(128),
        paymaster_data=source.randbytes(source.choice([64, 65, 129])),
        signature=source.randbytes(source.choice([0, 1, 65, 4096])),
    )


class Bench:
    """One entry point version with its factory and a paymaster: everything an operation needs."""

    def __init__(self, chain: Chain, project: NodeProject, version: str) -> None:
        self.chain = chain
        self.version = version
        self.package = RELEASES[version].package
        deployment = chain.devnet.deployment
        self.signer = deployment.paymaster_signer
        self.owner = deployment.paymaster_owner
        self.entry_point = self._load(project, deployment.entry_points[version], "EntryPoint")
        self.factory = self._load(project, deployment.factories[version], "SimpleAccountFactory")
        self.paymaster_name = RELEASES[version].paymaster_contract
        self.paymaster = chain.contract(deployment.paymasters[version], load_contract(self.paymaster_name).abi)
        self.account_abi = load_package_contract(project, self.package, "SimpleAccount").abi
        self.token = chain.contract(deployment.tokens[0].address, load_contract("SampleERC20").abi)

    def _load(self, project: NodeProject, address: str, name: str) -> Contract:
        return self.chain.contract(address, load_package_contract(project, self.package, name).abi)

    def deploy_paymaster(self, owner: DevAccount, signer: str) -> Contract:
        return self.chain.deploy_sample(self.paymaster_name, self.entry_point.address, signer, owner.address)

    def new_account_operation(self, owner: DevAccount, *, minted: int = 1) -> Operation:
        """Creates a new account of this owner and mints sample tokens to it."""
        salt = random.SystemRandom().getrandbits(128)
        sender = self.factory.functions.getAddress(owner.address, salt).call()
        create = self.factory.functions.createAccount(owner.address, salt)._encode_transaction_data()
        mint = self.token.functions.mint(sender, minted)._encode_transaction_data()
        account = self.chain.contract(sender, self.account_abi)
        execute = account.functions.execute(self.token.address, 0, bytes.fromhex(mint[2:]))._encode_transaction_data()
        return Operation(
            sender=sender,
            init_code=bytes.fromhex(self.factory.address[2:] + create[2:]),
            call_data=bytes.fromhex(execute[2:]),
        )

    def sponsor(
        self,
        operation: Operation,
        *,
        paymaster: Contract | None = None,
        signer_key: str | None = None,
        until: int = FAR_FUTURE,
        after: int = 0,
    ) -> Operation:
        """The operation with the paymaster's data, signed by its signer over what the contract's getHash says."""
        paymaster = paymaster or self.paymaster
        unsigned = replace(operation, paymaster=paymaster.address, paymaster_data=times(until, after) + NO_SIGNATURE)
        digest = paymaster.functions.getHash(unsigned.packed(self.version), until, after).call()
        return self.with_paymaster_signature(unsigned, personal_sign(signer_key or self.signer.private_key, digest))

    @staticmethod
    def with_paymaster_signature(operation: Operation, signature: bytes) -> Operation:
        return replace(operation, paymaster_data=operation.paymaster_data[:64] + signature)

    def sign(self, operation: Operation, owner: DevAccount) -> Operation:
        digest = self.entry_point.functions.getUserOpHash(operation.packed(self.version)).call()
        if self.version == "0.8":
            # From 0.8 on the hash is EIP-712 already and is signed as it is.
            return replace(operation, signature=bytes(Account.unsafe_sign_hash(digest, owner.private_key).signature))
        return replace(operation, signature=personal_sign(owner.private_key, digest))

    def validate(self, operation: Operation, *, paymaster: Contract | None = None) -> tuple[bytes, int]:
        """Calls the paymaster's validation as the entry point does: (context, validationData)."""
        function = (paymaster or self.paymaster).functions.validatePaymasterUserOp
        context, data = function(operation.packed(self.version), bytes(32), 0).call({"from": self.entry_point.address})
        return context, data

    def handle(self, operation: Operation, bundler: DevAccount) -> dict[str, Any]:
        """Sends the operation in a transaction of its own and returns the arguments of its UserOperationEvent."""
        handle = self.entry_point.functions.handleOps([operation.packed(self.version)], bundler.address)
        receipt = self.chain.transact(bundler, handle)
        (event,) = self.chain.events(self.entry_point, "UserOperationEvent", receipt)
        return event
