"""The hash of a signed transaction, from the bytes that are sent.

Called by the pool when a node's answer to a submission was lost, to find out whether the transaction arrived. It reads
only as much of the encoding as the hash needs and does not check signatures.
"""

from capstan.core.hexes import keccak256

# EIP-4844: a blob transaction travels as 0x03 ‖ rlp([transaction, blobs, commitments, proofs]) but is hashed without
# the blobs, as 0x03 ‖ rlp(transaction). EIP-7594 puts a version number behind the transaction; the rule is the same.
_BLOB_TYPE = 0x03


def transaction_hash(raw: bytes) -> bytes:
    """The hash of a raw transaction as given to eth_sendRawTransaction. Raises `ValueError` when it cannot be one."""
    if not raw:
        raise ValueError("the transaction is empty")
    if raw[0] != _BLOB_TYPE:
        return keccak256(raw)
    start, _ = _list_bounds(raw, 1)
    if start >= len(raw) or raw[start] < 0xC0:
        # The first item is the chain id, not a list: the bare transaction, without blobs.
        return keccak256(raw)
    _, end = _list_bounds(raw, start)
    return keccak256(raw[:1] + raw[start:end])


def _list_bounds(data: bytes, position: int) -> tuple[int, int]:
    """Where the content of the RLP list at `position` starts and ends."""
    if position >= len(data) or data[position] < 0xC0:
        raise ValueError("an RLP list was expected")
    prefix = data[position]
    if prefix <= 0xF7:
        start, length = position + 1, prefix - 0xC0
    else:
        start = position + 1 + (prefix - 0xF7)
        length = int.from_bytes(data[position + 1 : start])
    if start + length > len(data):
        raise ValueError("the transaction is cut short")
    return start, start + length
