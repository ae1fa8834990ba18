"""The recent blocks of one network as far as fees go: what their headers say, and what was paid in them.

Kept by the market of the network, which tells it of every block of the stream and of what nodes answer. It does no
input or output. Answers of a node on another branch are refused, so that all blocks are of one chain.
"""

import msgspec

from capstan.gas.estimates import FULL_PERCENT, HISTORY_BLOCKS, ROOMY_PERCENT, Row, next_base_fee


class OtherBranch(Exception):
    """A node has another block of this number than the stream."""


class Head(msgspec.Struct, frozen=True):
    """What the header of a block says about fees. The base fee is 0 where blocks have none."""

    number: int
    base_fee: int
    gas_used: int
    gas_limit: int

    @property
    def next_base_fee(self) -> int:
        """The base fee of its child by EIP-1559."""
        return next_base_fee(self.base_fee, self.gas_used, self.gas_limit) if self.base_fee else 0

    @property
    def full(self) -> bool:
        """Whether it may have left somebody out."""
        return self.gas_used * 100 >= self.gas_limit * FULL_PERCENT

    @property
    def roomy(self) -> bool:
        """Whether it had room for everybody."""
        return self.gas_used * 100 <= self.gas_limit * ROOMY_PERCENT

    def complete(self, row: Row) -> Row:
        """What a node tells of this block, with what its header says."""
        return msgspec.structs.replace(row, full=self.full, roomy=self.roomy)


class History(msgspec.Struct, frozen=True):
    """What a node tells of consecutive blocks, and of the base fee of the one after them."""

    oldest: int
    rows: tuple[Row, ...]
    next_base_fee: int

    def base_fee_of(self, number: int) -> int | None:
        """The base fee of a block it tells of, or of the next one."""
        place = number - self.oldest
        if place == len(self.rows):
            return self.next_base_fee
        return self.rows[place].base_fee if 0 <= place < len(self.rows) else None


class FeeWindow:
    """The last blocks of a chain. Numbers are consecutive or missing, never twice."""

    def __init__(self) -> None:
        self._heads: dict[int, Head] = {}
        self._rows: dict[int, Row] = {}
        # The block that the nodes would make next, as one of them sees it.
        self._pending: Row | None = None
        self._told_next: int | None = None
        # Whether the rule of EIP-1559 gave the base fee of the last block; None: not known yet.
        self._follows_rule: bool | None = None
        # Older blocks cannot be had.
        self._floor = 0
        self.number: int | None = None
        self.base_fee = 0

    def apply(self, head: Head) -> None:
        """This block is the last one now."""
        known = self._rows.get(head.number)
        self.revert(head.number)
        parent = self._heads.get(head.number - 1)
        if parent is not None:
            self._follows_rule = parent.next_base_fee == head.base_fee
        self._heads[head.number] = head
        if known is not None and known.base_fee == head.base_fee:
            self._rows[head.number] = known
        self._stand_at(head.number, head.base_fee)

    def revert(self, number: int) -> None:
        """The block of this number, and all after it, are not on the chain any more."""
        for kept in (self._heads, self._rows):
            for each in [each for each in kept if each >= number]:
                del kept[each]
        if self.number is None or self.number < number:
            return
        below = self._heads.get(number - 1)
        row = self._rows.get(number - 1)
        if below is None and row is None:
            self.number = None
            return
        self._stand_at(number - 1, below.base_fee if below is not None else row.base_fee if row is not None else 0)

    def learn(self, history: History) -> None:
        """Take over what a node tells. Raises `OtherBranch`, and changes nothing then."""
        if self.number is None:
            last = history.oldest + len(history.rows) - 1
            self._stand_at(last, history.rows[-1].base_fee)
        assert self.number is not None
        for place, row in enumerate(history.rows):
            head = self._heads.get(history.oldest + place)
            if head is not None and head.base_fee != row.base_fee:
                raise OtherBranch(f"block {head.number} has another base fee there")
        if history.base_fee_of(self.number) not in (None, self.base_fee):
            raise OtherBranch(f"block {self.number} has another base fee there")
        for place, row in enumerate(history.rows):
            number = history.oldest + place
            if number <= self.number:
                head = self._heads.get(number)
                self._rows[number] = row if head is None else head.complete(row)
            elif number == self.number + 1:
                self._pending = row
        self._told_next = history.base_fee_of(self.number + 1)
        self._floor = max(self._floor, history.oldest)
        self._trim()

    @property
    def missing(self) -> int:
        """How many blocks must be asked for, counted from the last one down, so that all are known."""
        if self.number is None:
            return HISTORY_BLOCKS
        lowest = max(self._floor, self.number - HISTORY_BLOCKS + 1, 0)
        absent = [number for number in range(lowest, self.number + 1) if number not in self._rows]
        return self.number - absent[0] + 1 if absent else 0

    @property
    def next_base_fee(self) -> int | None:
        """The base fee of the next block: as a node tells, or by the rule where the chain follows it; else None."""
        if self._told_next is not None:
            return self._told_next
        head = None if self.number is None else self._heads.get(self.number)
        return head.next_base_fee if head is not None and (self._follows_rule or not head.base_fee) else None

    @property
    def rows(self) -> list[Row]:
        """What is known of the blocks, oldest first; the one to come is the last, where nodes offer it."""
        known = [self._rows[number] for number in sorted(self._rows)]
        return known if self._pending is None or not any(self._pending.tips) else [*known, self._pending]

    def _stand_at(self, number: int, base_fee: int) -> None:
        self.number, self.base_fee = number, base_fee
        self._pending = self._told_next = None
        self._trim()

    def _trim(self) -> None:
        assert self.number is not None
        lowest = self.number - HISTORY_BLOCKS + 1
        for kept in (self._heads, self._rows):
            for each in [each for each in kept if each < lowest]:
                del kept[each]
