"""Reads transfers and metadata notices out of logs. The one place that knows the events of the token standards.

Called by the stream consumer and by the backfill with logs as `eth_getLogs` tells them. The standard is told by the
number of topics: a `Transfer` with three is ERC-20, with four ERC-721, and with one, all values in the data, ERC-721
from before the standard (CryptoKitties). Any contract can emit anything: what does not decode raises `Malformed`, and
the caller counts and skips it. Pure.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

import msgspec

from capstan.core.hexes import keccak256
from capstan.index.models import ZERO_ADDRESS, Notice, NoticeKind, Standard, Transfer


def _topic(signature: str) -> str:
    return "0x" + keccak256(signature.encode()).hex()


TRANSFER = _topic("Transfer(address,address,uint256)")
TRANSFER_SINGLE = _topic("TransferSingle(address,address,address,uint256,uint256)")
TRANSFER_BATCH = _topic("TransferBatch(address,address,address,uint256[],uint256[])")
# ERC-2309: a whole range of ids of an ERC-721 contract, most often minted with the contract itself.
CONSECUTIVE_TRANSFER = _topic("ConsecutiveTransfer(uint256,uint256,address,address)")
# WETH9: coins wrapped and unwrapped. Many other contracts use the same names for other things.
DEPOSIT = _topic("Deposit(address,uint256)")
WITHDRAWAL = _topic("Withdrawal(address,uint256)")
# ERC-4906.
METADATA_UPDATE = _topic("MetadataUpdate(uint256)")
BATCH_METADATA_UPDATE = _topic("BatchMetadataUpdate(uint256,uint256)")
# ERC-1155.
URI = _topic("URI(string,uint256)")
# ERC-7572.
CONTRACT_URI_UPDATED = _topic("ContractURIUpdated()")
# ERC-1967: a proxy has other code behind it now, or another beacon that says where the code is.
UPGRADED = _topic("Upgraded(address)")
BEACON_UPGRADED = _topic("BeaconUpgraded(address)")

TRANSFER_TOPICS = frozenset({TRANSFER, TRANSFER_SINGLE, TRANSFER_BATCH, CONSECUTIVE_TRANSFER, DEPOSIT, WITHDRAWAL})
NOTICE_TOPICS = frozenset(
    {METADATA_UPDATE, BATCH_METADATA_UPDATE, URI, CONTRACT_URI_UPDATED, UPGRADED, BEACON_UPGRADED}
)
_WHOLE_CONTRACT = {
    CONTRACT_URI_UPDATED: NoticeKind.COLLECTION,
    UPGRADED: NoticeKind.CODE,
    BEACON_UPGRADED: NoticeKind.CODE,
}

_WORD = 64
_PADDING = "0" * 24


class Malformed(ValueError):
    """A log with the name of a transfer that is not one."""


class NodeLog(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A log as `eth_getLogs` tells it."""

    address: str
    topics: tuple[str, ...]
    data: str
    block_number: str
    block_hash: str
    transaction_hash: str
    log_index: str
    # Newer nodes add it.
    block_timestamp: str | None = None


class LogPlace(msgspec.Struct, frozen=True, gc=False):
    """Where a log stands, which all transfers in it share."""

    block_number: int
    log_index: int
    block_hash: bytes
    transaction_hash: bytes
    timestamp: int | None


# Standard, id, sender, receiver, amount.
_Movement: TypeAlias = tuple[Standard, int | None, bytes, bytes, int]


def place_of(log: NodeLog, timestamp: int | None = None) -> LogPlace:
    """Where the log stands. Raises `ValueError` when the node's words cannot be read."""
    if timestamp is None and log.block_timestamp is not None:
        timestamp = int(log.block_timestamp, 16)
    return LogPlace(
        int(log.block_number, 16), int(log.log_index, 16), _hash(log.block_hash), _hash(log.transaction_hash), timestamp
    )


def transfers_in(log: NodeLog, place: LogPlace, wrapped: frozenset[bytes]) -> tuple[Transfer, ...]:
    """The transfers a log tells of, none for other events. Raises `Malformed`.

    `wrapped` are the contracts of the wrapped native coin, whose deposits and withdrawals are mints and burns.
    """
    read = _READERS.get(log.topics[0]) if log.topics else None
    if read is None:
        return ()
    contract = _contract(log.address)
    if read in _WRAPPING and contract not in wrapped:
        return ()
    try:
        movements = read(log.topics, log.data[2:])
    except Malformed:
        raise
    except (ValueError, IndexError) as error:
        raise Malformed(str(error)) from None
    if len(movements) == 1:
        return (_transfer_at(place, 0, contract, movements[0]),)
    return tuple(_transfer_at(place, position, contract, movement) for position, movement in enumerate(movements))


def _transfer_at(place: LogPlace, position: int, contract: bytes, movement: _Movement) -> Transfer:
    standard, token_id, sender, receiver, amount = movement
    return Transfer(
        place.block_number,
        place.log_index,
        position,
        standard,
        contract,
        token_id,
        sender,
        receiver,
        amount,
        place.block_hash,
        place.transaction_hash,
        place.timestamp,
    )


