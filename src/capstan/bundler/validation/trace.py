"""What a run of an operation's validation leaves behind, whoever ran it: the tree of calls and what each one did.

Made by the backends (`local`, `native`), read by `phases` and the rules. A call is recorded as the tracer of ERC-7562
does it: only what some rule asks about. Plain values.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

CallKind: TypeAlias = Literal["CALL", "CALLCODE", "DELEGATECALL", "STATICCALL", "CREATE", "CREATE2", "SELFDESTRUCT"]
# How deep calls may nest in a validation. The EVM allows 1024, which no honest account comes near; a trace is a tree,
# and whoever reads it goes down with it.
DEEPEST_CALL = 256
# Down to which depth the gas is told: the factory is called by the entry point's helper.
GAS_DEPTH = 2
CREATIONS: frozenset[str] = frozenset({"CREATE", "CREATE2"})


class TooDeep(Exception):
    """The calls nest deeper than `DEEPEST_CALL`."""


class TooSlow(Exception):
    """The run cannot end in the time it has."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One call or creation, and those it made."""

    kind: CallKind
    # The contract that made the call: the address under which it ran, also within a delegatecall.
    caller: bytes
    # The address under which this one runs: its storage, its balance. Empty for a creation that failed at once.
    context: bytes
    # Where the code comes from. The same as `context` unless it was called with DELEGATECALL or CALLCODE.
    code: bytes
    # What was sent along, in wei, without leading zeros: empty for nothing. Bytes, as it may have more than 64 bits.
    value: bytes = b""
    # The beginning of the calldata: enough for a selector and its first argument. Of the calls that the entry point
    # itself makes, all of it.
    input: bytes = b""
    # What it returned or reverted with. Only of the calls that the entry point itself makes.
    output: bytes = b""
    # The gas that it used. Only of the calls that the entry point makes, itself or through its helper for factories.
    gas_used: int = 0
    failed: bool = False
    out_of_gas: bool = False
    # It ended at an opcode that the chain does not have, or at the one that is invalid by definition (OP-013).
    invalid_opcode: bool = False
    # Opcodes it used, of those that a rule names. GAS is here only when no call follows at once (OP-012).
    opcodes: frozenset[int] = frozenset()
    reads: frozenset[bytes] = frozenset()
    writes: frozenset[bytes] = frozenset()
    transient_reads: frozenset[bytes] = frozenset()
    transient_writes: frozenset[bytes] = frozenset()
    # Addresses it looked at with EXTCODE*, but for EXTCODESIZE before ISZERO (OP-051).
    looked_at: frozenset[bytes] = frozenset()
    # The size of the code at each address that it called or looked at, when it first did, and the opcode.
    sizes: Mapping[bytes, tuple[int, int]] = {}
    calls: tuple["Frame", ...] = ()

    def walk(self) -> Iterator["Frame"]:
        """This call and all below it, in order."""
        yield self
        for each in self.calls:
            yield from each.walk()


def visited(root: Frame) -> set[bytes]:
    """The addresses that a run of the entry point ran or looked at.

    What the entry point itself looked at is left out, as it goes on to do so after the validation.
    """
    found = {root.context}
    for call in root.calls:
        for frame in call.walk():
            found.update((frame.context, frame.code, *frame.sizes))
    return found - {b""}


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `handleOps` with one operation, at least up to the end of its validation."""

    # The call of the entry point.
    root: Frame
    # What was hashed: slots of mappings are such hashes.
    hashed: frozenset[bytes] = frozenset()
    # The code hash of every address that was run or looked at, at the block and before the run.
    code_hashes: Mapping[bytes, bytes] = {}
    # Of those, the accounts that delegate to a contract (EIP-7702), whose code is the mark of it.
    delegated: frozenset[bytes] = frozenset()
