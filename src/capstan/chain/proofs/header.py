"""The hash of a block from the fields of its header, as a node gives them in JSON.

Used to tie what a header says (bloom, roots, gas, time) to the block's hash. The fields are those of Ethereum in the
order in which the forks have added them; a later one is there only if all before it are. Chains with other headers have
other hashes; `header_hash` cannot tell that from a header that was altered, so the caller must know which chain it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capstan.chain.proofs import rlp
from capstan.core.hexes import keccak256, parse_data, parse_quantity

_DATA, _NUMBER = "data", "number"

# Every header has these (Yellow Paper, section 4.3).
_REQUIRED: tuple[tuple[str, str], ...] = (
    ("parentHash", _DATA),
    ("sha3Uncles", _DATA),
    ("miner", _DATA),
    ("stateRoot", _DATA),
    ("transactionsRoot", _DATA),
    ("receiptsRoot", _DATA),
    ("logsBloom", _DATA),
    ("difficulty", _NUMBER),
    ("number", _NUMBER),
    ("gasLimit", _NUMBER),
    ("gasUsed", _NUMBER),
    ("timestamp", _NUMBER),
    ("extraData", _DATA),
    ("mixHash", _DATA),
    ("nonce", _DATA),
)
_ADDED: tuple[tuple[str, str], ...] = (
    ("baseFeePerGas", _NUMBER),  # EIP-1559
    ("withdrawalsRoot", _DATA),  # EIP-4895
    ("blobGasUsed", _NUMBER),  # EIP-4844
    ("excessBlobGas", _NUMBER),
    ("parentBeaconBlockRoot", _DATA),  # EIP-4788
    ("requestsHash", _DATA),  # EIP-7685
    ("blockAccessListHash", _DATA),  # EIP-7928
    ("slotNumber", _NUMBER),  # EIP-7843
)


class Incomplete(ValueError):
    """The header lacks fields, or has one in a form that cannot be read: nothing can be said about its hash."""


def header_hash(block: Mapping[str, Any]) -> bytes:
    """The hash that a block with these fields has. Raises `Incomplete`."""
    fields = [_field(block, name, kind) for name, kind in _REQUIRED]
    missing = ""
    for name, kind in _ADDED:
        if block.get(name) is None:
            missing = missing or name
        elif missing:
            raise Incomplete(f"it has {name} but not {missing}")
        else:
            fields.append(_field(block, name, kind))
    return keccak256(rlp.encode(fields))


def _field(block: Mapping[str, Any], name: str, kind: str) -> bytes:
    try:
        value = block[name]
        return parse_data(value) if kind is _DATA else rlp.number(parse_quantity(value, lenient=True))
    except KeyError:
        raise Incomplete(f"it has no {name}") from None
    except ValueError as error:
        raise Incomplete(f"{name}: {error}") from None
