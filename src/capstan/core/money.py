"""Prices and values in US dollars: exact decimals, never floats.

Called by prices, tokens and NFTs. A product is exact, because the precision is far beyond what 256-bit amounts and our
prices have; only a quotient is rounded, to a fixed number of significant digits.
"""

from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

# An amount has at most 78 digits and 78 decimals, a price 60: a product of all of them fits.
_EXACT = Context(prec=400, rounding=ROUND_HALF_EVEN, Emax=999_999, Emin=-999_999)
_QUOTIENT_DIGITS = 18
_LONGEST_TEXT = 200


def amount(units: int, decimals: int) -> Decimal:
    """Whole smallest units as a number of tokens."""
    return _EXACT.scaleb(Decimal(units), -decimals)


def product(one: Decimal, other: Decimal) -> Decimal:
    """The exact product."""
    return _EXACT.multiply(one, other)


def quotient(dividend: Decimal, divisor: Decimal) -> Decimal:
    """The quotient with 18 significant digits. The divisor must not be zero."""
    return significant(_EXACT.divide(dividend, divisor))


def significant(number: Decimal) -> Decimal:
    """The number rounded to 18 significant digits."""
    return Context(prec=_QUOTIENT_DIGITS, rounding=ROUND_HALF_EVEN, Emax=999_999, Emin=-999_999).plus(number)


def power(base: Decimal, exponent: int) -> Decimal:
    """`base` to a whole power, with 60 significant digits."""
    return Context(prec=60, rounding=ROUND_HALF_EVEN, Emax=999_999, Emin=-999_999).power(base, exponent)


def plain(number: Decimal) -> str:
    """Without exponent and without trailing zeros: `1.25`, `1000`, `0`."""
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text if text not in ("-0", "") else "0"


def parse_price(text: str) -> Decimal:
    """A price as written in settings or answers. Raises `ValueError` unless it is a positive, finite decimal number."""
    try:
        number = Decimal(text) if len(text) <= _LONGEST_TEXT else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or number <= 0 or abs(number.adjusted()) > 60:
        raise ValueError("a price is a positive decimal number such as 1.25")
    return number
