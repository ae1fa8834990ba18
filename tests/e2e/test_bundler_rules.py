"""The rules of ERC-7562 as a client of the running service meets them, on a node without a debug API."""

from collections.abc import Iterator

import pytest

from capstan.bundler.refusals import RULE_VIOLATION
from capstan.core.hexes import to_checksum_address, to_data
from tests.support import bytecode
from tests.support.bundler import Accounts, BundlerClient, BundlerError, serving_bundler
from tests.support.bytecode import assemble, calling
from tests.support.devnet import EvmDevnet
from tests.support.validation import ETHER, Deployer, operation_of

_DEPLOYER = 14
_FEES = {"max_fee_per_gas": 20 * 10**9, "max_priority_fee_per_gas": 2 * 10**9}


@pytest.fixture(scope="module")
def bundler(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet) -> Iterator[BundlerClient]:
    """With full validation, and bundles only when they are asked for."""
    home = tmp_path_factory.mktemp("rules")
    with serving_bundler(home, evm_devnet, {"bundler.mode": "manual"}, unsafe=False) as (_, client):
        yield client


@pytest.fixture
def deployer(evm_devnet: EvmDevnet) -> Deployer:
    deployment = evm_devnet.deployment
    return Deployer(evm_devnet, "0.7", deployment.accounts[_DEPLOYER], deployment.entry_points["0.7"])


def test_an_account_that_breaks_a_rule_is_refused_by_its_name(
    bundler: BundlerClient, evm_devnet: EvmDevnet, deployer: Deployer
) -> None:
    accounts = Accounts(evm_devnet, "0.7")
    sender = deployer.deploy(bytecode.account(deployer.entry_point, "TIMESTAMP POP"), deposit=ETHER)
    with pytest.raises(BundlerError) as caught:
        accounts.send(bundler, operation_of(sender, **_FEES))
    assert (caught.value.code, caught.value.message) == (
        RULE_VIOLATION,
        "account uses banned opcode: TIMESTAMP (OP-011)",
    )
    assert caught.value.data == {"account": to_checksum_address(sender)}


def test_an_operation_whose_code_changes_is_not_bundled(
    bundler: BundlerClient, evm_devnet: EvmDevnet, deployer: Deployer
) -> None:
    accounts = Accounts(evm_devnet, "0.7")
    helpers = [deployer.deploy(assemble("STOP")) for _ in range(2)]
    hashes = []
    for helper in helpers:
        code = bytecode.account(deployer.entry_point, calling("0x" + helper.hex()))
        sender = deployer.deploy(code, deposit=ETHER)
        hashes.append(accounts.send(bundler, operation_of(sender, **_FEES)))
    evm_devnet.call("hardhat_setCode", to_data(helpers[0]), to_data(assemble("1 POP STOP")))
    evm_devnet.mine()
    bundler.ask("debug_bundler_sendBundleNow")
    bundler.wait_for(hashes[1])
    dropped = bundler.ask("capstan_getUserOperationStatus", hashes[0])
    assert dropped["status"] in ("failed", "rejected")
    assert "modified code after first validation" in dropped["reason"]
