"""The hash of a signed transaction."""

import base64
from typing import Any

import msgspec
import pytest
import rlp  # type: ignore[import-untyped]  # the package has no types
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import Transaction

from capstan.chain.transactions import solana_transaction_id, transaction_hash
from capstan.core.hexes import keccak256

KEY = "0x" + "11" * 32
COMMON: dict[str, Any] = {"nonce": 3, "to": "0x" + "22" * 20, "value": 5, "gas": 21_000, "chainId": 31337}


@pytest.mark.parametrize(
    "fields",
    [
        {"gasPrice": 10**9},
        {"type": 1, "gasPrice": 10**9, "accessList": []},
        {"type": 2, "maxFeePerGas": 10**9, "maxPriorityFeePerGas": 1},
    ],
    ids=["legacy", "access list", "dynamic fee"],
)
def test_the_hash_is_that_of_the_signed_transaction(fields: dict[str, Any]) -> None:
    signed = Account.sign_transaction(COMMON | fields, KEY)
    assert transaction_hash(bytes(signed.raw_transaction)) == bytes(signed.hash)


@pytest.mark.parametrize("size", [1, 60, 5_000])
def test_blobs_do_not_count(size: int) -> None:
    body = [b"\x01", b"\x05", b"x" * size]
    bare = b"\x03" + rlp.encode(body)
    with_blobs = b"\x03" + rlp.encode([body, [b"b" * 1_000], [b"c" * 48], [b"p" * 48]])
    with_cells = b"\x03" + rlp.encode([body, b"\x01", [b"b" * 1_000], [b"c" * 48], [b"p" * 48]])
    assert transaction_hash(bare) == transaction_hash(with_blobs) == transaction_hash(with_cells) == keccak256(bare)


@pytest.mark.parametrize("raw", [b"", b"\x03", b"\x03\x80", b"\x03\xf8", b"\x03\xc2\x01", b"\x03\xc4\xc5\x01"])
def test_broken_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"transaction|list"):
        transaction_hash(raw)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_hash_or_a_reason(tail: bytes) -> None:
    try:
        assert len(transaction_hash(b"\x03" + tail)) == 32
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either outcome is right


def test_a_solana_transaction_is_named_by_its_first_signature() -> None:
    sender = Keypair.from_seed(bytes(32))
    instruction = transfer(TransferParams(from_pubkey=sender.pubkey(), to_pubkey=sender.pubkey(), lamports=1))
    transaction = Transaction([sender], Message([instruction], sender.pubkey()), Hash.default())
    raw, expected = bytes(transaction), str(transaction.signatures[0])
    in_base64 = [base64.b64encode(raw).decode(), {"encoding": "base64"}]
    assert solana_transaction_id(msgspec.json.encode(in_base64)) == expected
    # base58 is the encoding when none is given.
    assert solana_transaction_id(msgspec.json.encode([_base58(raw)])) == expected


@given(st.binary(min_size=64, max_size=64))
def test_any_signature_is_written_as_solana_writes_it(signature: bytes) -> None:
    params = msgspec.json.encode([_base58(b"\x01" + signature), {}])
    assert solana_transaction_id(params) == str(Signature(signature))


@pytest.mark.parametrize("params", [[], [1], ["0OIl"], ["***", {"encoding": "base64"}], ["1" * 5_000], [""]])
def test_what_is_no_solana_transaction_is_refused(params: list[Any]) -> None:
    with pytest.raises(ValueError, match="transaction"):
        solana_transaction_id(msgspec.json.encode(params))


def _base58(data: bytes) -> str:
    """As the definition says: digit by digit from the right."""
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    digits = [0]
    for byte in data:
        carry = byte
        for place, digit in enumerate(digits):
            carry += digit << 8
            digits[place], carry = carry % 58, carry // 58
        while carry:
            digits.append(carry % 58)
            carry //= 58
    while len(digits) > 1 and digits[-1] == 0:
        digits.pop()
    zeros = len(data) - len(data.lstrip(b"\0"))
    text = "".join(alphabet[digit] for digit in reversed(digits))
    return alphabet[0] * zeros + (text if data.strip(b"\0") else "")
