"""A chain that stays short: these tests ask for everything since its first block, and for what is recent."""

import pytest

from tests.support.devnet import EvmDevnet


@pytest.fixture(scope="module")
def evm_devnet(quiet_devnet: EvmDevnet) -> EvmDevnet:
    """A chain of the file's own, in place of the one that all tests share and that grows all the time."""
    return quiet_devnet
