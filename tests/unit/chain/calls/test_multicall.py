"""The wire form of Multicall3, against an ABI library."""

import contextlib

import pytest
from eth_abi.abi import decode, encode
from hypothesis import given
from hypothesis import strategies as st

from capstan.chain.calls.models import ContractCall, call, selector
from capstan.chain.calls.multicall import decode_aggregate, encode_aggregate, encoded_size

CALLS = st.lists(st.builds(ContractCall, st.binary(min_size=20, max_size=20), st.binary(max_size=100)), max_size=8)
RESULTS = st.lists(st.tuples(st.booleans(), st.binary(max_size=100)), max_size=8)


@given(CALLS)
def test_calls_are_encoded_as_the_abi_says(calls: list[ContractCall]) -> None:
    data = encode_aggregate(calls)
    assert data[:4].hex() == "82ad56cb"
    (decoded,) = decode(["(address,bool,bytes)[]"], data[4:])
    assert decoded == tuple(("0x" + item.to.hex(), True, item.data) for item in calls)
    assert len(data) == 4 + 64 + sum(map(encoded_size, calls))


@given(RESULTS)
def test_results_are_decoded_as_the_abi_says(results: list[tuple[bool, bytes]]) -> None:
    data = encode(["(bool,bytes)[]"], [results])
    assert decode_aggregate(data, len(results)) == [content if good else None for good, content in results]


@given(st.binary(max_size=400), st.integers(0, 5))
def test_garbage_is_refused_or_decoded_but_never_breaks(data: bytes, count: int) -> None:
    with contextlib.suppress(ValueError):
        assert len(decode_aggregate(data, count)) == count


def test_another_number_of_results_is_refused() -> None:
    with pytest.raises(ValueError, match="another number"):
        decode_aggregate(encode(["(bool,bytes)[]"], [[(True, b"")]]), 2)


def test_arguments_stand_where_the_abi_puts_them() -> None:
    made = call(bytes(20), "f(address,bytes4,uint256)", b"\x11" * 20, bytes.fromhex("80ac58cd"), 7)
    expected = encode(["address", "bytes4", "uint256"], ["0x" + "11" * 20, bytes.fromhex("80ac58cd"), 7])
    assert made.data == selector("f(address,bytes4,uint256)") + expected
