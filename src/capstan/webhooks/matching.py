"""Finds the events of a block that webhooks want.

Called by the stream consumer inside the transaction of the block, so it waits for nothing and asks nobody. For every
transaction, transfer and log it looks up who may want it and then checks the other filters. What does not decode as a
transfer is a log like any other.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Raw

from capstan.chain.follower.models import Block
from capstan.core.hexes import to_checksum_address
from capstan.index.events import TRANSFER_TOPICS, Malformed, NodeLog, place_of, transfers_in
from capstan.index.models import Standard, Transfer
from capstan.webhooks import payloads
from capstan.webhooks.filters import Filters
from capstan.webhooks.kinds import Family
from capstan.webhooks.payloads import Place, TokenFacts, address_text
from capstan.webhooks.subscriptions import (
    ADDRESS,
    CONTRACT,
    HASH,
    RECEIVER,
    SENDER,
    TOKEN_ID,
    TOPICS,
    Subscription,
    Subscriptions,
)

# An ERC-2309 event may name any number of ids at once; so many of them become events.
_MOST_OF_RANGE = 10_000


class Draft(msgspec.Struct, frozen=True):
    """An event that a webhook wants."""

    subscription: Subscription
    # Where in the block it is.
    position: str
    data: dict[str, Any]
    # What is still to be looked up: `token:0x…` or `nft:0x…:id`.
    needs: str | None = None


class ChainTransaction(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A transaction as nodes tell it."""

    hash: str
    sender: str = msgspec.field(name="from")
    to: str | None
    value: str
    input: str
    nonce: str
    max_fee_per_gas: str | None = None
    max_priority_fee_per_gas: str | None = None

    @property
    def selector(self) -> bytes:
        """The first four bytes of the input; fewer when there are fewer."""
        return bytes.fromhex(self.input[2:10])


