"""Solana's subscriptions. The hub listens to the ledger and writes notifications; a session is one socket's view: its
subscriptions, and the requests it sends.

No input or output here: a session is given a function that queues a message for its socket. As on a real node, a
socket answers the subscription methods and `getVersion` only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Literal

import msgspec
from solders.account import Account
from solders.pubkey import Pubkey
from solders.signature import Signature

from capstan.devnet.solana import params as p
from capstan.devnet.solana.account_json import AccountEncoding, DataSlice, encode_account
from capstan.devnet.solana.dispatch import Call, Dispatcher
from capstan.devnet.solana.errors import RpcError, internal_error, invalid_params
from capstan.devnet.solana.ledger import Ledger
from capstan.devnet.solana.methods.node import get_version
from capstan.devnet.solana.programs import SYSTEM, VOTE
from capstan.devnet.solana.records import Block, Commitment, TransactionRecord
from capstan.devnet.solana.settings import NodeSettings

_ORDER = (Commitment.PROCESSED, Commitment.CONFIRMED, Commitment.FINALIZED)
_ALL = "all"
_ALL_WITH_VOTES = "allWithVotes"


class Kind(StrEnum):
    ACCOUNT = "account"
    LOGS = "logs"
    PROGRAM = "program"
    ROOT = "root"
    SIGNATURE = "signature"
    SLOT = "slot"


@dataclass(frozen=True, slots=True, eq=False)
class Subscription:
    identifier: int
    session: Session
    kind: Kind
    key: Hashable = None
    """What it watches: an address, a signature, or a filter's name. None for slots and roots."""
    commitment: Commitment = Commitment.FINALIZED
    encoding: AccountEncoding = AccountEncoding.BINARY
    data_slice: DataSlice | None = None
    filters: tuple[p.AccountFilter, ...] = ()
    wants_received: bool = False


