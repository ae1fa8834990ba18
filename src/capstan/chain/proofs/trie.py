"""The root hash of a Merkle-Patricia trie (Yellow Paper, appendix D) over the elements of a list.

Used for the receipts, the transactions and the withdrawals of a block, whose tries have the position of an element as
the key. Only the root is computed: the trie is not kept, and nothing can be looked up in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from capstan.chain.proofs import rlp
from capstan.core.hexes import keccak256

# The root of a trie without elements.
EMPTY_ROOT = keccak256(rlp.encode(b""))

_NIBBLES = 16
_HASHED_FROM = 32

# A path in half bytes, and the value at its end.
_Entry = tuple[bytes, bytes]


def list_root(values: Sequence[bytes]) -> bytes:
    """The root over the values at the positions 0, 1, 2, …"""
    return root({rlp.encode(rlp.number(position)): value for position, value in enumerate(values)})


def root(values: Mapping[bytes, bytes]) -> bytes:
    """The root over these keys and values. No value may be empty: in such a trie that means absent."""
    if not values:
        return EMPTY_ROOT
    entries = sorted((_half_bytes(key), value) for key, value in values.items())
    return keccak256(_node(entries, 0))


def _half_bytes(key: bytes) -> bytes:
    return bytes(half for byte in key for half in (byte >> 4, byte & 15))


def _node(entries: list[_Entry], depth: int) -> bytes:
    """The encoding of the node over these sorted entries, which have the first `depth` half bytes in common."""
    first, last = entries[0][0], entries[-1][0]
    if len(entries) == 1:
        return rlp.wrap([rlp.encode(_compact(first[depth:], leaf=True)), rlp.encode(entries[0][1])])
    shared = depth
    # The entries are sorted, so what the first and the last have in common, all have.
    while shared < len(first) and shared < len(last) and first[shared] == last[shared]:
        shared += 1
    if shared > depth:
        return rlp.wrap([rlp.encode(_compact(first[depth:shared], leaf=False)), _reference(entries, shared)])
    return _branch(entries, depth)


def _branch(entries: list[_Entry], depth: int) -> bytes:
    value = b""
    groups: dict[int, list[_Entry]] = {}
    for entry in entries:
        if len(entry[0]) == depth:
            value = entry[1]
        else:
            groups.setdefault(entry[0][depth], []).append(entry)
    children = [_reference(groups[half], depth + 1) if half in groups else rlp.encode(b"") for half in range(_NIBBLES)]
    return rlp.wrap([*children, rlp.encode(value)])


def _reference(entries: list[_Entry], depth: int) -> bytes:
    """A node inside its parent: itself when it is short, else its hash."""
    node = _node(entries, depth)
    return node if len(node) < _HASHED_FROM else rlp.encode(keccak256(node))


def _compact(path: bytes, *, leaf: bool) -> bytes:
    """Hex-prefix encoding of half bytes (Yellow Paper, appendix C)."""
    flag = 2 if leaf else 0
    path = bytes((flag + 1, *path)) if len(path) % 2 else bytes((flag, 0, *path))
    return bytes(path[place] << 4 | path[place + 1] for place in range(0, len(path), 2))
