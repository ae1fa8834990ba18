"""Reads orders out of Seaport's `OrderValidated`: listings that somebody put on the chain, whole. Pure.

Only what can be judged from the chain alone counts: one token for the native coin or its wrapped form, open to
everybody. Orders of several tokens, of any token of a collection, or that a zone must approve are left out.
"""

from collections.abc import Sequence

import msgspec

from capstan.prices.seaport import ERC20, ERC721, ERC1155, NATIVE, WORD, Log, number

# OrderValidated(bytes32,(address,address,(uint8,address,uint256,uint256,uint256)[],
#   (uint8,address,uint256,uint256,uint256,address)[],uint8,uint256,uint256,bytes32,uint256,bytes32,uint256))
ORDER_VALIDATED = "0xf280791efe782edcf06ce15c8f4dff17601db3b88eb3805a0db7d77faf757f04"
# FULL_OPEN and PARTIAL_OPEN: everybody may fulfil them.
_OPEN = frozenset({0, 1})
_MOST_ITEMS = 16
# The words of OrderParameters; the last is the number of items of the consideration, or the counter in OrderComponents.
_FIELDS = 11
_LAST_FIELD = 10


class Payment(msgspec.Struct, frozen=True):
    """What must be paid, at the beginning of the order's time and at its end."""

    start: int
    end: int


class Listing(msgspec.Struct, frozen=True):
    """One token offered for a price."""

    seaport: bytes
    hash: bytes
    offerer: bytes
    contract: bytes
    token_id: int
    # ERC-721, or else ERC-1155.
    unique: bool
    payments: tuple[Payment, ...]
    start_time: int
    end_time: int
    conduit_key: bytes
    # OrderParameters as they were emitted.
    parameters: bytes

    def price_at(self, moment: int) -> int | None:
        """What it costs at that time (Unix seconds); None when it is not for sale then."""
        if not self.start_time <= moment < self.end_time:
            return None
        length, passed = self.end_time - self.start_time, moment - self.start_time
        # As Seaport does it: from start to end in a straight line, rounded up.
        return sum(
            -(-(payment.start * (length - passed) + payment.end * passed) // length) for payment in self.payments
        )

    def components(self, counter: int) -> bytes:
        """The argument of `getOrderHash` for this order and a counter of the offerer."""
        before, after = self.parameters[: WORD * _LAST_FIELD], self.parameters[WORD * _FIELDS :]
        return WORD.to_bytes(WORD, "big") + before + counter.to_bytes(WORD, "big") + after


def listing_in(log: Log, wrapped: bytes | None) -> Listing | None:
    """The listing in a log of Seaport; None when it is none that can be judged."""
    if not log.topics or log.topics[0].lower() != ORDER_VALIDATED:
        return None
    try:
        return _listing(log, wrapped)
    except (ValueError, IndexError):
        return None


def _listing(log: Log, wrapped: bytes | None) -> Listing | None:
    data = bytes.fromhex(log.data[2:])
    start = number(data, 1)
    if start % WORD or start > len(data):
        raise ValueError("the order lies outside the data")
    order = data[start:]
    offer, consideration = _items(order, number(order, 2), 5), _items(order, number(order, 3), 6)
    if number(order, 4) not in _OPEN or len(offer) != 1 or number(order, _LAST_FIELD) != len(consideration):
        return None
    kind, token, token_id, least, most = offer[0]
    payments = [_payment(item, wrapped) for item in consideration]
    if kind not in (ERC721, ERC1155) or (least, most) != (1, 1) or not payments or None in payments:
        return None
    return Listing(
        seaport=bytes.fromhex(log.address[2:]),
        hash=data[:WORD],
        offerer=order[12:WORD],
        contract=token.to_bytes(WORD, "big")[12:],
        token_id=token_id,
        unique=kind == ERC721,
        payments=tuple(payment for payment in payments if payment is not None),
        start_time=number(order, 5),
        end_time=number(order, 6),
        conduit_key=order[WORD * 9 : WORD * 10],
        parameters=order,
    )


def _payment(item: Sequence[int], wrapped: bytes | None) -> Payment | None:
    kind, token, _, start, end = item[:5]
    if kind == NATIVE or (kind == ERC20 and wrapped is not None and token == int.from_bytes(wrapped, "big")):
        return Payment(start, end)
    return None


def _items(order: bytes, start: int, width: int) -> list[list[int]]:
    if start % WORD or start + WORD > len(order):
        raise ValueError("an array lies outside the order")
    first = start // WORD
    count = number(order, first)
    if count > _MOST_ITEMS:
        raise ValueError("too many items")
    return [[number(order, first + 1 + index * width + field) for field in range(width)] for index in range(count)]
