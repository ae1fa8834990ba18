"""Receipts as they are hashed into a block, from the JSON that nodes give, and the root over all of a block.

Used to prove logs and receipts. Types 0 to 4 (EIP-2718, 2930, 1559, 4844, 7702) have one form. Deposits of the OP stack
(0x7e) have two further fields since its Canyon upgrade; on other chains that type has the common form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capstan.chain.proofs import rlp
from capstan.chain.proofs.trie import list_root
from capstan.core.hexes import parse_address, parse_data, parse_quantity

_OP_DEPOSIT = 0x7E
_KNOWN_TYPES = frozenset({0, 1, 2, 3, 4, _OP_DEPOSIT})


class Unprovable(ValueError):
    """A receipt of a kind whose encoding is not known here, or that lacks a field."""


def receipts_root(receipts: Sequence[Mapping[str, Any]]) -> bytes:
    """The root over the receipts of one block, in order. Raises `Unprovable`."""
    return list_root([encode_receipt(receipt) for receipt in receipts])


def encode_receipt(receipt: Mapping[str, Any]) -> bytes:
    """One receipt as it is hashed. Raises `Unprovable`."""
    try:
        kind = parse_quantity(receipt.get("type") or "0x0", lenient=True)
        if kind not in _KNOWN_TYPES:
            raise Unprovable(f"receipts of type {kind:#x} are not known here")
        fields: list[rlp.Item] = [
            _outcome(receipt),
            rlp.number(parse_quantity(receipt["cumulativeGasUsed"], lenient=True)),
            parse_data(receipt["logsBloom"]),
            [_log(log) for log in receipt["logs"]],
        ]
        if kind == _OP_DEPOSIT and receipt.get("depositReceiptVersion") is not None:
            fields.append(rlp.number(parse_quantity(receipt["depositNonce"], lenient=True)))
            fields.append(rlp.number(parse_quantity(receipt["depositReceiptVersion"], lenient=True)))
    except Unprovable:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise Unprovable(f"a receipt cannot be read: {error}") from None
    encoded = rlp.encode(fields)
    return encoded if kind == 0 else bytes((kind,)) + encoded


def _outcome(receipt: Mapping[str, Any]) -> bytes:
    """Whether it succeeded; before Byzantium, the state after it (EIP-658)."""
    if receipt.get("status") is not None:
        return rlp.number(parse_quantity(receipt["status"], lenient=True))
    return parse_data(receipt["root"])


def _log(log: Mapping[str, Any]) -> rlp.Item:
    return [parse_address(log["address"]), [parse_data(topic) for topic in log["topics"]], parse_data(log["data"])]
