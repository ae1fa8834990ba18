"""The parts of sponsorship that need neither a chain nor a database: amounts, keys, signed requests, stub data."""

import base64
import hashlib
import hmac
import json
from decimal import Decimal
from pathlib import Path

import pytest
from eth_account import Account
from eth_account.messages import encode_defunct
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.accounts import UnusableKey, read_key
from capstan.gas.policies.rules import compiled, selector
from capstan.gas.sponsor.amounts import nano_usd
from capstan.gas.sponsor.hook import signed_headers
from capstan.gas.sponsor.paymasters import FOREVER, STUB_SIGNATURE, Window, data
from capstan.gas.sponsor.signer import PaymasterSigner

KEY = "0x" + "11" * 32


@given(st.integers(0, 10**26), st.decimals("0.000001", "1000000", places=6))
def test_amounts_are_exact_and_rounded_up(wei: int, price: Decimal) -> None:
    exact = Decimal(wei) * int(price * 10**6)
    found = nano_usd(wei, price) * Decimal(10) ** 15
    assert 0 <= found - exact < Decimal(10) ** 15


def test_a_whole_coin_costs_its_price() -> None:
    assert nano_usd(10**18, Decimal("2500.25")) == 2_500_250_000_000
    assert nano_usd(1, Decimal(2500)) == 1
    assert nano_usd(0, Decimal(2500)) == 0
    assert nano_usd(10**9, Decimal(2), 9) == 2 * 10**9


def test_the_signature_is_that_of_personal_sign() -> None:
    signer, digest = PaymasterSigner(read_key(KEY, "", "gas.signer")), b"\x42" * 32
    account = Account.from_key(KEY)
    assert signer.sign(digest) == bytes(account.sign_message(encode_defunct(digest)).signature)
    assert signer.address.hex() == account.address[2:].lower()
    assert "11" * 8 not in repr(signer)


def test_keys_come_from_keystore_files(tmp_path: Path) -> None:
    file = tmp_path / "keystore.json"
    file.write_text(json.dumps(Account.encrypt(bytes.fromhex(KEY[2:]), "secret", kdf="pbkdf2", iterations=2)))
    assert read_key(f"keystore:{file}", "secret", "gas.signer") == bytes.fromhex(KEY[2:])
    with pytest.raises(UnusableKey, match="keystore_password"):
        read_key(f"keystore:{file}", "wrong", "gas.signer")
    with pytest.raises(UnusableKey, match="cannot be read"):
        read_key(f"keystore:{tmp_path / 'absent'}", "", "gas.signer")


@pytest.mark.parametrize("text", ["", "0x", "0x12", "nonsense", "0x" + "00" * 32, KEY + "00"])
def test_keys_that_are_none_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UnusableKey, match=r"gas\.signer") as caught:
        read_key(text, "", "gas.signer")
    assert len(text) < 4 or text not in str(caught.value)


def test_the_secret_of_a_hook_is_its_own_and_stays() -> None:
    signer = PaymasterSigner(bytes.fromhex(KEY[2:]))
    first = signer.hook_secret("gp_1")
    assert first == PaymasterSigner(bytes.fromhex(KEY[2:])).hook_secret("gp_1")
    assert first != signer.hook_secret("gp_2")
    assert len(base64.b64decode(first.removeprefix("whsec_"))) == 32


def test_requests_to_hooks_are_signed_in_both_ways() -> None:
    secret, body = PaymasterSigner(bytes.fromhex(KEY[2:])).hook_secret("gp_1"), b'{"id":"evt_1"}'
    headers = signed_headers(secret, "evt_1", 1_700_000_000, body)
    ours = hmac.new(secret.encode(), b"1700000000." + body, hashlib.sha256).hexdigest()
    assert headers["X-Service-Signature"] == ours
    key = base64.b64decode(secret[6:])
    standard = base64.b64encode(hmac.digest(key, b"evt_1.1700000000." + body, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{standard}"


def test_stub_data_is_as_long_as_real_data_and_no_cheaper() -> None:
    signer = PaymasterSigner(bytes.fromhex(KEY[2:]))
    stub = data(Window(FOREVER), STUB_SIGNATURE)
    real = data(Window(1_800_000_000), signer.sign(b"\x01" * 32))
    assert len(stub) == len(real)
    assert stub.count(0) <= real.count(0)


def test_methods_are_selectors_or_signatures() -> None:
    assert selector("transfer(address,uint256)") == bytes.fromhex("a9059cbb") == selector("0xA9059cbb")
    rules = compiled('{"rate_limit": "10/hour", "allowed_methods": ["0xa9059cbb"]}')
    assert rules.rate_limit is not None
    assert (rules.rate_limit.requests, rules.rate_limit.per_seconds) == (10, 3_600)
    assert rules.looks_into_calls
    assert not compiled('{"rate_limit": 5}').looks_into_calls
