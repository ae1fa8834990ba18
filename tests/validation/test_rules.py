"""One test for each rule of ERC-7562 that a trace can break, on the development chain, without a debug API."""

import pytest

from capstan.bundler.refusals import RULE_VIOLATION
from capstan.bundler.validating import Validated
from capstan.bundler.validation.workers import Workers
from capstan.devnet.evm import CHAIN_ID
from capstan.userops.versions import Version
from tests.support.devnet import EvmDevnet
from tests.support.validation import Deployer, validation_of, verdict
from tests.validation.cases import CASES, Case
from tests.validation.conftest import DEPLOYER

pytestmark = pytest.mark.asyncio(loop_scope="module")

# One of each kind, for the versions that differ in how they call the entities.
_FEW = (
    "OP-011 TIMESTAMP",
    "OP-011 paymaster NUMBER",
    "OP-011 factory GAS",
    "OP-031 once",
    "OP-031 twice",
    "OP-052",
    "OP-054 call",
    "STO-021 by a paymaster",
    "STO-022",
    "STO-031 unstaked",
    "STO-031",
)


async def _judged(deployer: Deployer, workers: Workers, case: Case) -> None:
    operation = deployer.operation(case)
    async with validation_of(deployer.chain.url, CHAIN_ID, workers) as validation:
        found = await verdict(
            validation.validator(deployer.version, bytes.fromhex(deployer.entry_point[2:])), operation
        )
    if case.refused is None:
        assert isinstance(found, Validated), found
        assert found.sender.staked == ("account" in case.staked)
    else:
        assert not isinstance(found, Validated), "it was accepted"
        code, message = found
        assert (code, message.startswith(case.refused)) == (RULE_VIOLATION, True), message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_rule(on_devnet: Deployer, workers: Workers, case: Case) -> None:
    await _judged(on_devnet, workers, case)


@pytest.mark.parametrize("version", ["0.6", "0.8"])
@pytest.mark.parametrize("case", [case for case in CASES if case.name in _FEW], ids=lambda case: case.name)
async def test_rule_of_other_versions(quiet_devnet: EvmDevnet, workers: Workers, version: Version, case: Case) -> None:
    deployment = quiet_devnet.deployment
    deployer = Deployer(quiet_devnet, version, deployment.accounts[DEPLOYER], deployment.entry_points[version])
    await _judged(deployer, workers, case)
