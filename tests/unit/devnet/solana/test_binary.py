"""Base58, base64 and the Zstandard frames, checked against the decoders of `solders`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey
from solders.rpc.responses import GetAccountInfoResp

from capstan.devnet.solana.binary import base58_decode, base58_encode, base64_decode, base64_encode, zstd_frame


@given(st.binary(max_size=200))
def test_base58_gives_back_what_it_took(data: bytes) -> None:
    assert base58_decode(base58_encode(data)) == data


@given(st.binary(min_size=32, max_size=32))
def test_base58_agrees_with_solders(data: bytes) -> None:
    assert base58_encode(data) == str(Pubkey(data))


def test_a_character_outside_base58_is_named() -> None:
    with pytest.raises(ValueError, match="'0', index: 2"):
        base58_decode("ab0")


@pytest.mark.parametrize("text", ["a", "a===", "a b=", "é"])
def test_broken_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the text is Python's own
        base64_decode(text)


@pytest.mark.parametrize("length", [0, 1, 128, 70_000, 128 * 1024, 128 * 1024 + 1, 400_000])
def test_a_real_zstd_decoder_reads_the_frames(length: int) -> None:
    data = bytes(index * 7 % 251 for index in range(length))
    account = {
        "lamports": 1,
        "data": [base64_encode(zstd_frame(data)), "base64+zstd"],
        "owner": str(Pubkey.default()),
        "executable": False,
        "rentEpoch": 0,
        "space": length,
    }
    body = {"jsonrpc": "2.0", "id": 1, "result": {"context": {"slot": 1}, "value": account}}
    parsed = GetAccountInfoResp.from_json(json.dumps(body))
    assert isinstance(parsed, GetAccountInfoResp)
    assert parsed.value is not None
    assert parsed.value.data == data
