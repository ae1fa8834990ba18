"""Exact decimal strings."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.decimals import format_units, parse_units, wei_to_gwei


@given(st.integers(min_value=0, max_value=2**256 - 1), st.integers(min_value=0, max_value=80))
def test_an_amount_reads_back_without_loss(amount: int, decimals: int) -> None:
    assert parse_units(format_units(amount, decimals), decimals) == amount


@given(st.integers(min_value=-(2**256), max_value=2**256), st.integers(min_value=0, max_value=80))
def test_the_text_is_the_exact_value_without_exponent(amount: int, decimals: int) -> None:
    text = format_units(amount, decimals)
    with localcontext() as context:
        context.prec = 400
        assert Decimal(text) == Decimal(amount).scaleb(-decimals)
    assert "e" not in text.lower()
    assert "." not in text or not text.endswith("0")


@pytest.mark.parametrize(
    ("amount", "decimals", "text"),
    [
        (0, 18, "0"),
        (1, 18, "0.000000000000000001"),
        (10**18, 18, "1"),
        (1_500_000, 6, "1.5"),
        (123, 0, "123"),
        (-5, 1, "-0.5"),
    ],
)
def test_amounts_are_written_plainly(amount: int, decimals: int, text: str) -> None:
    assert format_units(amount, decimals) == text


@pytest.mark.parametrize(
    "text", ["", ".", "1.", ".5", "1e3", "-1", "+1", " 1", "1\n", "0x1", "1,5", "1.2.3", "٣", "9" * 500]
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an amount is written"):
        parse_units(text, 18)


def test_more_places_than_the_unit_has_are_refused_unless_zero() -> None:
    with pytest.raises(ValueError, match="at most 6"):
        parse_units("0.0000001", 6)
    assert parse_units("0.1000000000", 6) == 100_000


@pytest.mark.parametrize("decimals", [-1, 256])
def test_decimals_beyond_a_byte_are_refused(decimals: int) -> None:
    with pytest.raises(ValueError, match="between 0 and 255"):
        format_units(1, decimals)
    with pytest.raises(ValueError, match="between 0 and 255"):
        parse_units("1", decimals)


def test_gwei() -> None:
    assert wei_to_gwei(1_000_000_007) == "1.000000007"
