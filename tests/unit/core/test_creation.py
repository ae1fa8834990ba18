"""Addresses of new contracts, by the examples of the standard."""

import pytest
from ethereum.forks.osaka.fork_types import Address
from ethereum.forks.osaka.utils.address import compute_contract_address
from ethereum_types.numeric import Uint

from capstan.core.creation import create2_address, create_address


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


@pytest.mark.parametrize(
    ("nonce", "address"),
    [
        (0, "cd234a471b72ba2f1ccf0a70fcaba648a5eecd8d"),
        (1, "343c43a37d37dff08ae8c4a11544c718abb4fcf8"),
        (2, "f778b86fa74e846c4f0a1fbd1335fe81c00a0c91"),
        (3, "fffd933a0bc612844eaf0c6fe3e5b8e9b6c1d19c"),
    ],
)
def test_create_gives_the_well_known_addresses(nonce: int, address: str) -> None:
    deployer = bytes.fromhex("6ac7ea33f8831ea9dcc53393aaa88b25a785dbf0")
    assert create_address(deployer, nonce).hex() == address


def test_create_with_nonces_of_several_bytes_is_that_of_the_specification() -> None:
    deployer = bytes.fromhex("6ac7ea33f8831ea9dcc53393aaa88b25a785dbf0")
    for nonce in (0x7F, 0x80, 0xFF, 0x100, 2**40):
        assert create_address(deployer, nonce) == bytes(compute_contract_address(Address(deployer), Uint(nonce)))
