"""Fixtures of the contract tests."""

from __future__ import annotations

import pytest

from tests.contracts.chain import Chain
from tests.support.devnet import EvmDevnet


@pytest.fixture(scope="session")
def chain(evm_devnet: EvmDevnet) -> Chain:
    return Chain(evm_devnet)
