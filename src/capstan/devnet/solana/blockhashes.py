"""The recent blockhashes, and which signatures were processed while they last. The ledger asks this whether a
transaction is too old or a repeat; LiteSVM's own checks know only one blockhash and are switched off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from solders.hash import Hash
from solders.signature import Signature

from capstan.devnet.solana.settings import MAX_PROCESSING_AGE, MAX_RECENT_BLOCKHASHES


class BlockhashQueue:
    """Hashes of the newest complete blocks. Bounded to `MAX_RECENT_BLOCKHASHES`."""

    def __init__(self) -> None:
        self._order: deque[tuple[int, Hash]] = deque()
        self._slots: dict[Hash, int] = {}

    def register(self, slot: int, blockhash: Hash) -> None:
        self._order.appendleft((slot, blockhash))
        self._slots[blockhash] = slot
        while len(self._order) > MAX_RECENT_BLOCKHASHES + 1:
            _, oldest = self._order.pop()
            del self._slots[oldest]

    def age(self, blockhash: Hash, newest_hash_slot: int) -> int | None:
        """How many newer hashes that view knows; None when the hash is unknown to it or too old to be accepted."""
        slot = self._slots.get(blockhash)
        if slot is None or not 0 <= newest_hash_slot - slot <= MAX_PROCESSING_AGE:
            return None
        return newest_hash_slot - slot

    def newest_first(self, limit: int) -> Iterator[tuple[int, Hash]]:
        for index, entry in enumerate(self._order):
            if index >= limit:
                return
            yield entry


class ProcessedSignatures:
    """Signatures that must not run again while their blockhash is still accepted. Bounded in slots, and by the
    ledger's bound on transactions per slot.
    """

    def __init__(self) -> None:
        self._slots: deque[tuple[int, list[Signature]]] = deque()
        self._signatures: set[Signature] = set()

    def __contains__(self, signature: Signature) -> bool:
        return signature in self._signatures

    def add(self, signature: Signature, slot: int) -> None:
        if not self._slots or self._slots[-1][0] != slot:
            self._slots.append((slot, []))
        self._slots[-1][1].append(signature)
        self._signatures.add(signature)

    def forget_before(self, slot: int) -> None:
        while self._slots and self._slots[0][0] < slot:
            _, signatures = self._slots.popleft()
            self._signatures.difference_update(signatures)
