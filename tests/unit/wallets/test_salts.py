"""The number behind a salt."""

import pytest
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from capstan.wallets.salts import salt_number


def hashed(text: str) -> int:
    return int.from_bytes(keccak(text.encode()), "big")


@pytest.mark.parametrize(
    ("salt", "number"),
    [
        (None, 0),
        ("0", 0),
        ("00", 0),
        ("42", 42),
        ("007", 7),
        ("0x0", 0),
        ("0x2A", 42),
        ("0x" + "0" * 100 + "1", 1),
        ("0" * 5000 + "1", 1),
        (str(2**256 - 1), 2**256 - 1),
        (hex(2**256 - 1), 2**256 - 1),
    ],
)
def test_numbers_are_themselves(salt: str | None, number: int) -> None:
    assert salt_number(salt) == number


@pytest.mark.parametrize(
    "salt",
    [
        *("", "0x", "x", "-1", "+1", " 1", "1 ", "1\n", "1_000", "0X1F", "0x1g", "1e3", "1.0", "٣", "ünï"),
        *(str(2**256), hex(2**256), "9" * 5000, "0x" + "f" * 5000),
    ],
)
def test_everything_else_is_hashed(salt: str) -> None:
    assert salt_number(salt) == hashed(salt)


def test_text_without_a_utf8_form_is_refused() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        salt_number("\ud800")


@given(st.integers(0, 2**256 - 1))
def test_both_ways_to_write_a_number_mean_the_same(number: int) -> None:
    assert salt_number(str(number)) == salt_number(hex(number)) == number
