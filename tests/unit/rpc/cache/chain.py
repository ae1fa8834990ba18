"""A chain for tests of the cache: blocks that are hashes, branches that can be switched, and the changes that makes."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw


class Block(msgspec.Struct, frozen=True):
    number: int
    hash: str


class Change(msgspec.Struct, frozen=True):
    applied: tuple[Block, ...] = ()
    reverted: tuple[Block, ...] = ()
    restarted: bool = False


def digest(*parts: object) -> str:
    return "0x" + sha256(repr(parts).encode()).hexdigest()


class Chain(msgspec.Struct, frozen=True):
    """One state of a chain. A `HeadView`."""

    hashes: tuple[str, ...]
    finalized_number: int | None = None

    @property
    def latest_number(self) -> int | None:
        return len(self.hashes) - 1 if self.hashes else None

    @property
    def latest_hash(self) -> str | None:
        return self.hashes[-1] if self.hashes else None

    def hash_at(self, number: int) -> str | None:
        return self.hashes[number] if 0 <= number < len(self.hashes) else None

    def extended(self, length: int, *, drop: int = 0, seed: object = "", finalized: int | None = None) -> Chain:
        """The chain after the last `drop` blocks were replaced by `length` new ones."""
        kept = self.hashes[: len(self.hashes) - drop]
        hashes = list(kept)
        for _ in range(length):
            hashes.append(digest("block", len(hashes), hashes[-1] if hashes else "", seed))
        return Chain(tuple(hashes), self.finalized_number if finalized is None else finalized)


def change(before: Chain, after: Chain) -> Change:
    """What turns one state into the other."""
    common = 0
    for one, other in zip(before.hashes, after.hashes, strict=False):
        if one != other:
            break
        common += 1
    reverted = [Block(number, before.hashes[number]) for number in range(common, len(before.hashes))]
    applied = [Block(number, after.hashes[number]) for number in range(common, len(after.hashes))]
    return Change(tuple(applied), tuple(reversed(reverted)))


class Heads:
    """A view that moves: what the head tracker is to the cache."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    @property
    def latest_number(self) -> int | None:
        return self.chain.latest_number

    @property
    def latest_hash(self) -> str | None:
        return self.chain.latest_hash

    @property
    def finalized_number(self) -> int | None:
        return self.chain.finalized_number

    def hash_at(self, number: int) -> str | None:
        return self.chain.hash_at(number)

    def move(self, chain: Chain) -> Change:
        """Follow the chain to this state; the result goes to the cache."""
        moved = change(self.chain, chain)
        self.chain = chain
        return moved


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def params(*arguments: Any) -> bytes:
    return json.dumps(list(arguments), separators=(",", ":")).encode()
