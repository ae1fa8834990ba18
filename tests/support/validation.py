"""What the tests of validation share: a network on a real node, contracts on it, and operations of them.

The node is the development chain or geth; both are used through plain JSON-RPC and signed transactions alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from capstan.bundler.refusals import Refusal
from capstan.bundler.validating import Validated
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
from capstan.core.creation import create2_address
from capstan.devnet.models import DevAccount
from capstan.userops.models import UserOperation
from capstan.userops.versions import Version
from tests.support import bytecode
from tests.support.devnet import EvmDevnet

ETHER = 10**18


@asynccontextmanager
async def validation_of(url: str, chain_id: int, workers: Workers | None = None) -> AsyncIterator[NetworkValidation]:
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
        )
    finally:
        await registry.close()
        await heads.close()
        if workers is None:
            await pool.close()


class Deployer:
    """Puts contracts onto the development chain."""

    def __init__(self, devnet: EvmDevnet, version: Version, account: DevAccount) -> None:
        self.devnet = devnet
        self.version: Version = version
        self.account = account
        self.entry_point = devnet.deployment.entry_points[version]

    def deploy(self, runtime: bytes, *, deposit: int = 0, stake: int = 0) -> bytes:
        """A contract with this code, its deposit and its stake at the entry point."""
        receipt = self.devnet.send(self.account, None, data=bytecode.deployer(runtime))
        assert receipt["status"] == "0x1", "the contract was not created"
        address: str = receipt["contractAddress"]
        if deposit:
            self.deposit(bytes.fromhex(address[2:]), deposit)
        if stake:
            assert self.devnet.send(self.account, address, value=stake)["status"] == "0x1", "the stake was not taken"
        return bytes.fromhex(address[2:])

    def deposit(self, address: bytes, amount: int = ETHER) -> None:
        data = bytes.fromhex("b760faf9") + address.rjust(32, b"\0")
        assert self.devnet.send(self.account, self.entry_point, data=data, value=amount)["status"] == "0x1"


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
