"""How long the precompiles take that are plain Python here, and cost little gas because they are fast elsewhere.

Asked by the machine before it runs one, so that a job that cannot end in its time is given up at once, and does not
hold a process until then. The seconds are those of one core of the machine they were measured on, which is close
enough. Pure.
"""

from collections.abc import Callable

import msgspec


class Cost(msgspec.Struct, frozen=True):
    """What one unit of work takes: seconds, and at least so much gas."""

    seconds: float
    gas: int
    # How many units the input asks for.
    units: Callable[[bytes], int]


def _every(size: int) -> Callable[[bytes], int]:
    return lambda data: len(data) // size


def _rounds(data: bytes) -> int:
    return int.from_bytes(data[:4], "big")


_COSTS: dict[int, Cost] = {
    # BN254: a multiplication, and a pairing for each pair of points (EIP-1108).
    0x07: Cost(0.011, 6_000, lambda _data: 1),
    0x08: Cost(0.67, 34_000, _every(192)),
    # BLAKE2F says in its first word how many rounds it is to take (EIP-152).
    0x09: Cost(0.0011, 1, _rounds),
    # BLS12-381 (EIP-2537): many multiplications at once are cheaper, by about a half.
    0x0C: Cost(0.03, 6_228, _every(160)),
    0x0E: Cost(0.17, 11_790, _every(288)),
    0x0F: Cost(0.9, 32_600, _every(384)),
    0x10: Cost(0.05, 5_500, lambda _data: 1),
    0x11: Cost(0.18, 23_800, lambda _data: 1),
}


def seconds_of(address: bytes, data: bytes, gas: int) -> float:
    """About how long the precompile at this address takes. What the gas does not pay for fails at once."""
    cost = _COSTS.get(int.from_bytes(address, "big"))
    if cost is None:
        return 0.0
    units = cost.units(data)
    return 0.0 if units * cost.gas > gas else units * cost.seconds
