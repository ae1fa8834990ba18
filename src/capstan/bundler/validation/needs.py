"""Which state a validation needs, and what earlier validations teach about it.

The local backend asks for everything in one round trip if it can foresee it. What one operation touched, the next one
of the same factory and paymaster touches too, but for the slots that are computed from its sender: those are kept as
recipes and computed anew. A wrong guess costs a question, never a wrong verdict. No I/O.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from capstan.core.hexes import keccak256

# How far behind a hash the members of a struct are looked for, and how deep mappings of mappings may be.
_STRUCT_WORDS = 8
_DEEPEST = 4
_MOST_KINDS = 2048
_MOST_SLOTS = 512

# How a slot follows from the sender: None is the sender itself, bytes are as they are, a tuple is hashed.
Part: TypeAlias = "bytes | tuple[Part, ...] | None"


class Recipe(msgspec.Struct, frozen=True):
    """A slot that is computed from the sender: what is hashed, and how far behind the hash it is."""

    part: Part
    offset: int = 0


class Needs:
    """Accounts and slots."""

    def __init__(self) -> None:
        self.accounts: set[bytes] = set()
        self.slots: dict[bytes, set[bytes]] = {}

    def add(self, accounts: Iterable[bytes], slots: Mapping[bytes, Iterable[bytes]]) -> None:
        """These as well. Whoever has slots is an account."""
        self.accounts.update(accounts)
        for address, keys in slots.items():
            self.accounts.add(address)
            self.slots.setdefault(address, set()).update(keys)


class Lessons:
    """What was needed before, by kind of operation. Bounded: the kind not seen for longest is forgotten."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[bytes, ...], tuple[frozenset[bytes], dict[bytes, tuple[Recipe | bytes, ...]]]]
        self._kinds = OrderedDict()

    def recall(self, kind: tuple[bytes, ...], sender: bytes, needs: Needs) -> bool:
        """Add what operations of this kind needed; False when there was none yet."""
        found = self._kinds.get(kind)
        if found is None:
            return False
        self._kinds.move_to_end(kind)
        accounts, slots = found
        needs.add(accounts, {address: (_slot(each, sender) for each in each_of) for address, each_of in slots.items()})
        return True

    def learn(self, kind: tuple[bytes, ...], sender: bytes, needs: Needs, hashed: Iterable[bytes]) -> None:
        """An operation of this kind needed this. Slots of the sender itself are left out: they are its own affair."""
        inputs = {keccak256(each): each for each in hashed}
        slots = {
            address: tuple(_recipe(key, inputs, sender) for key in sorted(keys)[:_MOST_SLOTS])
            for address, keys in needs.slots.items()
            if address != sender
        }
        self._kinds[kind] = frozenset(needs.accounts - {sender}), slots
        self._kinds.move_to_end(kind)
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)


def _recipe(slot: bytes, inputs: Mapping[bytes, bytes], sender: bytes) -> Recipe | bytes:
    """How the slot follows from the sender, or the slot itself when it does not."""
    own = sender.rjust(32, b"\0")
    if slot == own:
        return Recipe(None)
    number = int.from_bytes(slot, "big")
    for offset in range(min(_STRUCT_WORDS, number + 1)):
        digest = (number - offset).to_bytes(32, "big")
        if digest in inputs:
            part = _part(digest, inputs, own, _DEEPEST)
            return slot if isinstance(part, bytes) else Recipe(part, offset)
    return slot


def _part(word: bytes, inputs: Mapping[bytes, bytes], own: bytes, depth: int) -> Part:
    if word == own:
        return None
    source = inputs.get(word)
    if source is None or depth == 0:
        return word
    parts = tuple(_part(source[place : place + 32], inputs, own, depth - 1) for place in range(0, len(source), 32))
    return word if all(isinstance(part, bytes) for part in parts) else parts


def _slot(recipe: Recipe | bytes, sender: bytes) -> bytes:
    if isinstance(recipe, bytes):
        return recipe
    number = int.from_bytes(_value(recipe.part, sender.rjust(32, b"\0")), "big") + recipe.offset
    return (number % 2**256).to_bytes(32, "big")


def _value(part: Part, own: bytes) -> bytes:
    if part is None:
        return own
    return part if isinstance(part, bytes) else keccak256(b"".join(_value(each, own) for each in part))
