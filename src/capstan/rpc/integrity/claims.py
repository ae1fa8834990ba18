"""The rules: what a block, its receipts and its logs must be like to be true.

Pure functions on decoded JSON, called by `verifying` and `evidence`. They raise `Refuted` when an answer contradicts
its block or itself, and `Unproved` when it is of a kind that cannot be checked here. What a header does not cover is
not checked: `from`, `to`, `contractAddress` and `effectiveGasPrice` of receipts, `size` and `totalDifficulty` of
blocks, an empty list of withdrawals, and the list of hashes where a block is given without its transactions.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from capstan.chain.proofs.bloom import may_hold
from capstan.chain.proofs.header import Incomplete, header_hash
from capstan.chain.proofs.receipts import Unprovable, receipts_root
from capstan.chain.proofs.transactions import encode_transaction, transactions_root, withdrawals_root
from capstan.core.hexes import keccak256, parse_data, parse_quantity, to_data

# keccak256(rlp([])): a block without uncles.
_NO_UNCLES = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"

Json = Mapping[str, Any]


class Refuted(Exception):
    """The answer is wrong. `check` is a word for what was checked, the message says what is wrong."""

    def __init__(self, check: str, reason: str) -> None:
        super().__init__(reason)
        self.check = check


class Unsettled(Exception):
    """The answer does not fit what we know, without being provably wrong. Another upstream is asked."""


class Unproved(Exception):
    """The answer may be right, and nothing shows it. Another upstream is asked for one that can be proved.

    `check` is a word for what could not be checked.
    """

    def __init__(self, check: str, reason: str) -> None:
        super().__init__(reason)
        self.check = check


class Facts(msgspec.Struct, frozen=True):
    """What is known of one block."""

    number: int
    hash: str
    bloom: int
    receipts_root: str
    # A digest of the hashes of its transactions, as the block lists them. That list is not covered by the hash.
    transactions: bytes
    # Whether the header was shown to have the hash. What was not is never kept.
    proved: bool = False


def facts_of(block: Json) -> Facts:
    """The facts in a block as a node gives it. Raises `Refuted` when it is none."""
    try:
        return Facts(
            parse_quantity(block["number"], lenient=True),
            _hash(block["hash"]),
            int.from_bytes(parse_data(block["logsBloom"])),
            _hash(block["receiptsRoot"]),
            digest_of(transactions_of(block)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Refuted("header", f"not a block: {error}") from None


def transactions_of(block: Json) -> list[str]:
    """The hashes of the transactions that a block lists. Raises `ValueError`."""
    given = block.get("transactions") or ()
    return [_hash(item["hash"] if isinstance(item, dict) else item) for item in given]


def digest_of(hashes: Iterable[str]) -> bytes:
    """Equal for equal lists."""
    return sha256("".join(hashes).encode()).digest()


def check_header(block: Json) -> None:
    """The hash of the header is the block's. Raises `Refuted`, and `Unproved` for a header that is not standard."""
    try:
        computed = to_data(header_hash(block))
    except Incomplete as error:
        raise Unproved("header", f"the header of block {block.get('number')} cannot be hashed: {error}") from None
    if computed != _hash(block["hash"]):
        raise Refuted("header", f"the header of block {block.get('number')} has another hash than the block says")


def check_form(block: Json, *, full: bool) -> None:
    """The transactions are given in one form, and in `full` if they were asked for so. Raises `Refuted`."""
    number, given = block.get("number"), block.get("transactions")
    if given is None and not full:
        return
    if not isinstance(given, list):
        raise Refuted("transactions", f"block {number} came without a list of transactions")
    in_full = sum(isinstance(item, dict) for item in given)
    if in_full != len(given) and (full or in_full):
        raise Refuted("transactions", f"not all transactions of block {number} were given in full")


def check_contents(block: Json, *, full: bool = False) -> None:
    """What comes with the header is what the header commits to: transactions, if given in full, and withdrawals.

    Raises `Refuted`; and `Unproved` when all else is right but there is a transaction of an unknown type. With `full`,
    transactions must be there.
    """
    check_form(block, full=full)
    number = block.get("number")
    if parse_quantity(number, lenient=True) == 0:
        # A genesis block has neither, and a development chain writes whatever it likes for that.
        return
    if block.get("sha3Uncles") == _NO_UNCLES and block.get("uncles"):
        raise Refuted("header", f"block {number} has no uncles, but some were given")
    if block.get("withdrawals") is not None and block.get("withdrawalsRoot") is not None:
        # Rollups have the root of something else there, and no withdrawals.
        try:
            computed = to_data(withdrawals_root(block["withdrawals"]))
        except Unprovable as error:
            # They have had one form from the beginning.
            raise Refuted("withdrawals", str(error)) from None
        if block["withdrawals"] and computed != _hash(block["withdrawalsRoot"]):
            raise Refuted("withdrawals", f"the withdrawals of block {number} are not those of its header")
    given = block.get("transactions")
    if given is not None and all(isinstance(item, dict) for item in given):
        try:
            _check_transactions(block, given)
        except Unprovable as error:
            raise Unproved("transactions", f"block {number}: {error}") from None


