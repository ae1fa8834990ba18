"""Transactions as they are hashed into a block, from the JSON that nodes give, and the root over all of a block.

Used to prove the transactions of a block that was asked for with all of them. Types 0 to 4 (EIP-2718, 2930, 1559, 4844,
7702) are known; a block with any other type, as rollups have, cannot be proved here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan.chain.proofs import rlp
from capstan.chain.proofs.receipts import Unprovable
from capstan.chain.proofs.trie import list_root
from capstan.core.hexes import parse_address, parse_data, parse_quantity

_ACCESS_LIST, _DYNAMIC_FEE, _BLOB, _SET_CODE = 1, 2, 3, 4


def transactions_root(transactions: Sequence[Mapping[str, Any]]) -> bytes:
    """The root over the transactions of one block, in order. Raises `Unprovable`."""
    return list_root([encode_transaction(transaction) for transaction in transactions])


def withdrawals_root(withdrawals: Sequence[Mapping[str, Any]]) -> bytes:
    """The root over the withdrawals of one block (EIP-4895). Raises `Unprovable`."""
    try:
        return list_root(
            [
                rlp.encode(
                    [
                        _number(withdrawal, "index"),
                        _number(withdrawal, "validatorIndex"),
                        parse_address(withdrawal["address"]),
                        _number(withdrawal, "amount"),
                    ]
                )
                for withdrawal in withdrawals
            ]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Unprovable(f"a withdrawal cannot be read: {error}") from None


def encode_transaction(transaction: Mapping[str, Any]) -> bytes:
    """One signed transaction as it is hashed. Raises `Unprovable`."""
    try:
        kind = parse_quantity(transaction.get("type") or "0x0", lenient=True)
        if kind == 0:
            return rlp.encode([*_common(transaction, "gasPrice"), *_signature(transaction, "v")])
        if not _ACCESS_LIST <= kind <= _SET_CODE:
            raise Unprovable(f"transactions of type {kind:#x} are not known here")
        return bytes((kind,)) + rlp.encode(_typed(transaction, kind))
    except Unprovable:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise Unprovable(f"a transaction cannot be read: {error}") from None


def _typed(transaction: Mapping[str, Any], kind: int) -> list[rlp.Item]:
    price = ("gasPrice",) if kind == _ACCESS_LIST else ("maxPriorityFeePerGas", "maxFeePerGas")
    fields: list[rlp.Item] = [_number(transaction, "chainId"), *_common(transaction, *price)]
    fields.append([_access(entry) for entry in transaction["accessList"]])
    if kind == _BLOB:
        fields.append(_number(transaction, "maxFeePerBlobGas"))
        fields.append([parse_data(versioned) for versioned in transaction["blobVersionedHashes"]])
    if kind == _SET_CODE:
        fields.append([_authorization(entry) for entry in transaction["authorizationList"]])
    return [*fields, *_signature(transaction, "yParity" if "yParity" in transaction else "v")]


def _common(transaction: Mapping[str, Any], *prices: str) -> list[rlp.Item]:
    """What all types have in this order, the price in the form of the type."""
    to = transaction.get("to")
    return [
        _number(transaction, "nonce"),
        *(_number(transaction, price) for price in prices),
        _number(transaction, "gas"),
        b"" if to is None else parse_address(to),
        _number(transaction, "value"),
        parse_data(transaction["input"]),
    ]


def _signature(transaction: Mapping[str, Any], parity: str) -> list[rlp.Item]:
    return [_number(transaction, parity), _number(transaction, "r"), _number(transaction, "s")]


def _access(entry: Mapping[str, Any]) -> rlp.Item:
    return [parse_address(entry["address"]), [parse_data(key) for key in entry["storageKeys"]]]


def _authorization(entry: Mapping[str, Any]) -> rlp.Item:
    parity = "yParity" if "yParity" in entry else "v"
    return [
        _number(entry, "chainId"),
        parse_address(entry["address"]),
        _number(entry, "nonce"),
        *_signature(entry, parity),
    ]


def _number(fields: Mapping[str, Any], name: str) -> bytes:
    return rlp.number(parse_quantity(fields[name], lenient=True))
