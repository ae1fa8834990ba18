"""The bodies of events, field by field as documented, and what is filled in later.

Called by matching with what happened, and by delivery when the symbol of a token or the metadata of an NFT had to be
looked up. Addresses are EIP-55 text, amounts exact decimal text. Pure.
"""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from capstan.core.decimals import format_units
from capstan.core.hexes import to_checksum_address
from capstan.index.models import ZERO_ADDRESS, Standard, Transfer
from capstan.webhooks.kinds import EventType


class Place(msgspec.Struct, frozen=True):
    """The network of an event, as bodies name it."""

    network: str
    chain: str
    chain_id: int
    symbol: str
    decimals: int


class TokenFacts(msgspec.Struct, frozen=True):
    """What a token says of itself."""

    symbol: str | None
    decimals: int | None


@lru_cache(maxsize=65_536)
def address_text(address: bytes) -> str:
    """An address as bodies show it. The same ones come again and again."""
    return to_checksum_address(address)


def milliseconds(seconds: float) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def whole_seconds(seconds: float) -> str:
    """ISO 8601 in UTC with whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def body_of(
    kind: EventType, webhook_id: str, event_id: str, place: Place, data: dict[str, Any], now: float
) -> dict[str, Any]:
    """The whole body of an event in the format of its type."""
    if kind.format == "A":
        return {
            "id": event_id,
            "event_type": kind.name,
            "webhook_id": webhook_id,
            "created_at": whole_seconds(now),
            "data": {"chain": place.chain, **data},
        }
    return {
        "id": event_id,
        "type": kind.name,
        "createdAt": milliseconds(now),
        "chain": place.chain,
        "chainId": place.chain_id,
        "data": data,
    }


def retraction_of(kind: EventType, body: bytes, event_id: str, now: float) -> bytes:
    """The body that takes an event back: the same again, marked, with an id of its own and the id it reverts."""
    whole: dict[str, Any] = msgspec.json.decode(body)
    reverted = whole["id"]
    whole["id"] = event_id
    if kind.format == "A":
        whole["created_at"] = whole_seconds(now)
    else:
        whole["createdAt"] = milliseconds(now)
    whole["data"] |= {"removed": True, "reverts": reverted}
    whole["reverts"] = reverted
    return msgspec.json.encode(whole)


def activity(
    kind: EventType,
    place: Place,
    block: int,
    transaction: str,
    parties: tuple[str, str | None],
    value: int,
    contract: bytes | None,
    direction: str,
) -> dict[str, Any]:
    """`address_activity` and `ADDRESS_ACTIVITY`. The symbol of a token is filled in by `fill_token`."""
    sender, receiver = parties
    if kind.format == "A":
        return {
            "block_number": block,
            "tx_hash": transaction,
            "from": sender,
            "to": receiver,
            "value": str(value),
            "asset": place.symbol if contract is None else None,
            "contract": None if contract is None else address_text(contract),
            "direction": direction,
        }
    token = None if contract is None else {"address": address_text(contract), "symbol": None, "decimals": None}
    return {
        "blockNumber": block,
        "transactionHash": transaction,
        "from": sender,
        "to": receiver,
        "value": str(value),
        "valueFormatted": format_units(value, place.decimals) if contract is None else None,
        "asset": place.symbol if contract is None else None,
        "token": token,
        "direction": direction,
    }


def token_transfer(kind: EventType, transfer: Transfer) -> dict[str, Any]:
    """`token_transfer` and `TOKEN_TRANSFER`, without what `fill_token` fills in."""
    contract, transaction = address_text(transfer.contract), "0x" + transfer.transaction_hash.hex()
    sender, receiver = address_text(transfer.sender), address_text(transfer.receiver)
    if kind.format == "A":
        return {
            "block_number": transfer.block_number,
            "tx_hash": transaction,
            "contract": contract,
            "from": sender,
            "to": receiver,
            "value": str(transfer.amount),
            "symbol": None,
            "decimals": None,
        }
    return {
        "blockNumber": transfer.block_number,
        "transactionHash": transaction,
        "logIndex": transfer.log_index,
        "from": sender,
        "to": receiver,
        "token": {"address": contract, "symbol": None, "decimals": None},
        "value": str(transfer.amount),
        "valueFormatted": None,
    }


def nft_transfer(kind: EventType, transfer: Transfer, token_id: int, quantity: int) -> dict[str, Any]:
    """`nft_transfer` and `NFT_ACTIVITY`, the latter without its metadata."""
    contract, transaction = address_text(transfer.contract), "0x" + transfer.transaction_hash.hex()
    sender, receiver = address_text(transfer.sender), address_text(transfer.receiver)
    standard = "ERC721" if transfer.standard is Standard.ERC721 else "ERC1155"
    if kind.format == "A":
        return {
            "block_number": transfer.block_number,
            "tx_hash": transaction,
            "contract": contract,
            "from": sender,
            "to": receiver,
            "token_id": str(token_id),
            "standard": standard,
            "quantity": quantity,
        }
    made, gone = transfer.sender == ZERO_ADDRESS, transfer.receiver == ZERO_ADDRESS
    return {
        "blockNumber": transfer.block_number,
        "transactionHash": transaction,
        "logIndex": transfer.log_index,
        "contract": contract,
        "from": sender,
        "to": receiver,
        "tokenId": str(token_id),
        "quantity": quantity,
        "standard": standard,
        "activity": "mint" if made else "burn" if gone else "transfer",
        "metadata": None,
    }


def fill_token(kind: EventType, data: dict[str, Any], facts: TokenFacts) -> None:
    """Put what a token says of itself where the type has it. What it does not say stays null."""
    if "asset" in data:
        data["asset"] = facts.symbol
    if kind.format == "A":
        if "symbol" in data:
            data |= {"symbol": facts.symbol, "decimals": facts.decimals}
        return
    data["token"] |= {"symbol": facts.symbol, "decimals": facts.decimals}
    if facts.decimals is not None:
        data["valueFormatted"] = format_units(int(data["value"]), facts.decimals)
