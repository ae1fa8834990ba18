"""RLP, tries and blooms: against another implementation, published vectors, and their own rules."""

from typing import Any

import pytest
import rlp as reference  # type: ignore[import-untyped]  # the package has no types
from hypothesis import given
from hypothesis import strategies as st

from capstan.chain.proofs import rlp
from capstan.chain.proofs.bloom import bloom_of, may_hold, may_match
from capstan.chain.proofs.header import Incomplete, header_hash
from capstan.chain.proofs.receipts import Unprovable, encode_receipt
from capstan.chain.proofs.transactions import encode_transaction, withdrawals_root
from capstan.chain.proofs.trie import EMPTY_ROOT, list_root, root

items: st.SearchStrategy[Any] = st.recursive(
    st.binary(max_size=80) | st.binary(min_size=250, max_size=300), lambda inner: st.lists(inner, max_size=6)
)


@given(items)
def test_encoding_is_that_of_another_implementation(item: Any) -> None:
    assert rlp.encode(item) == reference.encode(item)


@given(st.integers(min_value=0, max_value=2**256 - 1))
def test_numbers_are_written_without_leading_zeros(value: int) -> None:
    written = rlp.number(value)
    assert int.from_bytes(written) == value
    assert not written.startswith(b"\0")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # trietest.json and trieanyorder.json of github.com/ethereum/tests.
        ({}, "56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"),
        (
            {b"do": b"verb", b"dog": b"puppy", b"doge": b"coin", b"horse": b"stallion"},
            "5991bb8c6514148a29db676a14ac506cd2cd5775ace63c30a4fe457715e9ac84",
        ),
        (
            {b"A": b"a" * 50},
            "d23786fb4a010da3ce639d66d5e904a11dbc02746d1ce25029e53290cabf28ab",
        ),
        (
            {b"foo": b"bar", b"food": b"bass"},
            "17beaa1648bafa633cda809c90c04af50fc8aed3cb40d16efbddee6fdf63c4c3",
        ),
        (
            {b"be": b"e", b"dog": b"puppy", b"bed": b"d"},
            "3f67c7a47520f79faa29255d2d3c084a7a6df0453116ed7232ff10277a8be68b",
        ),
    ],
)
def test_roots_are_those_of_the_published_vectors(values: dict[bytes, bytes], expected: str) -> None:
    assert root(values).hex() == expected


@given(st.dictionaries(st.binary(min_size=1, max_size=6), st.binary(min_size=1, max_size=60), min_size=1), st.data())
def test_root_depends_on_every_key_and_value(values: dict[bytes, bytes], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(values)))
    before = root(values)
    assert root(dict(reversed(values.items()))) == before
    assert root({**values, key: values[key] + b"\1"}) != before
    del values[key]
    assert root(values) != before


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=2, max_size=300, unique=True))
def test_root_of_a_list_depends_on_the_order(values: list[bytes]) -> None:
    assert list_root(values) != list_root([values[1], values[0], *values[2:]])


def test_root_of_nothing_is_the_empty_root() -> None:
    assert list_root([]) == EMPTY_ROOT


@given(st.lists(st.binary(min_size=20, max_size=32), max_size=20), st.lists(st.binary(min_size=20, max_size=32)))
def test_bloom_never_denies_what_it_holds(held: list[bytes], others: list[bytes]) -> None:
    bloom = bloom_of([*held, *others])
    assert may_hold(bloom, held)
    assert may_match(bloom, held, [others])
    assert not may_match(0, [b"\1" * 20], [])
    assert may_match(0, [], [[], []])


def test_a_header_without_a_field_proves_nothing() -> None:
    with pytest.raises(Incomplete, match="parentHash"):
        header_hash({})


def test_unknown_types_are_said_to_be_unprovable() -> None:
    receipt = {"type": "0x64", "status": "0x1", "cumulativeGasUsed": "0x1", "logsBloom": "0x", "logs": []}
    with pytest.raises(Unprovable, match="0x64"):
        encode_receipt(receipt)
    with pytest.raises(Unprovable, match="0x64"):
        encode_transaction({"type": "0x64"})
    with pytest.raises(Unprovable, match="cumulativeGasUsed"):
        encode_receipt({"status": "0x1"})
    with pytest.raises(Unprovable, match="index"):
        withdrawals_root([{}])


def test_an_optimism_deposit_has_two_more_fields_since_canyon() -> None:
    receipt = {"type": "0x7e", "status": "0x1", "cumulativeGasUsed": "0xb729", "logsBloom": "0x00", "logs": []}
    before = encode_receipt({**receipt, "depositNonce": "0x5"})
    after = encode_receipt({**receipt, "depositNonce": "0x5", "depositReceiptVersion": "0x1"})
    assert before == b"\x7e" + reference.encode([b"\1", b"\xb7\x29", b"\0", []])
    assert after == b"\x7e" + reference.encode([b"\1", b"\xb7\x29", b"\0", [], b"\5", b"\1"])
