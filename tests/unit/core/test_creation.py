"""Addresses of new contracts, by the examples of the standard."""

import pytest

from capstan.core.creation import create2_address


@pytest.mark.parametrize(
    ("deployer", "salt", "code", "address"),
    [
        # EIP-1014, section "Example".
        ("00" * 20, "00" * 32, "00", "4D1A2e2bB4F88F0250f26Ffff098B0b30B26BF38"),
        ("deadbeef" + "00" * 16, "00" * 32, "00", "B928f69Bb1D91Cd65274e3c79d8986362984fDA3"),
        (
            "deadbeef" + "00" * 16,
            "000000000000000000000000feed000000000000000000000000000000000000",
            "00",
            "D04116cDd17beBE565EB2422F2497E06cC1C9833",
        ),
        ("00" * 20, "00" * 32, "deadbeef", "70f2b2914A2a4b783FaEFb75f459A580616Fcb5e"),
        ("00" * 20, "00" * 32, "", "E33C0C7F7df4809055C3ebA6c09CFe4BaF1BD9e0"),
    ],
)
def test_create2_gives_the_addresses_of_the_standard(deployer: str, salt: str, code: str, address: str) -> None:
    found = create2_address(bytes.fromhex(deployer), bytes.fromhex(salt), bytes.fromhex(code))
    assert found == bytes.fromhex(address)
