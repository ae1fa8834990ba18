"""What the tests of this directory share: worker processes, and contracts on a chain of the file's own."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from capstan.bundler.validation.workers import WorkerLimits, Workers
from tests.support.devnet import EvmDevnet
from tests.support.validation import Deployer

DEPLOYER = 14


@pytest.fixture(scope="module")
def on_devnet(quiet_devnet: EvmDevnet) -> Deployer:
    """Deploys for entry point 0.7 of the development chain."""
    deployment = quiet_devnet.deployment
    return Deployer(quiet_devnet, "0.7", deployment.accounts[DEPLOYER], deployment.entry_points["0.7"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def workers() -> AsyncIterator[Workers]:
    """One worker process."""
    pool = Workers(WorkerLimits(processes=1, job_seconds=60))
    yield pool
    await pool.close()
