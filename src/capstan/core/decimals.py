"""Amounts as exact decimal strings: whole numbers of the smallest unit in, text out, and back.

Called wherever an amount is shown or read: balances, supplies, gas prices. Only integers are used, never a float and
never an exponent, so `format_units` and `parse_units` undo each other without loss.
"""

import re

GWEI_DECIMALS = 9
ETHER_DECIMALS = 18

# No token in use has more; a contract may claim up to 255 (its uint8), and is still formatted exactly.
_MAX_DECIMALS = 255
_DECIMAL = re.compile(r"([0-9]+)(?:\.([0-9]+))?\Z", re.ASCII)
_MAX_TEXT = 400


def format_units(amount: int, decimals: int) -> str:
    """`amount` of the smallest unit as a decimal number, without trailing zeros: 1500000000 with 9 is `1.5`."""
    if not 0 <= decimals <= _MAX_DECIMALS:
        raise ValueError(f"decimals must be between 0 and {_MAX_DECIMALS}")
    sign = "-" if amount < 0 else ""
    whole, fraction = divmod(abs(amount), 10**decimals)
    if not fraction:
        return f"{sign}{whole}"
    return f"{sign}{whole}.{str(fraction).rjust(decimals, '0').rstrip('0')}"


def parse_units(text: str, decimals: int) -> int:
    """The amount in the smallest unit of a decimal number such as `1.5`. More places than `decimals` is an error."""
    if not 0 <= decimals <= _MAX_DECIMALS:
        raise ValueError(f"decimals must be between 0 and {_MAX_DECIMALS}")
    match = _DECIMAL.match(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        raise ValueError("an amount is written with digits and at most one point, such as 12.5")
    whole, fraction = match.group(1), (match.group(2) or "").rstrip("0")
    if len(fraction) > decimals:
        raise ValueError(f"an amount has at most {decimals} decimal places here")
    return int(whole + fraction.ljust(decimals, "0"))


def wei_to_gwei(wei: int) -> str:
    """Wei as an exact decimal number of gwei."""
    return format_units(wei, GWEI_DECIMALS)
