"""Reads sales out of the logs of a transaction: orders of single NFTs that Seaport fulfilled.

Pure. A log that does not decode is passed over. Orders of several tokens, of other coins than the native one and its
wrapped form, and those between an address and itself are no sales that say what one token is worth.
"""

from collections.abc import Iterable, Sequence

import msgspec

# Seaport 1.5 and 1.6 have these addresses on every chain: https://github.com/ProjectOpenSea/seaport
SEAPORT = frozenset({"0x00000000000000adc04c56bf30ac9d3c0aaf14dc", "0x0000000000000068f116a894984e2db1123eb395"})
# OrderFulfilled(bytes32,address,address,address,(uint8,address,uint256,uint256)[],
#   (uint8,address,uint256,uint256,address)[])
ORDER_FULFILLED = "0x9d9af8e38d66c62e2c12f0225249fd9d721c54b83f48d9352c97c6cacdcb6f31"
WORD = 32
_MOST_ITEMS = 64
NATIVE, ERC20, ERC721, ERC1155 = 0, 1, 2, 3


class Log(msgspec.Struct, frozen=True):
    """One log of a receipt."""

    address: str
    topics: list[str]
    data: str


class Sale(msgspec.Struct, frozen=True):
    """One token for the native coin or its wrapped form, in the smallest unit. Addresses in lower case, without 0x."""

    seller: str
    buyer: str
    price: int


class _Item(msgspec.Struct, frozen=True):
    kind: int
    token: bytes
    amount: int


def sales_in(logs: Iterable[Log], contract: bytes, wrapped: bytes | None) -> list[Sale]:
    """The sales of single tokens of the contract."""
    found = []
    for item in logs:
        if item.address.lower() in SEAPORT and item.topics and item.topics[0].lower() == ORDER_FULFILLED:
            try:
                sale = _sale(item, contract, wrapped)
            except (ValueError, IndexError):
                continue
            if sale is not None and sale.price:
                found.append(sale)
    return found


def _sale(order: Log, contract: bytes, wrapped: bytes | None) -> Sale | None:
    data = bytes.fromhex(order.data[2:])
    offerer, recipient = order.topics[1][-40:].lower(), data[WORD + 12 : 2 * WORD].hex()
    offer = _items(data, number(data, 2), 4)
    consideration = _items(data, number(data, 3), 5)
    if offerer == recipient:
        return None
    if _is_one(offer, contract):
        # A listing: all that is paid for it, fees included.
        paid = _paid(consideration, wrapped)
        return None if paid is None else Sale(offerer, recipient, paid)
    if _is_one([item for item in consideration if item.kind in (ERC721, ERC1155)], contract):
        # An offer that was accepted: what the buyer gave.
        paid = _paid(offer, wrapped)
        return None if paid is None else Sale(recipient, offerer, paid)
    return None


def _is_one(items: Sequence[_Item], contract: bytes) -> bool:
    """Whether it is one token of the contract and nothing else."""
    return (
        len(items) == 1 and items[0].kind in (ERC721, ERC1155) and items[0].token == contract and items[0].amount == 1
    )


def _paid(items: Sequence[_Item], wrapped: bytes | None) -> int | None:
    """The sum, if all of it is the native coin or its wrapped form."""
    for item in items:
        if item.kind != NATIVE and not (item.kind == ERC20 and wrapped is not None and item.token == wrapped):
            return None
    return sum(item.amount for item in items)


def _items(data: bytes, start: int, width: int) -> list[_Item]:
    if start % WORD or start + WORD > len(data):
        raise ValueError("an array lies outside the data")
    first = start // WORD
    count = number(data, first)
    if count > _MOST_ITEMS:
        raise ValueError("too many items")
    found = []
    for index in range(count):
        place = first + 1 + index * width
        token = data[WORD * (place + 1) + 12 : WORD * (place + 2)]
        found.append(_Item(number(data, place), token, number(data, place + 3)))
    return found


def number(data: bytes, place: int) -> int:
    word = data[WORD * place : WORD * (place + 1)]
    if len(word) < WORD:
        raise ValueError("the data is cut short")
    return int.from_bytes(word, "big")
