"""Reading contracts: presigned deployments are checked, addresses are computed as EIP-1014 says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from capstan.devnet import artifacts
from capstan.devnet.artifacts import call_data, create2_address, load_contract, load_package_contract, load_presigned
from capstan.devnet.errors import DevnetError
from capstan.devnet.install import NodeProject


def test_multicall3_is_the_transaction_known_from_public_chains() -> None:
    presigned = load_presigned("Multicall3")
    assert presigned.transaction_hash == "0x07471adfe8f4ec553c1199f495be97fc8be8e0626ae307281c22534460184ed1"
    assert presigned.deployer.lower() == "0x05f32b3cc3888453ff71b01135b34ff8e41263f2"
    assert presigned.address == "0xcA11bde05977b3631167028862bE2a173976CA11"


def test_the_deployment_proxy_is_the_one_known_from_public_chains() -> None:
    presigned = load_presigned("DeterministicDeploymentProxy")
    assert presigned.address == "0x4e59b44847b379578588920cA78FbF26c0B4956C"
    assert presigned.transaction_hash == "0xeddf9e61fb9d8f5111840daef55e5fde0041f5702856532cdbb5a02998033d26"


@pytest.mark.parametrize(("field", "message"), [("raw_transaction", "hash"), ("deployer", "not signed by")])
def test_a_damaged_presigned_deployment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, message: str
) -> None:
    content = msgspec.json.decode((artifacts.CATALOGUE / "Multicall3.json").read_bytes())
    content[field] = content[field][:-1] + ("0" if content[field][-1] != "0" else "1")
    (tmp_path / "Multicall3.json").write_bytes(msgspec.json.encode(content))
    monkeypatch.setattr(artifacts, "CATALOGUE", tmp_path)
    with pytest.raises(DevnetError, match=message):
        load_presigned("Multicall3")


@pytest.mark.parametrize(
    ("deployer", "salt", "init_code", "address"),
    [
        # The examples of EIP-1014.
        ("0x" + "00" * 20, "00" * 32, "00", "0x4D1A2e2bB4F88F0250f26Ffff098B0b30B26BF38"),
        ("0xdeadbeef" + "00" * 16, "00" * 32, "00", "0xB928f69Bb1D91Cd65274e3c79d8986362984fDA3"),
        (
            "0x00000000000000000000000000000000deadbeef",
            "00" * 28 + "cafebabe",
            "deadbeef",
            "0x60f3f640a8508fC6a86d45DF051962668E1e8AC7",
        ),
        ("0x" + "00" * 20, "00" * 32, "", "0xE33C0C7F7df4809055C3ebA6c09CFe4BaF1BD9e0"),
    ],
)
def test_create2_addresses_are_those_of_the_standard(deployer: str, salt: str, init_code: str, address: str) -> None:
    assert create2_address(deployer, bytes.fromhex(salt), bytes.fromhex(init_code)) == address


def test_call_data_is_selector_and_arguments() -> None:
    assert call_data("deposit()").hex() == "d0e30db0"
    assert call_data("transfer(address,uint256)", "0x" + "11" * 20, 5).hex() == (
        "a9059cbb" + "00" * 12 + "11" * 20 + "00" * 31 + "05"
    )


def test_constructor_arguments_follow_the_bytecode() -> None:
    contract = load_contract("SamplePriceFeed")
    plain = contract.init_code()
    assert contract.init_code(["uint256"], [7]) == plain + (7).to_bytes(32, "big")


def test_a_missing_package_names_the_remedy(tmp_path: Path) -> None:
    project = NodeProject(node=tmp_path / "node", directory=tmp_path)
    with pytest.raises(DevnetError, match=r"python -m capstan\.devnet\.install"):
        load_package_contract(project, "aa07", "EntryPoint")