def _check_transactions(block: Json, given: Sequence[Json]) -> None:
    number, root = block.get("number"), _hash(block["transactionsRoot"])
    if to_data(transactions_root(given)) != root:
        raise Refuted("transactions", f"the transactions of block {number} are not those of its header")
    for position, item in enumerate(given):
        if to_data(keccak256(encode_transaction(item))) != _hash(item["hash"]):
            raise Refuted("transactions", f"a transaction of block {number} has another hash than it says")
        where = (item.get("blockHash"), item.get("blockNumber"), item.get("transactionIndex"))
        if not _is_place(where, _hash(block["hash"]), parse_quantity(number, lenient=True), position):
            raise Refuted("transactions", f"a transaction of block {number} says that it is elsewhere")


def check_receipts(receipts: Sequence[Json], facts: Facts) -> None:
    """These are the receipts of the block. Raises `Refuted`, or `Unproved` for unknown types."""
    try:
        root = to_data(receipts_root(receipts))
    except Unprovable as error:
        raise Unproved("receipts", f"block {facts.number}: {error}") from None
    if root != facts.receipts_root:
        raise Refuted("receipts", f"the receipts of block {facts.number} are not those of its header")
    try:
        _check_places(receipts, facts)
    except (KeyError, TypeError, ValueError) as error:
        raise Refuted("receipts", f"a receipt of block {facts.number} cannot be read: {error}") from None


def _check_places(receipts: Sequence[Json], facts: Facts) -> None:
    """What receipts and logs say of where they are, which the root does not cover."""
    log_index = gas = 0
    for position, receipt in enumerate(receipts):
        where = (receipt["blockHash"], receipt["blockNumber"], receipt["transactionIndex"])
        total = parse_quantity(receipt["cumulativeGasUsed"], lenient=True)
        if not _is_place(where, facts.hash, facts.number, position):
            raise Refuted("receipts", f"a receipt of block {facts.number} says that it is elsewhere")
        if parse_quantity(receipt["gasUsed"], lenient=True) != total - gas:
            raise Refuted("receipts", f"a receipt of block {facts.number} has the wrong gas")
        gas = total
        for log in receipt["logs"]:
            where = (log["blockHash"], log["blockNumber"], log["transactionIndex"])
            right = _is_place(where, facts.hash, facts.number, position)
            if not right or parse_quantity(log["logIndex"], lenient=True) != log_index:
                raise Refuted("logs", f"a log of block {facts.number} says that it is elsewhere")
            if _hash(log["transactionHash"]) != _hash(receipt["transactionHash"]):
                raise Refuted("logs", f"a log of block {facts.number} is not of its transaction")
            log_index += 1


def same_receipt(one: Json, other: Json) -> bool:
    """Whether two receipts say the same in everything that a block proves."""
    return _receipt_facts(one) == _receipt_facts(other)


def _receipt_facts(receipt: Json) -> tuple[object, ...]:
    names = ("type", "status", "root", "cumulativeGasUsed", "gasUsed", "blockNumber", "transactionIndex")
    numbers = tuple(None if receipt.get(name) is None else str(receipt[name]).lower() for name in names)
    texts = tuple(str(receipt[name]).lower() for name in ("logsBloom", "blockHash", "transactionHash"))
    return (*numbers, *texts, [log_facts(log) for log in receipt["logs"]])


class LogFacts(NamedTuple):
    """Everything that a log says."""

    address: bytes
    topics: tuple[bytes, ...]
    data: bytes
    block_hash: str
    number: int
    transaction: str
    transaction_index: int
    log_index: int
    removed: bool


def log_facts(log: Json) -> LogFacts:
    """A log in a form that can be compared. Raises `Refuted` when it is none."""
    try:
        return LogFacts(
            parse_data(log["address"]),
            tuple(parse_data(topic) for topic in log["topics"]),
            parse_data(log["data"]),
            _hash(log["blockHash"]),
            parse_quantity(log["blockNumber"], lenient=True),
            _hash(log["transactionHash"]),
            parse_quantity(log["transactionIndex"], lenient=True),
            parse_quantity(log["logIndex"], lenient=True),
            bool(log.get("removed")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Refuted("logs", f"not a log: {error}") from None


def check_bloom(logs: Sequence[Json], bloom: int, number: int) -> None:
    """All of these logs may be in a block with this bloom. Raises `Refuted`."""
    for log in logs:
        facts = log_facts(log)
        if not may_hold(bloom, (facts.address, *facts.topics)):
            raise Refuted("bloom", f"the bloom of block {number} rules out a log that was given")


def _is_place(given: tuple[object, object, object], block_hash: str, number: int, position: int) -> bool:
    return (
        isinstance(given[0], str)
        and given[0].lower() == block_hash
        and parse_quantity(given[1], lenient=True) == number
        and parse_quantity(given[2], lenient=True) == position
    )


def _hash(text: object) -> str:
    data = parse_data(text)
    if len(data) != 32:
        raise ValueError("a hash has 32 bytes")
    return to_data(data)
