"""Values in dollars are exact, and shown without exponents."""

from decimal import Context, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.money import amount, parse_price, plain, power, product, quotient, significant

WORD = st.integers(min_value=0, max_value=2**256 - 1)


@given(units=WORD, decimals=st.integers(0, 78), cents=st.integers(1, 10**30))
def test_a_value_is_exact(units: int, decimals: int, cents: int) -> None:
    value = product(amount(units, decimals), amount(cents, 18))
    digits, _, fraction = plain(value).partition(".")
    assert int(digits + fraction) * 10 ** (decimals + 18 - len(fraction)) == units * cents


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        ("1.2500", "1.25"),
        ("1E+3", "1000"),
        ("0E-30", "0"),
        ("1E-20", "0.00000000000000000001"),
        ("-0.0", "0"),
        ("100", "100"),
    ],
)
def test_numbers_are_plain(number: str, shown: str) -> None:
    assert plain(Decimal(number)) == shown


def test_quotients_have_eighteen_digits() -> None:
    assert plain(quotient(Decimal(1), Decimal(3))) == "0.333333333333333333"
    assert plain(significant(Decimal(123456789012345678901))) == "123456789012345679000"


def test_powers_are_precise_enough_for_ticks() -> None:
    # The same from whole numbers alone.
    exact = (10001**200_000 * 10**40) // 10_000**200_000
    assert int(power(Decimal("1.0001"), 200_000).scaleb(40, Context(prec=80))) == exact


@pytest.mark.parametrize("text", ["0", "-1", "NaN", "Infinity", "", "one", "1e100", "1" * 201])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="positive decimal number"):
        parse_price(text)


def test_a_price_may_have_an_exponent() -> None:
    assert plain(parse_price("1.5e-7")) == "0.00000015"