class Hub:
    """All subscriptions of the node, found by what they watch."""

    def __init__(self, ledger: Ledger, settings: NodeSettings) -> None:
        self.ledger = ledger
        self.settings = settings
        self._next_identifier = 0
        self._index: dict[tuple[Kind, Hashable], dict[int, Subscription]] = {}
        self._program_subscriptions = 0
        ledger.observe(self)

    def add(self, subscription: Subscription) -> None:
        self._index.setdefault((subscription.kind, subscription.key), {})[subscription.identifier] = subscription
        self._program_subscriptions += subscription.kind is Kind.PROGRAM

    def remove(self, subscription: Subscription) -> None:
        found = self._index[(subscription.kind, subscription.key)]
        del found[subscription.identifier]
        if not found:
            del self._index[(subscription.kind, subscription.key)]
        self._program_subscriptions -= subscription.kind is Kind.PROGRAM

    def new_identifier(self) -> int:
        self._next_identifier += 1
        return self._next_identifier - 1

    def _watching(self, kind: Kind, key: Hashable = None, commitment: Commitment | None = None) -> list[Subscription]:
        """A copy: telling a subscriber may end its subscription."""
        found = self._index.get((kind, key), {}).values()
        return [item for item in found if commitment is None or item.commitment is commitment]

    # What the ledger says

    def transaction_executed(self, record: TransactionRecord) -> None:
        for subscription in self._watching(Kind.SIGNATURE, record.signature):
            if subscription.wants_received:
                self._notify(subscription, record.slot, "receivedSignature")
        self._tell_transactions([record], Commitment.PROCESSED)
        self._tell_accounts(record.touched, record.slot, Commitment.PROCESSED)

    def block_completed(self, block: Block) -> None:
        self._tell_transactions(block.transactions, Commitment.CONFIRMED)
        self._tell_accounts(block.touched, block.slot, Commitment.CONFIRMED)

    def block_finalized(self, block: Block) -> None:
        self._tell_transactions(block.transactions, Commitment.FINALIZED)
        self._tell_accounts(block.touched, block.slot, Commitment.FINALIZED)
        for subscription in self._watching(Kind.ROOT):
            subscription.session.notify(subscription, block.slot)

    def slot_opened(self, block: Block, root: int) -> None:
        info = {"slot": block.slot, "parent": block.parent_slot, "root": root}
        for subscription in self._watching(Kind.SLOT):
            subscription.session.notify(subscription, info)
        self._tell_accounts(block.touched, block.slot, Commitment.PROCESSED)

    # What subscribers are told

    def _notify(self, subscription: Subscription, slot: int, value: Any) -> None:
        subscription.session.notify(subscription, {"context": {"slot": slot}, "value": value})

    def _tell_transactions(self, records: Iterable[TransactionRecord], commitment: Commitment) -> None:
        for record in records:
            for subscription in self._watching(Kind.SIGNATURE, record.signature, commitment):
                self.tell_signature(subscription, record)
            self._tell_logs(record, commitment)

    def tell_signature(self, subscription: Subscription, record: TransactionRecord) -> None:
        """The one notification a signature subscription is for; it ends with it."""
        self._notify(subscription, record.slot, {"err": record.outcome.error})
        subscription.session.end(subscription)

    def _tell_logs(self, record: TransactionRecord, commitment: Commitment) -> None:
        filters: list[Hashable] = [_ALL_WITH_VOTES] if _is_vote(record) else [_ALL, _ALL_WITH_VOTES]
        filters.extend(dict.fromkeys(record.resolved.keys))
        value = {
            "signature": str(record.signature),
            "err": record.outcome.error,
            "logs": record.outcome.logs,
        }
        for key in filters:
            for subscription in self._watching(Kind.LOGS, key, commitment):
                self._notify(subscription, record.slot, value)

    def _tell_accounts(self, addresses: Iterable[Pubkey], slot: int, commitment: Commitment) -> None:
        for address in addresses:
            subscriptions = self._watching(Kind.ACCOUNT, address, commitment)
            if not subscriptions and not self._program_subscriptions:
                continue
            account = self.ledger.account(address, slot)
            for subscription in subscriptions:
                value = self._account_json(subscription, address, account or Account(0, b"", SYSTEM), slot)
                self._notify(subscription, slot, value)
            if account is not None:
                self._tell_program(address, account, slot, commitment)

    def _tell_program(self, address: Pubkey, account: Account, slot: int, commitment: Commitment) -> None:
        for subscription in self._watching(Kind.PROGRAM, account.owner, commitment):
            if all(allows(account.data) for allows in subscription.filters):
                encoded = self._account_json(subscription, address, account, slot)
                self._notify(subscription, slot, {"pubkey": str(address), "account": encoded})

    def _account_json(self, subscription: Subscription, address: Pubkey, account: Account, slot: int) -> Any:
        return encode_account(
            address,
            account,
            subscription.encoding,
            subscription.data_slice,
            lambda other: self.ledger.account(other, slot),
            refuse_long_base58=False,
        )


def _is_vote(record: TransactionRecord) -> bool:
    programs = [record.resolved.program_of(instruction) for instruction in record.resolved.instructions]
    return bool(programs) and all(program == VOTE for program in programs)


