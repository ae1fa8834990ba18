"""Quantities, byte strings and addresses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.hexes import (
    is_address,
    keccak256,
    parse_address,
    parse_data,
    parse_quantity,
    to_checksum_address,
    to_data,
    to_quantity,
)


@given(st.integers(min_value=0, max_value=2**256 - 1))
def test_a_quantity_reads_back(number: int) -> None:
    assert parse_quantity(to_quantity(number)) == number


@given(st.binary(max_size=100))
def test_bytes_read_back(data: bytes) -> None:
    assert parse_data(to_data(data)) == data


@pytest.mark.parametrize(
    "text", ["", "0x", "41", "0x041", "0xg", "-0x1", "0x1 ", "0x1\n", " 0x1", "0X1", None, 1, b"0x1"]
)
def test_what_is_no_quantity_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(text)


def test_leading_zeros_are_taken_only_when_lenient() -> None:
    assert parse_quantity("0x041", lenient=True) == 0x41
    assert parse_quantity("0x" + "0" * 70 + "1", lenient=True) == 1


def test_a_quantity_of_more_than_256_bits_is_refused() -> None:
    assert parse_quantity("0x" + "f" * 64) == 2**256 - 1
    with pytest.raises(ValueError, match="256 bits"):
        parse_quantity("0x1" + "0" * 64)


def test_a_negative_number_is_no_quantity() -> None:
    with pytest.raises(ValueError, match="negative"):
        to_quantity(-1)


@pytest.mark.parametrize("text", ["", "0x1", "0xzz", "12", "0x12\n", None, 5])
def test_what_is_no_byte_string_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="byte string"):
        parse_data(text)


# The examples of EIP-55.
CHECKSUMMED = [
    "0x52908400098527886E0F7030069857D2E4169EE7",
    "0xde709f2102306220921060314715629080e2fb77",
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
    "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
]


@pytest.mark.parametrize("address", CHECKSUMMED)
def test_checksums_follow_eip_55(address: str) -> None:
    assert to_checksum_address(address.lower()) == address
    assert to_checksum_address("0x" + address[2:].upper()) == address
    assert to_checksum_address(parse_address(address)) == address


@pytest.mark.parametrize(
    "text", ["0x" + "1" * 39, "0x" + "1" * 41, "1" * 40, "0x" + "g" * 40, None, "0x" + "1" * 40 + "\n"]
)
def test_what_is_no_address_is_refused(text: object) -> None:
    assert not is_address(text)
    with pytest.raises(ValueError, match="address"):
        parse_address(text)


def test_bytes_of_the_wrong_length_are_no_address() -> None:
    with pytest.raises(ValueError, match="20 bytes"):
        to_checksum_address(b"\x01" * 19)


def test_keccak_is_that_of_ethereum() -> None:
    assert keccak256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