class MinedReceipt(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What a receipt tells of a transaction that was mined."""

    gas_used: str
    status: str | None = None
    effective_gas_price: str | None = None


class _Header(msgspec.Struct, frozen=True, rename="camel"):
    gas_used: str = "0x0"
    gas_limit: str = "0x0"
    base_fee_per_gas: str | None = None


_TRANSACTION = msgspec.json.Decoder(ChainTransaction)
_RECEIPT = msgspec.json.Decoder(MinedReceipt)
_LOG = msgspec.json.Decoder(NodeLog)
_HEADER = msgspec.json.Decoder(_Header)

KnownToken = Callable[[bytes], TokenFacts | None]


class Matcher:
    """Matches the blocks of one network."""

    def __init__(
        self,
        place: Place,
        subscriptions: Subscriptions,
        *,
        wrapped: frozenset[bytes],
        known_token: KnownToken = lambda _contract: None,
    ) -> None:
        """`wrapped` are contracts of the wrapped native coin; `known_token` tells of a token without waiting."""
        self._place = place
        self._subscriptions = subscriptions
        self._wrapped = wrapped
        self._known_token = known_token

    def match(self, block: Block) -> list[Draft]:
        """All events of a block, in their order."""
        found: list[Draft] = list(self._blocks(block))
        wants = self._subscriptions.wants
        transactions: list[ChainTransaction] = []
        if wants(Family.ACTIVITY, Family.MINED):
            transactions = [_TRANSACTION.decode(raw) for raw in block.transactions or ()]
            found += self._transactions(block, transactions)
        if wants(Family.ACTIVITY, Family.TOKENS, Family.NFTS, Family.LOGS):
            selectors = {each.hash: each.selector for each in transactions}
            found += self._logs(block, selectors)
        return found

    def _blocks(self, block: Block) -> Iterator[Draft]:
        for subscription in self._subscriptions.find(Family.BLOCKS, ()):
            if block.number % subscription.filters.every:
                continue
            header = _HEADER.decode(block.header)
            fee = header.base_fee_per_gas
            data = {
                "blockNumber": block.number,
                "blockHash": block.hash,
                "parentHash": block.parent_hash,
                "timestamp": payloads.whole_seconds(block.timestamp),
                "gasUsed": str(int(header.gas_used, 16)),
                "gasLimit": str(int(header.gas_limit, 16)),
                "baseFeePerGas": None if fee is None else str(int(fee, 16)),
                "transactionCount": len(block.transactions or ()),
            }
            yield Draft(subscription, "block", data)

    # --- transactions

    def _transactions(self, block: Block, transactions: list[ChainTransaction]) -> Iterator[Draft]:
        find = self._subscriptions.find
        for index, transaction in enumerate(transactions):
            sender = bytes.fromhex(transaction.sender[2:])
            receiver = None if transaction.to is None else bytes.fromhex(transaction.to[2:])
            for direction, party in (("outgoing", sender), ("incoming", receiver)):
                if party is None:
                    continue
                for subscription in find(Family.ACTIVITY, (ADDRESS + party,)):
                    if not _succeeded(block, index):
                        continue
                    draft = self._native(block, index, transaction, subscription, direction)
                    if draft is not None:
                        yield draft
            for subscription in find(Family.MINED, (HASH + bytes.fromhex(transaction.hash[2:]),)):
                receipt = _RECEIPT.decode((block.receipts or ())[index])
                yield mined_draft(subscription, block.number, block.hash, index, transaction, receipt)

    def _native(
        self, block: Block, index: int, transaction: ChainTransaction, subscription: Subscription, direction: str
    ) -> Draft | None:
        value, filters = int(transaction.value, 16), subscription.filters
        if value < filters.min_value or not _selected(filters, transaction.selector):
            return None
        data = payloads.activity(
            subscription.kind,
            self._place,
            block.number,
            transaction.hash,
            _parties(transaction),
            value,
            None,
            direction,
        )
        return Draft(subscription, f"tx:{index}:{direction[:2]}", data)

    # --- logs

    def _logs(self, block: Block, selectors: dict[str, bytes]) -> Iterator[Draft]:
        wants_transfers = self._subscriptions.wants(Family.ACTIVITY, Family.TOKENS, Family.NFTS)
        wants_logs = self._subscriptions.wants(Family.LOGS)
        for log in block.logs or ():
            decoded: NodeLog | None = None
            if wants_transfers and log.topics and log.topics[0] in TRANSFER_TOPICS:
                decoded = _LOG.decode(log.raw)
                try:
                    transfers = transfers_in(decoded, place_of(decoded, block.timestamp), self._wrapped)
                except Malformed:
                    transfers = ()
                for transfer in transfers:
                    selector = selectors.get(log.transaction_hash, b"")
                    yield from self._activity(transfer, selector)
                    if transfer.standard is Standard.ERC20:
                        yield from self._token(transfer)
                    else:
                        yield from self._nft(transfer)
            if wants_logs:
                yield from self._log(block, log.raw, decoded)

    def _activity(self, transfer: Transfer, selector: bytes) -> Iterator[Draft]:
        for direction, party in (("outgoing", transfer.sender), ("incoming", transfer.receiver)):
            for subscription in self._subscriptions.find(Family.ACTIVITY, (ADDRESS + party,)):
                filters = subscription.filters
                if transfer.amount < filters.min_value or not _selected(filters, selector):
                    continue
                data = payloads.activity(
                    subscription.kind,
                    self._place,
                    transfer.block_number,
                    "0x" + transfer.transaction_hash.hex(),
                    (address_text(transfer.sender), address_text(transfer.receiver)),
                    transfer.amount,
                    transfer.contract,
                    direction,
                )
                position = f"log:{transfer.log_index}:{transfer.position}:{direction[:2]}"
                yield self._with_token(subscription, position, data, transfer.contract)

    def _token(self, transfer: Transfer) -> Iterator[Draft]:
        keys = _transfer_keys(transfer)
        for subscription in self._subscriptions.find(Family.TOKENS, keys):
            filters = subscription.filters
            if transfer.amount < filters.min_value or not _concerned(filters, transfer):
                continue
            data = payloads.token_transfer(subscription.kind, transfer)
            position = f"log:{transfer.log_index}:{transfer.position}"
            yield self._with_token(subscription, position, data, transfer.contract)

    def _nft(self, transfer: Transfer) -> Iterator[Draft]:
        assert transfer.token_id is not None
        first, count, quantity = transfer.token_id, 1, transfer.amount
        if transfer.standard is Standard.ERC721:
            # The amount of a range (ERC-2309) is how many ids it has.
            count, quantity = min(transfer.amount, _MOST_OF_RANGE), 1
        for offset in range(count):
            token_id = first + offset
            keys = (*_transfer_keys(transfer), TOKEN_ID + token_id.to_bytes(32, "big"))
            for subscription in self._subscriptions.find(Family.NFTS, keys):
                filters = subscription.filters
                if not _concerned(filters, transfer) or (filters.token_ids and token_id not in filters.token_ids):
                    continue
                data = payloads.nft_transfer(subscription.kind, transfer, token_id, quantity)
                needs = f"nft:{data['contract']}:{token_id}" if "metadata" in data else None
                position = f"log:{transfer.log_index}:{transfer.position + offset}"
                yield Draft(subscription, position, data, needs)

    def _log(self, block: Block, raw: bytes, decoded: NodeLog | None) -> Iterator[Draft]:
        log = decoded or _LOG.decode(raw)
        address = bytes.fromhex(log.address[2:])
        topics = [bytes.fromhex(topic[2:]) for topic in log.topics]
        keys = (ADDRESS + address, *(tag + topic for tag, topic in zip(TOPICS, topics, strict=False)))
        for subscription in self._subscriptions.find(Family.LOGS, keys):
            filters = subscription.filters
            if filters.addresses and address not in filters.addresses:
                continue
            if not _topics_match(filters, topics):
                continue
            index = int(log.log_index, 16)
            data = {
                "block_number": block.number,
                "tx_hash": log.transaction_hash,
                "log_index": index,
                "contract": address_text(address),
                "topics": list(log.topics),
                "data": log.data,
            }
            yield Draft(subscription, f"log:{index}", data)

    def _with_token(self, subscription: Subscription, position: str, data: dict[str, Any], contract: bytes) -> Draft:
        facts = self._known_token(contract)
        if facts is None:
            return Draft(subscription, position, data, f"token:{address_text(contract)}")
        payloads.fill_token(subscription.kind, data, facts)
        return Draft(subscription, position, data)


def match_pending(subscriptions: Subscriptions, raw: Raw, seen_at: float) -> list[Draft]:
    """The webhooks that want a transaction of the mempool."""
    transaction = _TRANSACTION.decode(raw)
    parties = [bytes.fromhex(each[2:]) for each in (transaction.sender, transaction.to) if each is not None]
    keys = [*(ADDRESS + party for party in parties), b"m" + transaction.selector]
    data = {
        "transactionHash": transaction.hash,
        "from": to_checksum_address(transaction.sender),
        "to": None if transaction.to is None else to_checksum_address(transaction.to),
        "value": str(int(transaction.value, 16)),
        "nonce": int(transaction.nonce, 16),
        "input": transaction.input,
        "maxFeePerGas": _decimal(transaction.max_fee_per_gas),
        "maxPriorityFeePerGas": _decimal(transaction.max_priority_fee_per_gas),
        "firstSeenAt": payloads.milliseconds(seen_at),
    }
    found = []
    for subscription in subscriptions.find(Family.PENDING, keys):
        filters = subscription.filters
        if filters.addresses and not filters.addresses.intersection(parties):
            continue
        if _selected(filters, transaction.selector) and int(transaction.value, 16) >= filters.min_value:
            found.append(Draft(subscription, f"pending:{transaction.hash}", data))
    return found


def mined_draft(
    subscription: Subscription,
    number: int,
    block_hash: str,
    index: int,
    transaction: ChainTransaction,
    receipt: MinedReceipt,
) -> Draft:
    """The event of a transaction that is the `index`-th of a block."""
    sender, receiver = _parties(transaction)
    common = {
        "from": sender,
        "to": receiver,
        "value": str(int(transaction.value, 16)),
        "status": "failed" if receipt.status == "0x0" else "success",
    }
    used, price = str(int(receipt.gas_used, 16)), _decimal(receipt.effective_gas_price)
    confirmations = max(1, subscription.filters.confirmations)
    if subscription.kind.format == "A":
        place = {"block_number": number, "tx_hash": transaction.hash}
        cost = {"gas_used": used, "effective_gas_price": price, "confirmations": confirmations}
    else:
        place = {"blockNumber": number, "blockHash": block_hash, "transactionHash": transaction.hash}
        cost = {"gasUsed": used, "effectiveGasPrice": price, "confirmations": confirmations}
    return Draft(subscription, f"tx:{index}", {**place, **common, **cost})


def _succeeded(block: Block, index: int) -> bool:
    """Whether a transaction did what it was to do. One that failed has moved nothing."""
    return _RECEIPT.decode((block.receipts or ())[index]).status != "0x0"


def _parties(transaction: ChainTransaction) -> tuple[str, str | None]:
    receiver = None if transaction.to is None else address_text(bytes.fromhex(transaction.to[2:]))
    return address_text(bytes.fromhex(transaction.sender[2:])), receiver


def _transfer_keys(transfer: Transfer) -> tuple[bytes, ...]:
    sender, receiver = transfer.sender, transfer.receiver
    return (ADDRESS + sender, ADDRESS + receiver, SENDER + sender, RECEIVER + receiver, CONTRACT + transfer.contract)


def _concerned(filters: Filters, transfer: Transfer) -> bool:
    sender, receiver = transfer.sender, transfer.receiver
    return (
        (not filters.addresses or sender in filters.addresses or receiver in filters.addresses)
        and (not filters.senders or sender in filters.senders)
        and (not filters.receivers or receiver in filters.receivers)
        and (not filters.contracts or transfer.contract in filters.contracts)
    )


def _selected(filters: Filters, selector: bytes) -> bool:
    return not filters.selectors or selector in filters.selectors


def _topics_match(filters: Filters, topics: list[bytes]) -> bool:
    if len(filters.topics) > len(topics):
        return False
    return all(not wanted or topic in wanted for wanted, topic in zip(filters.topics, topics, strict=False))


def _decimal(quantity: str | None) -> str | None:
    return None if quantity is None else str(int(quantity, 16))
