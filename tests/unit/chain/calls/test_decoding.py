"""Whatever a contract returns, reading it does not fail and does not lie."""

from eth_abi.abi import encode
from hypothesis import given
from hypothesis import strategies as st

from capstan.chain.calls import decoding

ANYTHING = st.one_of(st.none(), st.binary(max_size=300))


@given(ANYTHING)
def test_nothing_that_a_contract_returns_breaks_a_reader(result: bytes | None) -> None:
    for read in (decoding.unsigned, decoding.decimals, decoding.address, decoding.address_bytes, decoding.boolean):
        read(result)
    for place in range(4):
        decoding.unsigned_at(result, place)
        decoding.signed_at(result, place)
    found = decoding.text(result)
    assert found is None or (len(found.encode()) <= 255 and "\0" not in found)


@given(st.text(st.characters(min_codepoint=33, exclude_categories=("Cs", "Zs", "Zl", "Zp", "Cc")), max_size=60))
def test_a_string_is_read_as_it_was_written(value: str) -> None:
    assert decoding.text(encode(["string"], [value])) == decoding.clean(value, most=255)


def test_words() -> None:
    assert decoding.unsigned(b"\xff" * 32) == 2**256 - 1
    assert decoding.signed_at(bytes(32) + b"\xff" * 32, 1) == -1
    assert decoding.unsigned(bytes(31)) is None
    assert decoding.boolean((2).to_bytes(32, "big")) is False
    assert decoding.address_bytes(bytes(32)) is None
    assert decoding.address_bytes(b"\x01" * 32) is None, "an address does not fill the whole word"
    assert decoding.address(bytes(12) + bytes.fromhex("5aaeb6053f3e94c9b9a09f33669435e7ef1beaed")) == (
        "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
    )