def notice_in(log: NodeLog) -> Notice | None:
    """The notice of something that changed in a log, if it is one. Raises `Malformed`."""
    name = log.topics[0] if log.topics else ""
    if name not in NOTICE_TOPICS:
        return None
    contract, data = _contract(log.address), log.data[2:]
    if name in _WHOLE_CONTRACT:
        return Notice(contract, kind=_WHOLE_CONTRACT[name])
    try:
        if name == URI:
            first = last = _number(log.topics[1][2:], 0)
        else:
            # The arguments are not indexed in the standard, but some contracts do so.
            words = [*(topic[2:] for topic in log.topics[1:]), *_words(data)]
            first = _number(words[0], 0)
            last = first if name == METADATA_UPDATE else _number(words[1], 0)
    except (ValueError, IndexError) as error:
        raise Malformed(str(error)) from None
    return Notice(contract, first, max(first, last))


def _transfer(topics: tuple[str, ...], data: str) -> list[_Movement]:
    count = len(topics)
    if count == 3:
        return [(Standard.ERC20, None, _address(topics[1][2:]), _address(topics[2][2:]), _number(data, 0))]
    if count == 4:
        sender, receiver = _address(topics[1][2:]), _address(topics[2][2:])
        return [(Standard.ERC721, _number(topics[3][2:], 0), sender, receiver, 1)]
    if count == 1:
        sender, receiver = _address(data[:_WORD]), _address(data[_WORD : 2 * _WORD])
        return [(Standard.ERC721, _number(data, 2), sender, receiver, 1)]
    raise Malformed(f"a Transfer with {count} topics")


def _single(topics: tuple[str, ...], data: str) -> list[_Movement]:
    sender, receiver = _parties(topics)
    return [(Standard.ERC1155, _number(data, 0), sender, receiver, _number(data, 1))]


def _batch(topics: tuple[str, ...], data: str) -> list[_Movement]:
    sender, receiver = _parties(topics)
    ids, amounts = _array(data, 0), _array(data, 1)
    if len(ids) != len(amounts):
        raise Malformed("ids and amounts of a batch differ in number")
    return [
        (Standard.ERC1155, token_id, sender, receiver, amount) for token_id, amount in zip(ids, amounts, strict=True)
    ]


def _consecutive(topics: tuple[str, ...], data: str) -> list[_Movement]:
    if len(topics) != 4:
        raise Malformed(f"a ConsecutiveTransfer with {len(topics)} topics")
    first, last = _number(topics[1][2:], 0), _number(data, 0)
    if last < first:
        raise Malformed("a range that ends before it begins")
    sender, receiver = _address(topics[2][2:]), _address(topics[3][2:])
    return [(Standard.ERC721, first, sender, receiver, last - first + 1)]


def _deposit(topics: tuple[str, ...], data: str) -> list[_Movement]:
    return [(Standard.ERC20, None, ZERO_ADDRESS, _address(topics[1][2:]), _number(data, 0))]


def _withdrawal(topics: tuple[str, ...], data: str) -> list[_Movement]:
    return [(Standard.ERC20, None, _address(topics[1][2:]), ZERO_ADDRESS, _number(data, 0))]


_Reader: TypeAlias = Callable[[tuple[str, ...], str], list[_Movement]]
_READERS: dict[str, _Reader] = {
    TRANSFER: _transfer,
    TRANSFER_SINGLE: _single,
    TRANSFER_BATCH: _batch,
    CONSECUTIVE_TRANSFER: _consecutive,
    DEPOSIT: _deposit,
    WITHDRAWAL: _withdrawal,
}
_WRAPPING = frozenset({_deposit, _withdrawal})


def _parties(topics: tuple[str, ...]) -> tuple[bytes, bytes]:
    """Sender and receiver of an ERC-1155 event; the operator before them is of no interest."""
    if len(topics) != 4:
        raise Malformed(f"an ERC-1155 transfer with {len(topics)} topics")
    return _address(topics[2][2:]), _address(topics[3][2:])


# The same addresses come again and again, and so do blocks and transactions, which have many logs each.
@lru_cache(maxsize=32_768)
def _address(word: str) -> bytes:
    if len(word) != _WORD or not word.startswith(_PADDING):
        raise Malformed("not an address")
    return bytes.fromhex(word[24:])


@lru_cache(maxsize=4_096)
def _contract(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _number(data: str, place: int) -> int:
    word = data[place * _WORD : (place + 1) * _WORD]
    if len(word) != _WORD:
        raise Malformed("the data is too short")
    return int(word, 16)


def _array(data: str, place: int) -> list[int]:
    """The uint256[] whose offset stands at `place`."""
    offset = _number(data, place)
    # Lengths and offsets are those of a stranger: nothing is built before it is known to be there.
    if offset % 32 or offset * 2 + _WORD > len(data):
        raise Malformed("an array begins outside the data")
    begin = offset // 32
    count = _number(data, begin)
    if (begin + 1 + count) * _WORD > len(data):
        raise Malformed("an array ends outside the data")
    return [_number(data, begin + 1 + number) for number in range(count)]


def _words(data: str) -> list[str]:
    return [data[start : start + _WORD] for start in range(0, len(data) - _WORD + 1, _WORD)]


@lru_cache(maxsize=4_096)
def _hash(text: str) -> bytes:
    digest = bytes.fromhex(text[2:])
    if len(digest) != 32:
        raise ValueError("a hash has 32 bytes")
    return digest
