"""Estimates on the real entry points: an operation that is sent with what was estimated lands, and no less would do."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from eth_abi.abi import encode
from eth_account import Account
from eth_utils.crypto import keccak
from vyper import compile_code

from capstan.bundler.datafee import data_fee_of
from capstan.bundler.estimation.models import GasLimits, Price
from capstan.bundler.estimation.service import GasEstimator
from capstan.bundler.refusals import EXECUTION_REVERTED, REJECTED_BY_ACCOUNT, Refusal
from capstan.bundler.simulator import Simulator, StateOverride
from capstan.catalogue.networks import DataFee as DataFeeKind
from capstan.core.errors import UpstreamError
from capstan.core.hexes import to_checksum_address, to_data
from capstan.devnet.evm import CHAIN_ID
from capstan.devnet.install import NodeProject
from capstan.userops.events import OperationHandled
from capstan.userops.gas import least_pre_verification_gas
from capstan.userops.models import Authorization, UserOperation
from capstan.userops.versions import Version
from tests.contracts.chain import MOCKS
from tests.support.devnet import EvmDevnet
from tests.support.entrypoint import DUMMY_SIGNATURE, EntryPoint, changed
from tests.support.simulation import open_network

_OWNER = 15
_FEE, _TIP = 20 * 10**9, 10**9


class Estimates:
    """One entry point with an account of our owner, contracts that are busy, and an estimator."""

    def __init__(self, devnet: EvmDevnet, project: NodeProject, version: Version) -> None:
        self.point = EntryPoint(devnet, project, version)
        self.owner = devnet.deployment.accounts[_OWNER]
        self.busy = self._deploy("Busy")
        self._places = iter(range(10_000, 10**9, 10_000))

    def _deploy(self, name: str, *arguments: object) -> bytes:
        compiled = compile_code((MOCKS / f"{name}.vy").read_text(), output_formats=["abi", "bytecode"])
        made = self.point.bench.chain.deploy(compiled["abi"], compiled["bytecode"], *arguments)
        return bytes.fromhex(made.address[2:])

    def paymaster(self, context: int) -> bytes:
        """A paymaster with a deposit, which works in postOp when there is a context."""
        address = self._deploy("PostPaymaster", self.point.address, context)
        deposit = keccak(b"depositTo(address)")[:4] + encode(["address"], [address])
        self.point.devnet.send(self.owner, self.point.address, data=deposit, value=10**18)
        return address

    def place(self) -> int:
        """A storage slot that nothing used before."""
        return next(self._places)

    def batch(self, calls: list[bytes]) -> bytes:
        """The call of an account that calls the busy contract several times. Every version has its own form."""
        target = to_checksum_address(self.busy)
        match self.point.version:
            case "0.6":
                kinds: list[str] = ["address[]", "bytes[]"]
                values: list[object] = [[target] * len(calls), calls]
            case "0.7":
                kinds = ["address[]", "uint256[]", "bytes[]"]
                values = [[target] * len(calls), [0] * len(calls), calls]
            case _:
                kinds, values = ["(address,uint256,bytes)[]"], [[(target, 0, call) for call in calls]]
        return keccak(f"executeBatch({','.join(kinds)})".encode())[:4] + encode(kinds, values)

    def call(self, signature: str, *numbers: int) -> bytes:
        """Calldata for the busy contract."""
        return keccak(signature.encode())[:4] + encode(["uint256"] * len(numbers), numbers)

    def creation(self, call: bytes | None) -> UserOperation:
        """Creates an account that makes this call of the busy contract, or none; without limits, fees and signature."""
        made = self.point.creation(self.owner, to_checksum_address(self.busy), call or b"")
        return bare(made if call is not None else changed(made, call_data=b""))

    def existing(self) -> UserOperation:
        """An operation without a call, of an account that is there and has money."""
        made = changed(self.point.creation(self.owner, self.owner.address, b""), call_data=b"")
        receipt = self.point.bundle(self.point.signed(made, self.owner))
        assert receipt["status"] == "0x1"
        return changed(bare(made), factory=None, factory_data=b"", nonce=1)

    async def estimate(
        self, operation: UserOperation, overrides: StateOverride | None = None, *, data_fee: DataFeeKind = "none"
    ) -> GasLimits:
        """As the method would."""

        async def price() -> Price:
            return Price(10**9, _FEE, _TIP)

        async with open_network(self.point.devnet.url) as (network, _heads):
            simulator = Simulator(lambda: network, self.point.version, bytes.fromhex(self.point.address[2:]), CHAIN_ID)
            estimator = GasEstimator(simulator, price, data_fee=data_fee_of(data_fee, lambda: network))
            return await estimator.estimate(operation, overrides)

    def lands(self, operation: UserOperation, limits: GasLimits) -> bool:
        """Whether it succeeds with these limits, and pays the bundler what the bundle cost."""
        receipt = self.bundle(operation, limits)
        assert receipt["status"] == "0x1", "the bundle was reverted"
        (handled,) = [each for each in self.point.events(receipt) if isinstance(each, OperationHandled)]
        assert handled.actual_gas_used >= int(receipt["gasUsed"], 16), "the bundler lost"
        return handled.success

    def bundle(self, operation: UserOperation, limits: GasLimits) -> dict[str, Any]:
        """The receipt of a bundle with the operation alone."""
        ready = changed(
            operation,
            verification_gas_limit=limits.verification_gas_limit,
            call_gas_limit=limits.call_gas_limit,
            pre_verification_gas=limits.pre_verification_gas,
            paymaster_verification_gas_limit=limits.paymaster_verification_gas_limit or 0,
            paymaster_post_op_gas_limit=limits.paymaster_post_op_gas_limit or 0,
            max_fee_per_gas=_FEE,
            max_priority_fee_per_gas=_TIP,
        )
        return self.point.bundle(self.point.signed(ready, self.owner), gas=16_000_000)


def execute(target: str, call: bytes) -> bytes:
    """The call of an account that calls a contract."""
    return keccak(b"execute(address,uint256,bytes)")[:4] + encode(["address", "uint256", "bytes"], [target, 0, call])


def lowered(limits: GasLimits, name: str) -> GasLimits:
    """With a fifth less of one limit, and without the least that is added to it."""
    return msgspec.structs.replace(limits, **{name: (getattr(limits, name) - 6_000) * 4 // 5})


def bare(operation: UserOperation) -> UserOperation:
    """Without what an estimate is to find out."""
    return changed(
        operation,
        call_gas_limit=0,
        verification_gas_limit=0,
        pre_verification_gas=0,
        max_fee_per_gas=0,
        max_priority_fee_per_gas=0,
        signature=DUMMY_SIGNATURE,
    )


@pytest.fixture(scope="module", params=["0.6", "0.7", "0.8"])
def estimates(request: pytest.FixtureRequest, evm_devnet: EvmDevnet, node_project: NodeProject) -> Estimates:
    return Estimates(evm_devnet, node_project, request.param)


@pytest.fixture(scope="module")
def newest(evm_devnet: EvmDevnet, node_project: NodeProject) -> Estimates:
    return Estimates(evm_devnet, node_project, "0.8")


CALLS: dict[str, Callable[[Estimates], bytes | None]] = {
    "nothing": lambda _: None,
    "one write": lambda at: at.call("write(uint256,uint256)", at.place(), 1),
    "many writes": lambda at: at.call("write(uint256,uint256)", at.place(), 100),
    "deep calls": lambda at: at.call("nest(uint256,uint256)", 20, at.place()),
}


@pytest.mark.parametrize("kind", CALLS)
async def test_a_new_account_lands_with_its_estimate(estimates: Estimates, kind: str) -> None:
    operation = estimates.creation(CALLS[kind](estimates))
    assert estimates.lands(operation, await estimates.estimate(operation))


async def test_an_account_that_is_there_lands_with_calls_one_after_the_other(estimates: Estimates) -> None:
    """From its second operation on the account has a deposit; it writes storage, clears it, and sends a batch."""
    operation, place = estimates.existing(), estimates.place()
    busy = to_checksum_address(estimates.busy)
    calls = [
        estimates.call("write(uint256,uint256)", place, 20),
        # Clearing gives gas back, but only in the end.
        estimates.call("clear(uint256,uint256)", place, 20),
        estimates.call("burn(uint256)", 2_000),
    ]
    for nonce, call_data in enumerate([*(execute(busy, call) for call in calls), estimates.batch(calls)], start=1):
        each = changed(operation, nonce=nonce, call_data=call_data)
        assert estimates.lands(each, await estimates.estimate(each))


async def test_much_less_than_the_estimate_does_not_do(estimates: Estimates) -> None:
    operation = estimates.creation(estimates.call("write(uint256,uint256)", estimates.place(), 20))
    limits = await estimates.estimate(operation)
    assert estimates.bundle(operation, lowered(limits, "verification_gas_limit"))["status"] == "0x0"
    assert not estimates.lands(operation, lowered(limits, "call_gas_limit"))


async def test_a_paymaster_lands_with_and_without_work_afterwards(estimates: Estimates) -> None:
    for context in (0, 7):
        call = estimates.call("write(uint256,uint256)", estimates.place(), 2)
        operation = changed(estimates.creation(call), paymaster=estimates.paymaster(context), paymaster_data=b"stub")
        limits = await estimates.estimate(operation)
        if estimates.point.version == "0.6":
            assert limits.paymaster_verification_gas_limit is None
        else:
            assert bool(limits.paymaster_post_op_gas_limit) == (context != 0)
            lower = lowered(limits, "paymaster_verification_gas_limit")
            assert estimates.bundle(operation, lower)["status"] == "0x0"
        assert estimates.lands(operation, limits)


async def test_what_an_account_pays_with_need_not_be_there_yet(estimates: Estimates) -> None:
    operation = changed(estimates.creation(None), max_fee_per_gas=10**18, max_priority_fee_per_gas=1)
    assert (await estimates.estimate(operation)).verification_gas_limit < 500_000


async def test_the_estimate_covers_whatever_fees_and_signature_follow(estimates: Estimates) -> None:
    operation = estimates.creation(None)
    limits = await estimates.estimate(operation)
    later = changed(
        operation,
        max_fee_per_gas=0x7F_FF_FF_FF_FF,
        max_priority_fee_per_gas=0x7F_FF_FF_FF_FE,
        verification_gas_limit=limits.verification_gas_limit | 0xFFFF,
        pre_verification_gas=limits.pre_verification_gas,
        signature=b"\xff" * 65,
    )
    least = least_pre_verification_gas(estimates.point.version, later, executed=limits.verification_gas_limit)
    assert least <= limits.pre_verification_gas <= least + 1_000


async def test_a_call_that_hides_its_failures_gets_the_gas_for_success(newest: Estimates) -> None:
    place = newest.place()
    operation = newest.creation(newest.call("swallow(uint256,uint256)", place, 30))
    assert newest.lands(operation, await newest.estimate(operation))
    question = {"to": to_data(newest.busy), "data": to_data(newest.call("written(uint256)", place + 29))}
    assert int(newest.point.devnet.call("eth_call", question, "latest"), 16) == 1


async def test_a_call_whose_gas_depends_on_its_limit_gets_no_absurd_limit(newest: Estimates) -> None:
    operation = newest.creation(newest.call("uneven()"))
    limits = await newest.estimate(operation)
    assert limits.call_gas_limit < 100_000
    assert newest.lands(operation, limits)


async def test_a_call_that_needs_most_of_what_a_node_allows_is_searched_for_in_several_calls(newest: Estimates) -> None:
    operation = newest.creation(newest.call("write(uint256,uint256)", newest.place(), 350))
    limits = await newest.estimate(operation)
    assert 8_000_000 < limits.call_gas_limit < 9_000_000
    assert newest.lands(operation, limits)


async def test_much_data_and_little_work_pays_the_floor_for_data(newest: Estimates) -> None:
    """EIP-7623: the bundle pays more for its data than what it executes and its data cost otherwise."""
    filler = newest.call("burn(uint256)", 1) + b"\xff" * 6_000
    operation = changed(newest.existing(), call_data=execute(to_checksum_address(newest.busy), filler))
    limits = await newest.estimate(operation)
    assert limits.pre_verification_gas > 6_000 * 40 - 100_000
    assert newest.lands(operation, limits)


async def test_an_account_of_a_key_is_estimated_with_the_code_its_tuple_gives(newest: Estimates) -> None:
    key = Account.create()
    operation = bare(
        UserOperation(
            sender=bytes.fromhex(key.address[2:]),
            nonce=0,
            factory=b"\x77\x02",
            call_data=execute(to_checksum_address(newest.busy), newest.call("write(uint256,uint256)", 1, 1)),
            authorization=Authorization(CHAIN_ID, newest.point.deploy_7702_account(), 0, 0, 1, 1),
        )
    )
    limits = await newest.estimate(operation)
    without = await newest.estimate(changed(newest.existing(), call_data=operation.call_data))
    # The tuple itself costs the bundle.
    assert limits.pre_verification_gas > without.pre_verification_gas + 20_000
    assert 20_000 < limits.verification_gas_limit < 120_000


async def test_state_may_be_assumed(newest: Estimates) -> None:
    place = newest.place()
    call_data = execute(to_checksum_address(newest.busy), newest.call("write(uint256,uint256)", place, 1))
    operation = changed(newest.existing(), call_data=call_data)
    # `written` is the first variable; Vyper hashes the slot before the key.
    slot = keccak(bytes(32) + place.to_bytes(32, "big"))
    assumed = {newest.busy: {"stateDiff": {to_data(slot): to_data((1).to_bytes(32, "big"))}}}
    plain, cheaper = await newest.estimate(operation), await newest.estimate(operation, assumed)
    assert cheaper.call_gas_limit < plain.call_gas_limit - 15_000


async def test_a_call_that_reverts_is_refused_with_its_reason(estimates: Estimates) -> None:
    with pytest.raises(Refusal) as caught:
        await estimates.estimate(estimates.creation(estimates.call("fail()")))
    assert caught.value.code == EXECUTION_REVERTED
    assert "not today" in caught.value.message
    assert caught.value.data["revertData"].startswith("0x08c379a0")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda operation: changed(operation, nonce=9), "AA25"),
        (lambda operation: changed(operation, signature=b"\1"), "AA23"),
        (lambda operation: changed(operation, factory=None, factory_data=b""), "AA20"),
    ],
)
async def test_an_operation_that_cannot_be_validated_is_refused(
    newest: Estimates, spoil: Callable[[UserOperation], UserOperation], code: str
) -> None:
    with pytest.raises(Refusal) as caught:
        await newest.estimate(spoil(newest.creation(None)))
    assert (caught.value.code, caught.value.message[:4]) == (REJECTED_BY_ACCOUNT, code)


async def test_an_operation_that_is_too_long_is_refused(newest: Estimates) -> None:
    with pytest.raises(Refusal, match="longer than"):
        await newest.estimate(changed(newest.creation(None), call_data=bytes(40_000)))


@pytest.mark.parametrize(
    ("kind", "oracle"),
    [
        ("op_stack", "0x420000000000000000000000000000000000000F"),
        ("scroll", "0x5300000000000000000000000000000000000002"),
        ("arbitrum", "0x00000000000000000000000000000000000000C8"),
    ],
)
async def test_the_fee_for_data_on_the_parent_chain_is_part_of_the_estimate(
    newest: Estimates, kind: DataFeeKind, oracle: str
) -> None:
    operation = newest.creation(None)
    plain = await newest.estimate(operation)
    newest.point.devnet.call("hardhat_setCode", oracle, "0x")
    with pytest.raises(UpstreamError, match="fee for data"):
        await newest.estimate(operation, data_fee=kind)
    # A contract that answers with a number for each byte of what it is asked: a gwei, or where gas is told, one.
    unit = "6001" if kind == "arbitrum" else "633b9aca00"
    newest.point.devnet.call("hardhat_setCode", oracle, f"0x36{unit}025f5260205ff3")
    more = (await newest.estimate(operation, data_fee=kind)).pre_verification_gas - plain.pre_verification_gas
    # The operation has about 900 bytes; the price is the base fee and the tip, two gwei.
    assert (900 if kind == "arbitrum" else 450) < more < (2_000 if kind == "arbitrum" else 1_000)
