"""The bloom of logs: 2,048 bits that say "certainly not" or "perhaps" (Yellow Paper, section 4.3.1).

Used to find out whether a block can have logs that a filter matches. An address or a topic sets three bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from capstan.core.hexes import keccak256

BLOOM_BYTES = 256
_BITS = 2048


@lru_cache(maxsize=4096)
def bits_of(item: bytes) -> int:
    """The three bits of an address or a topic, in a number of 2,048 bits."""
    digest = keccak256(item)
    mask = 0
    for place in (0, 2, 4):
        mask |= 1 << (int.from_bytes(digest[place : place + 2]) % _BITS)
    return mask


def bloom_of(items: Iterable[bytes]) -> int:
    """The bits of several addresses and topics together."""
    mask = 0
    for item in items:
        mask |= bits_of(item)
    return mask


def may_hold(bloom: int, items: Iterable[bytes]) -> bool:
    """Whether all of these may be in the bloom."""
    mask = bloom_of(items)
    return bloom & mask == mask


def may_match(bloom: int, addresses: Sequence[bytes], topics: Sequence[Sequence[bytes]]) -> bool:
    """Whether the bloom may hold a log that a filter of eth_getLogs matches.

    `addresses` are alternatives, none of them meaning any. Each member of `topics` lists the alternatives at that
    place, none of them meaning any.
    """
    for alternatives in (addresses, *topics):
        if alternatives and not any(may_hold(bloom, (item,)) for item in alternatives):
            return False
    return True
