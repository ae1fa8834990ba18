"""One test for each rule of ERC-7562 that a trace can break, on the development chain, without a debug API."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from capstan.bundler.refusals import RULE_VIOLATION
from capstan.bundler.validating import Validated
from capstan.bundler.validation.workers import WorkerLimits, Workers
from capstan.devnet.evm import CHAIN_ID
from tests.support.devnet import EvmDevnet
from tests.support.validation import Deployer, validation_of, verdict
from tests.validation.cases import CASES, Case

_DEPLOYER = 14


@pytest.fixture(scope="module")
def deployer(quiet_devnet: EvmDevnet) -> Deployer:
    deployment = quiet_devnet.deployment
    return Deployer(quiet_devnet, "0.7", deployment.accounts[_DEPLOYER], deployment.entry_points["0.7"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers() -> AsyncIterator[Workers]:
    pool = Workers(WorkerLimits(processes=1, job_seconds=60))
    yield pool
    await pool.close()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_rule(deployer: Deployer, workers: Workers, case: Case) -> None:
    operation = deployer.operation(case)
    async with validation_of(deployer.chain.url, CHAIN_ID, workers) as validation:
        found = await verdict(validation.validator("0.7", bytes.fromhex(deployer.entry_point[2:])), operation)
    if case.refused is None:
        assert isinstance(found, Validated), found
        assert found.sender.staked == ("account" in case.staked)
    else:
        assert not isinstance(found, Validated), "it was accepted"
        code, message = found
        assert (code, message.startswith(case.refused)) == (RULE_VIOLATION, True), message
