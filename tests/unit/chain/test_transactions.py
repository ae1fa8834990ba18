"""The hash of a signed transaction."""

from typing import Any

import pytest
import rlp  # type: ignore[import-untyped]  # the package has no types
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st

from capstan.chain.transactions import transaction_hash
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