@dataclass(slots=True, eq=False)
class Session:
    """One socket. `push` queues a message for it and must not block."""

    hub: Hub
    push: Callable[[bytes], None]
    _subscriptions: dict[int, Subscription] = field(default_factory=dict)
    _after_reply: list[Callable[[], None]] = field(default_factory=list)
    _dispatcher: Dispatcher = field(init=False)

    def __post_init__(self) -> None:
        self._dispatcher = Dispatcher(self._methods(), self.hub.settings.max_batch)

    def receive(self, message: bytes | str) -> None:
        """Answers one message. What a new subscription has to say at once comes after its reply."""
        reply = self._dispatcher.handle(message)
        if reply is not None:
            self.push(reply)
        pending, self._after_reply = self._after_reply, []
        for action in pending:
            action()

    def close(self) -> None:
        for subscription in list(self._subscriptions.values()):
            self.end(subscription)

    def notify(self, subscription: Subscription, result: Any) -> None:
        params = {"result": result, "subscription": subscription.identifier}
        message = {"jsonrpc": "2.0", "method": f"{subscription.kind}Notification", "params": params}
        self.push(msgspec.json.encode(message))

    def end(self, subscription: Subscription) -> None:
        if self._subscriptions.pop(subscription.identifier, None) is not None:
            self.hub.remove(subscription)

    def _methods(self) -> Mapping[str, Call]:
        subscribe: dict[str, Call] = {
            "accountSubscribe": self._account,
            "logsSubscribe": self._logs,
            "programSubscribe": self._program,
            "rootSubscribe": partial(self._without_parameters, Kind.ROOT),
            "signatureSubscribe": self._signature,
            "slotSubscribe": partial(self._without_parameters, Kind.SLOT),
        }
        unsubscribe: dict[str, Call] = {f"{kind}Unsubscribe": self._unsubscribe for kind in Kind}
        return subscribe | unsubscribe | {"getVersion": partial(get_version, self.hub.ledger)}

    def _add(self, kind: Kind, **details: Any) -> Subscription:
        if len(self._subscriptions) >= self.hub.settings.max_subscriptions_per_socket:
            raise internal_error("Internal Error: Subscription refused. Node subscription limit reached")
        subscription = Subscription(self.hub.new_identifier(), self, kind, **details)
        self._subscriptions[subscription.identifier] = subscription
        self.hub.add(subscription)
        return subscription

    def _unsubscribe(self, params: Any) -> bool:
        (identifier,) = p.read(params, p.U64, required=1)
        subscription = self._subscriptions.get(identifier)
        if subscription is None:
            raise invalid_params("Invalid subscription id.")
        self.end(subscription)
        return True

    def _without_parameters(self, kind: Kind, params: Any) -> int:
        p.read(params, required=0)
        return self._add(kind).identifier

    def _account(self, params: Any) -> int:
        address, config = p.read(params, str, p.AccountConfig, required=1)
        return self._add(Kind.ACCOUNT, key=_address(address, "pubkey"), **_account_options(config)).identifier

    def _program(self, params: Any) -> int:
        program, config = p.read(params, str, p.ProgramAccountsConfig, required=1)
        filters = tuple(p.compile_filters(config.filters if config else None))
        options = _account_options(config)
        return self._add(Kind.PROGRAM, key=_address(program, "pubkey"), filters=filters, **options).identifier

    def _logs(self, params: Any) -> int:
        wanted, config = p.read(params, Literal["all", "allWithVotes"] | p.Mentions, p.CommitmentConfig, required=1)
        key: Hashable = wanted
        if isinstance(wanted, p.Mentions):
            if len(wanted.mentions) != 1:
                raise invalid_params("Invalid Request: Only 1 address supported")
            key = _address(wanted.mentions[0], "mentions")
        return self._add(Kind.LOGS, key=key, commitment=_commitment(config)).identifier

    def _signature(self, params: Any) -> int:
        text, config = p.read(params, str, p.SignatureSubscribeConfig, required=1)
        try:
            signature = Signature.from_string(text)
        except ValueError as error:
            raise invalid_params("Invalid Request: Invalid signature provided") from error
        wants_received = bool(config and config.enable_received_notification)
        subscription = self._add(
            Kind.SIGNATURE, key=signature, commitment=_commitment(config), wants_received=wants_received
        )
        self._after_reply.append(partial(self._tell_if_known, subscription, signature))
        return subscription.identifier

    def _tell_if_known(self, subscription: Subscription, signature: Signature) -> None:
        """A transaction that got as far as asked before the subscription came is reported at once."""
        record = self.hub.ledger.store.transaction(signature)
        if record is None:
            return
        reached = self.hub.ledger.commitment_of(record.slot)
        if _ORDER.index(reached) >= _ORDER.index(subscription.commitment):
            self.hub.tell_signature(subscription, record)


def _address(text: str, thing: str) -> Pubkey:
    try:
        return p.pubkey(text)
    except RpcError as error:
        raise invalid_params(f"Invalid Request: Invalid {thing} provided") from error


def _commitment(config: p.CommitmentConfig | None) -> Commitment:
    return (config.commitment if config else None) or Commitment.FINALIZED


def _account_options(config: p.AccountConfig | None) -> dict[str, Any]:
    return {
        "commitment": _commitment(config),
        "encoding": (config.encoding if config else None) or AccountEncoding.BINARY,
        "data_slice": config.data_slice if config else None,
    }
