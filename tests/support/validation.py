"""What the tests of validation share: a network on a real node, contracts on it, and operations of them.

The node is the development chain or geth; both are used through plain JSON-RPC and signed transactions alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import msgspec

from capstan.bundler.models import Role
from capstan.bundler.refusals import Refusal
from capstan.bundler.validating import Validated
from capstan.bundler.validation.choosing import Backend
from capstan.bundler.validation.making import NetworkValidation
from capstan.bundler.validation.service import TracingValidator
from capstan.bundler.validation.workers import WorkerLimits, Workers
from capstan.chain.calls.blocks import HeadBlocks
from capstan.chain.calls.reader import StateReader
from capstan.chain.heads.latest import LatestHeads
from capstan.chain.models import NetworkSpec, UpstreamSpec
from capstan.chain.registry import ChainRegistry
from capstan.chain.upstream import open_session
from capstan.core.clock import SystemClock
from capstan.core.creation import create2_address, create_address
from capstan.core.hexes import to_checksum_address
from capstan.devnet.models import DevAccount
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version
from tests.support import bytecode
from tests.validation.cases import HELPERS, Case

ETHER = 10**18


@asynccontextmanager
async def validation_of(
    url: str, chain_id: int, workers: Workers | None = None, backend: Backend = "auto"
) -> AsyncIterator[NetworkValidation]:
    """The validation of the network that this node serves."""
    clock = SystemClock()
    registry = ChainRegistry(open_session(), clock)
    heads = LatestHeads(clock)
    pool = workers or Workers(WorkerLimits(processes=1, job_seconds=30))
    upstream = UpstreamSpec(name="node", url=url)
    registry.replace(
        [
            NetworkSpec(
                chain="ethereum",
                network="devnet",
                family="evm",
                upstreams=(upstream,),
                block_time_ms=1000,
                # The head is asked for anew each time.
                dev_methods=True,
            )
        ]
    )
    try:
        yield NetworkValidation(
            registry.get("ethereum", "devnet"),
            chain_id,
            blocks=HeadBlocks(heads, clock),
            reader=StateReader(lambda _network: ""),
            workers=pool,
            clock=clock,
            backend=backend,
        )
    finally:
        await registry.close()
        await heads.close()
        if workers is None:
            await pool.close()


class ChainUnderTest(Protocol):
    """What is needed of a chain: the development chain, or geth."""

    url: str

    def call(self, method: str, *params: object) -> Any: ...

    def send(self, account: DevAccount, to: str | None, *, data: bytes = b"", value: int = 0) -> dict[str, Any]: ...


class Deployer:
    """Puts contracts onto a chain and makes operations of them."""

    def __init__(
        self,
        chain: ChainUnderTest,
        version: Version,
        account: DevAccount,
        entry_point: str,
        helpers: Mapping[str, bytes] = HELPERS,
    ) -> None:
        self.chain = chain
        self.version: Version = version
        self.account = account
        self.entry_point = entry_point
        self._codes = helpers
        self._helpers: dict[str, str] = {}

    def deploy(self, runtime: bytes, *, deposit: int = 0, stake: int = 0, funds: int = 0) -> bytes:
        """A contract with this code, its ether, its deposit and its stake at the entry point."""
        receipt = self.chain.send(self.account, None, data=bytecode.deployer(runtime), value=funds)
        assert receipt["status"] == "0x1", "the contract was not created"
        address: str = receipt["contractAddress"]
        if deposit:
            self.deposit(bytes.fromhex(address[2:]), deposit)
        if stake:
            staked = self.chain.send(self.account, to_checksum_address(address), value=stake)
            assert staked["status"] == "0x1", "the stake was not taken"
        return bytes.fromhex(address[2:])

    def deposit(self, address: bytes, amount: int = ETHER) -> None:
        data = bytes.fromhex("b760faf9") + address.rjust(32, b"\0")
        assert self.chain.send(self.account, self.entry_point, data=data, value=amount)["status"] == "0x1"

    def operation(self, case: Case) -> UserOperation:
        """The operation of a case, with its contracts on the chain."""
        sender_code = bytecode.account(self.entry_point, self._program(case.account))
        changes: dict[str, object] = {}
        if case.factory is None:
            sender = self.deploy(sender_code, funds=case.funds, deposit=ETHER, stake=_stake(case, "account"))
        else:
            factory, sender = self._factory(case, sender_code)
            self.deposit(sender)
            changes |= {"factory": factory, "factory_data": b"\x01"}
        if case.paymaster is not None:
            code = bytecode.paymaster(self.entry_point, self._program(case.paymaster))
            paymaster = self.deploy(code, deposit=ETHER, stake=_stake(case, "paymaster"))
            changes |= {"paymaster": paymaster}
            if self.version != "0.6":
                changes |= {"paymaster_verification_gas_limit": 500_000, "paymaster_post_op_gas_limit": 50_000}
        return operation_of(sender, **changes)

    def helper(self, name: str) -> str:
        """The address of a helper contract, which is put onto the chain when it is first asked for."""
        if name not in self._helpers:
            self._helpers[name] = "0x" + self.deploy(self._codes[name]).hex()
        return self._helpers[name]

    def _program(self, program: str, **known: str) -> str:
        for name in self._codes:
            if f"{{{name}}}" in program:
                known[name] = self.helper(name)
        return program.format(ep=self.entry_point, **known)

    def _factory(self, case: Case, sender_code: bytes) -> tuple[bytes, bytes]:
        """A factory, and the sender it will create. The program may name the sender, which follows from the nonce."""
        program = case.factory or ""
        known = self._program(program, sender="{sender}")
        nonce = int(self.chain.call("eth_getTransactionCount", self.account.address, "latest"), 16)
        factory = create_address(bytes.fromhex(self.account.address[2:]), nonce)
        sender = created_by(factory, sender_code)
        code = bytecode.factory(self.entry_point, sender_code, known.format(sender="0x" + sender.hex()))
        assert self.deploy(code, stake=_stake(case, "factory")) == factory
        return factory, sender


def _stake(case: Case, role: Role) -> int:
    return ETHER if role in case.staked else 0


def operation_of(sender: bytes, **changes: object) -> UserOperation:
    """An operation of this sender that calls nothing."""
    operation = UserOperation(
        sender=sender,
        nonce=0,
        call_gas_limit=50_000,
        verification_gas_limit=500_000,
        pre_verification_gas=60_000,
        max_fee_per_gas=10**9,
        max_priority_fee_per_gas=10**9,
        signature=b"\x01",
    )
    return msgspec.structs.replace(operation, **changes)


async def verdict(validator: TracingValidator, operation: UserOperation) -> tuple[int, str] | Validated:
    """What the validator says: code and message of its refusal, or what it found out."""
    try:
        return await validator.validate(operation)
    except Refusal as refusal:
        return refusal.code, refusal.message


def created_by(factory: bytes, runtime: bytes) -> bytes:
    """The address of the contract that a factory of `bytecode.factory` creates."""
    return create2_address(factory, bytes(32), bytecode.deployer(runtime))
