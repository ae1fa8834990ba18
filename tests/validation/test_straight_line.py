"""A wallet of the common kind is created by its first operation, and validated on a node without any debug API."""

import pytest

from capstan.bundler.models import Entity
from capstan.bundler.refusals import RULE_VIOLATION, SIGNATURE_FAILED
from capstan.bundler.validating import Validated
from capstan.devnet.evm import CHAIN_ID
from capstan.devnet.install import NodeProject
from capstan.userops.versions import Version
from tests.support import bytecode
from tests.support.devnet import EvmDevnet
from tests.support.entrypoint import EntryPoint
from tests.support.validation import Deployer, operation_of, validation_of, verdict

_OWNER, _DEPLOYER = 15, 14


@pytest.mark.parametrize("version", ["0.6", "0.7", "0.8"])
async def test_an_operation_that_creates_its_account_is_valid(
    evm_devnet: EvmDevnet, node_project: NodeProject, version: Version
) -> None:
    entry_point = EntryPoint(evm_devnet, node_project, version)
    owner = evm_devnet.deployment.accounts[_OWNER]
    operation = entry_point.signed(entry_point.creation(owner, entry_point.address, b""), owner)
    wrong = entry_point.signed(operation, evm_devnet.deployment.accounts[_DEPLOYER])
    async with validation_of(evm_devnet.url, CHAIN_ID) as validation:
        validator = validation.validator(version, bytes.fromhex(entry_point.address[2:]))
        found = await verdict(validator, operation)
        round_trips = validation.state.round_trips
        other = entry_point.signed(entry_point.creation(owner, entry_point.address, b""), owner)
        again = await verdict(validator, other)
        warm = validation.state.round_trips - round_trips
        refused = await verdict(validator, wrong)
    assert isinstance(found, Validated)
    assert isinstance(again, Validated)
    assert found.sender == Entity("account", operation.sender, staked=False)
    assert found.factory == Entity("factory", operation.factory or b"", staked=False)
    assert found.pre_operation_gas > operation.pre_verification_gas + 200_000
    # All that it used is its own, the code of the account that is not there yet included.
    assert set(found.storage) == {operation.sender}
    assert {operation.sender, operation.factory} <= set(found.code_hashes)
    assert (found.valid_after, found.valid_until, found.associated) == (0, None, frozenset())
    # The second, of another sender and at another block, needs nothing that could not be foreseen.
    assert (round_trips, warm) == (3, 1)
    assert refused == (SIGNATURE_FAILED, "AA24 signature error")


async def test_an_account_that_looks_at_the_clock_is_refused(evm_devnet: EvmDevnet) -> None:
    deployment = evm_devnet.deployment
    deployer = Deployer(evm_devnet, "0.7", deployment.accounts[_DEPLOYER], deployment.entry_points["0.7"])
    good = deployer.deploy(bytecode.account(deployer.entry_point), deposit=10**18)
    bad = deployer.deploy(bytecode.account(deployer.entry_point, "TIMESTAMP POP"), deposit=10**18)
    async with validation_of(evm_devnet.url, CHAIN_ID) as validation:
        validator = validation.validator("0.7", bytes.fromhex(deployer.entry_point[2:]))
        accepted = await verdict(validator, operation_of(good))
        refused = await verdict(validator, operation_of(bad))
    assert isinstance(accepted, Validated)
    assert refused == (RULE_VIOLATION, "account uses banned opcode: TIMESTAMP (OP-011)")
