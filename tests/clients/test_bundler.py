"""permissionless and viem create accounts, estimate, send and wait for receipts, on every version of entry point."""

from pathlib import Path

import pytest

from tests.support.bundler import serving_bundler
from tests.support.devnet import EvmDevnet
from tests.support.javascript import Report, RunScript

VERSIONS = ("0.6", "0.7", "0.8")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, evm_devnet: EvmDevnet, javascript: RunScript) -> Report:
    directory: Path = tmp_path_factory.mktemp("bundler")
    deployment = evm_devnet.deployment
    with serving_bundler(directory, evm_devnet, unsafe=False) as (gateway, bundler):
        versions = {
            version: {"entryPoint": deployment.entry_points[version], "factory": deployment.factories[version]}
            for version in VERSIONS
        }
        given = {"rpc": gateway.url, "bundler": bundler.url, "key": gateway.key, "versions": versions}
        return javascript("bundler.mjs", given)


def test_the_client_learns_chain_and_entry_points(report: Report, evm_devnet: EvmDevnet) -> None:
    assert report["chain id"] == 31337
    assert sorted(report["entry points"]) == sorted(evm_devnet.deployment.entry_points.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_an_account_is_created_and_used(report: Report, evm_devnet: EvmDevnet, version: str) -> None:
    assert int(report[f"{version} estimate"]["verificationGasLimit"]) > 100_000
    first, second = report[f"{version} first"], report[f"{version} second"]
    for found in (first, second):
        assert found["success"] is True
        assert found["sender"] == report[f"{version} address"]
        # permissionless takes a lane of its own for every operation.
        assert int(found["nonce"], 16) & (2**64 - 1) == 0
        assert found["foundIn"] == found["transaction"]
        assert found["entryPoint"] == evm_devnet.deployment.entry_points[version]
        receipt = evm_devnet.call("eth_getTransactionReceipt", found["transaction"])
        assert receipt["status"] == "0x1"
    assert first["hash"] != second["hash"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_client_understands_why_an_operation_is_refused(report: Report, version: str) -> None:
    refused = report[f"{version} refused"]
    assert refused is not None
    assert "AA21" in refused["text"]
