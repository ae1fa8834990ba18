"""Turns what nodes say about a block into the blocks and logs of the stream, and checks that nothing is missing.

Called by the block reader alone. Pure. Everything is compared with the hash that was asked for: an answer about another
block raises `Unusable`, and so does one that cannot be read. `missing_from` says whether logs are complete by the
block's own bloom filter (Yellow Paper, section 4.3.1) and by their positions.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
from msgspec import UNSET, Raw, UnsetType

from capstan.chain.follower.models import Block, Log
from capstan.chain.heads.headers import Header
from capstan.core.hexes import keccak256, parse_data, parse_quantity

# What a block has besides its header, as eth_getBlockBy… tells it. geth's newHeads has none of it.
_NOT_HEADER = ("transactions", "uncles", "withdrawals", "size", "totalDifficulty")
_BLOOM_BITS = 2048
# Some chains do not keep bloom filters and set every bit: anything may be there.
_FULL_BLOOM = (1 << _BLOOM_BITS) - 1


class Unusable(Exception):
    """The answer is about something else, or incomplete; another upstream may have a better one."""


class RawBlock(msgspec.Struct, frozen=True):
    """A block as a node tells it, checked and taken apart."""

    link: Header
    header: bytes
    # 0 when it says nothing.
    bloom: int
    # Hashes or objects, whichever was asked for.
    transactions: tuple[Raw, ...]
    # Of the transactions.
    hashes: tuple[str, ...]

    def block(
        self,
        *,
        transactions: tuple[Raw, ...] | None = None,
        receipts: tuple[Raw, ...] | None = None,
        logs: tuple[Log, ...] | None = None,
    ) -> Block:
        """The block of the stream with this content."""
        link = self.link
        return Block(
            link.number, link.hash, link.parent_hash, link.timestamp, self.header, transactions, receipts, logs
        )


class _Link(msgspec.Struct, rename="camel"):
    number: str
    hash: str
    parent_hash: str
    timestamp: str
    # Must be there: a block without the member would pass for one without transactions.
    transactions: tuple[Raw, ...]
    logs_bloom: str | None = None


class _Transaction(msgspec.Struct):
    hash: str


class _Log(msgspec.Struct, rename="camel"):
    address: str
    topics: tuple[str, ...]
    log_index: str
    transaction_hash: str
    block_hash: str
    removed: bool | UnsetType = UNSET


class _Receipt(msgspec.Struct, rename="camel"):
    block_hash: str
    transaction_hash: str
    transaction_index: str
    logs: tuple[Raw, ...] = ()


_LINK: msgspec.json.Decoder[_Link | None] = msgspec.json.Decoder(_Link | None)
# Written so by us: when the block is taken back, this text is replaced.
_NOT_REMOVED = b'"removed":false'
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_LOG = msgspec.json.Decoder(_Log)
_LIST: msgspec.json.Decoder[tuple[Raw, ...] | None] = msgspec.json.Decoder(tuple[Raw, ...] | None)
_RECEIPT = msgspec.json.Decoder(_Receipt)
_HASH = msgspec.json.Decoder(str)
_TRANSACTION = msgspec.json.Decoder(_Transaction)


def block_from(raw: Raw, block_hash: str | None = None, number: int | None = None, *, full: bool = False) -> RawBlock:
    """A block, which must have this hash or this number; with whole transactions if `full`, else with their hashes."""
    try:
        link = _LINK.decode(raw)
        if link is None:
            raise Unusable("the block is not known there")
        header = Header(
            parse_quantity(link.number, lenient=True),
            link.hash.lower(),
            link.parent_hash.lower(),
            parse_quantity(link.timestamp, lenient=True),
        )
        bloom = int.from_bytes(parse_data(link.logs_bloom)) if link.logs_bloom else 0
        hashes = tuple(_TRANSACTION.decode(item).hash if full else _HASH.decode(item) for item in link.transactions)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise Unusable(f"not a block: {error}") from None
    if block_hash not in (None, header.hash) or number not in (None, header.number):
        raise Unusable(f"another block came than {block_hash or number}")
    fields = _OBJECT.decode(raw)
    for name in _NOT_HEADER:
        fields.pop(name, None)
    bloom = 0 if bloom == _FULL_BLOOM else bloom
    return RawBlock(header, msgspec.json.encode(fields), bloom, link.transactions, hashes)


def logs_from(raw: Raw, block_hash: str) -> tuple[Log, ...]:
    """The logs that eth_getLogs tells of one block."""
    return in_order(_log(item, block_hash) for item in _items(raw))


def receipts_from(raw: Raw, block_hash: str, count: int) -> tuple[Raw, ...]:
    """The receipts that eth_getBlockReceipts tells: one for each transaction."""
    receipts = _items(raw)
    if len(receipts) != count:
        raise Unusable(f"{len(receipts)} receipts for {count} transactions")
    for position, item in enumerate(receipts):
        if _index(_receipt(item, block_hash)) != position:
            raise Unusable("the receipts are not in the order of the transactions")
    return receipts


def receipt_from(raw: Raw, block_hash: str, transaction_hash: str) -> Raw:
    """The receipt of one transaction."""
    if bytes(raw) == b"null":
        raise Unusable("the receipt is not known there")
    if _receipt(raw, block_hash).transaction_hash.lower() != transaction_hash.lower():
        raise Unusable("the receipt of another transaction came")
    # Here another upstream can still be asked.
    logs_of((raw,), block_hash)
    return raw


def logs_of(receipts: Iterable[Raw], block_hash: str) -> tuple[Log, ...]:
    """The logs inside the receipts of a block."""
    return in_order(_log(item, block_hash) for receipt in receipts for item in _receipt(receipt, block_hash).logs)


def in_order(logs: Iterable[Log]) -> tuple[Log, ...]:
    """By their position in the block."""
    return tuple(sorted(logs, key=lambda log: log.index))


def missing_from(logs: Sequence[Log], bloom: int) -> str | None:
    """Why these cannot be all logs of a block with this bloom filter; None when nothing speaks against it."""
    if any(log.index != position for position, log in enumerate(logs)):
        return "the positions of the logs have gaps"
    known = 0
    for log in logs:
        known |= _bits(log.address)
        for topic in log.topics:
            known |= _bits(topic)
    # Not the other way round: some chains put logs of their own into blocks without telling the bloom filter.
    return "the bloom filter of the block names logs that are not there" if bloom & ~known else None


@lru_cache(maxsize=65_536)
def _bits(value: str) -> int:
    """The three bits of the bloom filter for an address or topic."""
    digest = keccak256(bytes.fromhex(value[2:]))
    bits = 0
    for start in (0, 2, 4):
        bits |= 1 << (int.from_bytes(digest[start : start + 2]) % _BLOOM_BITS)
    return bits


def _items(raw: Raw) -> tuple[Raw, ...]:
    try:
        items = _LIST.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unusable(f"not a list: {error}") from None
    if items is None:
        raise Unusable("the block is not known there")
    return items


def _log(raw: Raw, block_hash: str) -> Log:
    try:
        log = _LOG.decode(raw)
        parse_data(log.address)
        topics = tuple(topic.lower() for topic in log.topics)
        for topic in topics:
            parse_data(topic)
        index = parse_quantity(log.log_index, lenient=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise Unusable(f"not a log: {error}") from None
    if log.block_hash.lower() != block_hash:
        raise Unusable("a log of another block came")
    text = bytes(raw)
    if log.removed is not False or _NOT_REMOVED not in text:
        text = _not_removed(raw)
    return Log(log.address.lower(), topics, index, log.transaction_hash.lower(), text)


def _not_removed(raw: Raw) -> bytes:
    """The same log with `removed` false: some nodes leave that out in receipts, or write it with a space."""
    fields = _OBJECT.decode(raw)
    fields["removed"] = Raw(b"false")
    return msgspec.json.encode(fields)


def _receipt(raw: Raw, block_hash: str) -> _Receipt:
    try:
        receipt = _RECEIPT.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unusable(f"not a receipt: {error}") from None
    if receipt.block_hash.lower() != block_hash:
        raise Unusable("a receipt of another block came")
    return receipt


def _index(receipt: _Receipt) -> int:
    try:
        return parse_quantity(receipt.transaction_index, lenient=True)
    except ValueError as error:
        raise Unusable(f"not a receipt: {error}") from None
