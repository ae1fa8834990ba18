"""The keys that sign bundles: where they come from, what they sign, and that nobody sees them."""

import json
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes

from capstan.bundler.fees import Fees
from capstan.bundler.signers import load_signers
from capstan.core.accounts import UnusableKey
from capstan.core.hexes import keccak256
from capstan.userops.models import Authorization

KEY = "0x" + "42" * 32
OTHER = "0x" + "43" * 32
ADDRESS = bytes.fromhex(Account.from_key(KEY).address[2:])


def test_keys_and_keystore_files_are_signers(tmp_path: Path) -> None:
    file = tmp_path / "signer.json"
    # Few iterations: the test is about the file, not about how hard it is to open.
    file.write_text(json.dumps(Account.encrypt(bytes.fromhex(OTHER[2:]), "secret", kdf="pbkdf2", iterations=2)))
    first, second = load_signers([KEY, f"keystore:{file}"], "secret")
    assert first.address == ADDRESS
    assert second.address == bytes.fromhex(Account.from_key(OTHER).address[2:])


@pytest.mark.parametrize("given", ["0x" + "42" * 31, "secret words", "0x" + "00" * 32, "0x" + "ff" * 32])
def test_what_is_no_key_is_named_by_its_place_and_not_shown(given: str) -> None:
    with pytest.raises(UnusableKey, match=r"bundler\.signers\[1\]: is not a private key") as refused:
        load_signers([KEY, given], "")
    assert given not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_keystore_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    with pytest.raises(UnusableKey, match="cannot be read: No such file"):
        load_signers([f"keystore:{missing}"], "secret")
    file = tmp_path / "signer.json"
    file.write_text(json.dumps(Account.encrypt(bytes.fromhex(KEY[2:]), "secret", kdf="pbkdf2", iterations=2)))
    with pytest.raises(UnusableKey, match=r"not a keystore file that bundler\.keystore_password opens"):
        load_signers([f"keystore:{file}"], "another")


def test_the_same_account_twice_would_be_two_lanes_with_the_same_nonces() -> None:
    with pytest.raises(UnusableKey, match=r"signers\[1\]: is the same account"):
        load_signers([KEY, KEY], "")


def test_printing_a_signer_shows_its_address_alone() -> None:
    (signer,) = load_signers([KEY], "")
    assert repr(signer) == f"Signer({Account.from_key(KEY).address})"
    assert "42" * 32 not in repr(vars(signer))


async def test_what_is_signed_is_what_was_asked_for() -> None:
    (signer,) = load_signers([KEY], "")
    plain: dict[str, Any] = {
        "chain_id": 31337,
        "nonce": 7,
        "to": b"\x11" * 20,
        "data": b"\x22\x33",
        "gas": 100_000,
        "fees": Fees(9, 4),
    }
    signed = await signer.sign(**plain, eip1559=True)
    assert signed.hash == keccak256(signed.raw)
    assert Account.recover_transaction(signed.raw) == Account.from_key(KEY).address
    read = TypedTransaction.from_bytes(HexBytes(signed.raw)).as_dict()
    assert (signed.raw[0], read["nonce"], read["gas"]) == (2, 7, 100_000)
    assert (read["maxFeePerGas"], read["maxPriorityFeePerGas"]) == (9, 4)
    old = await signer.sign(**plain, eip1559=False)
    assert old.raw[0] >= 0xC0
    assert Account.recover_transaction(old.raw) == Account.from_key(KEY).address
    delegating = await signer.sign(**plain, eip1559=True, authorizations=[Authorization(1, b"\x44" * 20, 3, 1, 5, 6)])
    assert delegating.raw[0] == 4
    assert Account.recover_transaction(delegating.raw) == Account.from_key(KEY).address
