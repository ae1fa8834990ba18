"""Validation by simulation, on the real entry points: what they say of an operation, its time range and stakes."""

from collections.abc import Callable
from typing import Any

import pytest
from eth_account import Account

from capstan.bundler.refusals import OUT_OF_TIME_RANGE, REJECTED_BY_ACCOUNT, SIGNATURE_FAILED, Refusal
from capstan.bundler.simulated import SimulationValidator, StakeRule
from capstan.bundler.simulator import Simulator
from capstan.bundler.validating import Validated
from capstan.core.errors import UpstreamError
from capstan.devnet.evm import CHAIN_ID
from capstan.devnet.install import NodeProject
from capstan.userops.models import Authorization, UserOperation
from capstan.userops.simulation import ORIGINAL, deposit_override
from tests.contracts.operations import Operation, times
from tests.support.devnet import EvmDevnet
from tests.support.entrypoint import EntryPoint, changed
from tests.support.simulation import open_network

_OWNER, _OTHER = 15, 14


@pytest.fixture(params=["0.6", "0.7", "0.8"])
def entry_point(request: pytest.FixtureRequest, evm_devnet: EvmDevnet, node_project: NodeProject) -> EntryPoint:
    return EntryPoint(evm_devnet, node_project, request.param)


async def validated(entry_point: EntryPoint, operation: UserOperation) -> Validated:
    async with open_network(entry_point.devnet.url) as (network, heads):
        simulator = Simulator(lambda: network, entry_point.version, bytes.fromhex(entry_point.address[2:]), CHAIN_ID)
        return await SimulationValidator(simulator, heads, StakeRule()).validate(operation)


async def refused(entry_point: EntryPoint, operation: UserOperation) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await validated(entry_point, operation)
    return caught.value


def creation(entry_point: EntryPoint) -> UserOperation:
    owner = entry_point.devnet.deployment.accounts[_OWNER]
    return entry_point.creation(owner, owner.address, b"")


async def test_a_good_operation_passes_and_its_entities_are_told(entry_point: EntryPoint) -> None:
    operation = entry_point.signed(creation(entry_point), entry_point.devnet.deployment.accounts[_OWNER])
    found = await validated(entry_point, operation)
    assert (found.sender.address, found.sender.staked) == (operation.sender, False)
    assert found.factory is not None
    assert (found.factory.address, found.factory.staked) == (operation.factory, False)
    assert (found.paymaster, found.valid_after, found.valid_until) == (None, 0, None)
    # Nothing of the simulation stays behind: the account was not created, the entry point is itself.
    assert entry_point.devnet.call("eth_getCode", "0x" + operation.sender.hex(), "latest") == "0x"
    assert entry_point.devnet.call("eth_getCode", "0x" + ORIGINAL.hex(), "latest") == "0x"


async def test_a_wrong_signature_is_refused(entry_point: EntryPoint) -> None:
    operation = entry_point.signed(creation(entry_point), entry_point.devnet.deployment.accounts[_OTHER])
    refusal = await refused(entry_point, operation)
    assert (refusal.code, refusal.message) == (SIGNATURE_FAILED, "AA24 signature error")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda operation: changed(operation, max_fee_per_gas=10**18), "AA21"),
        (lambda operation: changed(operation, nonce=7), "AA25"),
        (lambda operation: changed(operation, factory=b"\x11" * 20), "AA13"),
        (lambda operation: changed(operation, sender=b"\x11" * 20), "AA14"),
    ],
)
async def test_a_refused_operation_tells_the_entry_points_code(
    entry_point: EntryPoint, spoil: Callable[[UserOperation], UserOperation], code: str
) -> None:
    operation = entry_point.signed(spoil(creation(entry_point)), entry_point.devnet.deployment.accounts[_OWNER])
    refusal = await refused(entry_point, operation)
    assert (refusal.code, refusal.message[:4]) == (REJECTED_BY_ACCOUNT, code)


async def test_paymaster_with_its_stake_and_time_range(entry_point: EntryPoint) -> None:
    found = await validated(entry_point, _sponsored(entry_point, until=2**33, after=5))
    assert found.paymaster is not None
    paymaster = bytes.fromhex(entry_point.bench.paymaster.address[2:])
    assert (found.paymaster.address, found.paymaster.staked) == (paymaster, True)
    assert (found.valid_after, found.valid_until) == (5, 2**33)
    assert not found.sender.staked


async def test_an_expired_paymaster_is_refused_with_its_times(entry_point: EntryPoint) -> None:
    refusal = await refused(entry_point, _sponsored(entry_point, until=1000, after=5))
    assert refusal.code == OUT_OF_TIME_RANGE
    assert refusal.message.startswith("AA32")
    assert (refusal.data["validUntil"], refusal.data["validAfter"]) == (hex(1000), "0x5")


def _sponsored(entry_point: EntryPoint, *, until: int, after: int) -> UserOperation:
    bench, owner = entry_point.bench, entry_point.devnet.deployment.accounts[_OWNER]
    made: Operation = bench.sign(bench.sponsor(bench.new_account_operation(owner), until=until, after=after), owner)
    limits: dict[str, Any] = (
        {}
        if entry_point.version == "0.6"
        else {
            "paymaster_verification_gas_limit": made.paymaster_gas,
            "paymaster_post_op_gas_limit": made.post_operation_gas,
        }
    )
    assert made.paymaster_data[:64] == times(until, after)
    return UserOperation(
        sender=bytes.fromhex(made.sender[2:]),
        nonce=made.nonce,
        factory=made.init_code[:20],
        factory_data=made.init_code[20:],
        call_data=made.call_data,
        call_gas_limit=made.call_gas,
        verification_gas_limit=made.verification_gas,
        pre_verification_gas=made.pre_verification_gas,
        max_fee_per_gas=made.max_fee,
        max_priority_fee_per_gas=made.max_priority_fee,
        paymaster=bytes.fromhex(made.paymaster[2:]),
        paymaster_data=made.paymaster_data,
        signature=made.signature,
        **limits,
    )


async def test_an_entry_point_that_is_not_there_is_said_so(evm_devnet: EvmDevnet) -> None:
    async with open_network(evm_devnet.url) as (network, _heads):
        simulator = Simulator(lambda: network, "0.7", b"\x12" * 20, CHAIN_ID)
        with pytest.raises(UpstreamError, match="no entry point"):
            await simulator.entry_point()


def test_the_slot_of_a_deposit_is_where_we_override_it(entry_point: EntryPoint) -> None:
    devnet = entry_point.devnet
    paymaster = devnet.deployment.paymasters[entry_point.version]
    slot, _ = deposit_override(entry_point.version, bytes.fromhex(paymaster[2:]))
    kept = int(devnet.call("eth_getStorageAt", entry_point.address, slot, "latest"), 16)
    deposit = entry_point.bench.entry_point.functions.balanceOf(paymaster).call()
    assert deposit > 0
    assert (kept & (2**112 - 1) if entry_point.version == "0.6" else kept) == deposit


async def test_an_account_of_a_key_is_validated_with_the_code_its_tuple_gives(
    evm_devnet: EvmDevnet, node_project: NodeProject
) -> None:
    """EIP-7702: the account has no code yet; the tuple that the operation carries will give it some."""
    entry_point = EntryPoint(evm_devnet, node_project, "0.8")
    key = Account.create()
    delegate = entry_point.deploy_7702_account()
    evm_devnet.send(evm_devnet.deployment.accounts[_OWNER], key.address, value=10**18)
    operation = UserOperation(
        sender=bytes.fromhex(key.address[2:]),
        nonce=0,
        factory=b"\x77\x02",
        call_gas_limit=50_000,
        verification_gas_limit=200_000,
        pre_verification_gas=100_000,
        max_fee_per_gas=20 * 10**9,
        max_priority_fee_per_gas=10**9,
        authorization=Authorization(CHAIN_ID, delegate, 0, 0, 1, 1),
    )
    signature = Account.unsafe_sign_hash(entry_point.our_hash(operation), key.key).signature
    found = await validated(entry_point, changed(operation, signature=bytes(signature)))
    assert (found.sender.address, found.factory) == (operation.sender, None)
    assert (await refused(entry_point, changed(operation, signature=bytes(65)))).code in (
        SIGNATURE_FAILED,
        REJECTED_BY_ACCOUNT,
    )
