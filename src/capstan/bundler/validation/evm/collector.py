"""Writes down what a run does, call by call, in the form of `trace`.

The machine tells it of each call that begins and ends, and of the few opcodes that some rule names. It judges nothing.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from capstan.bundler.validation import opcodes
from capstan.bundler.validation.trace import DEEPEST_CALL, GAS_DEPTH, CallKind, Frame, TooDeep

# Enough for a selector and one argument.
_INPUT_BYTES = 36
_KINDS: dict[int, CallKind] = {
    opcodes.CALL: "CALL",
    opcodes.CALLCODE: "CALLCODE",
    opcodes.DELEGATECALL: "DELEGATECALL",
    opcodes.STATICCALL: "STATICCALL",
    opcodes.CREATE: "CREATE",
    opcodes.CREATE2: "CREATE2",
}
_ADDRESS_MASK = 2**160 - 1


class Record:
    """A call that is under way."""

    __slots__ = (
        "caller",
        "calls",
        "code",
        "context",
        "depth",
        "failed",
        "gas_used",
        "input",
        "invalid_opcode",
        "kind",
        "looked_at",
        "opcodes",
        "out_of_gas",
        "output",
        "reads",
        "sizes",
        "transient_reads",
        "transient_writes",
        "value",
        "writes",
    )

    def __init__(self, kind: CallKind, depth: int, caller: bytes, context: bytes, code: bytes) -> None:
        self.kind = kind
        self.depth = depth
        self.caller = caller
        self.context = context
        self.code = code
        self.value = b""
        self.input = b""
        self.output = b""
        self.gas_used = 0
        self.failed = False
        self.out_of_gas = False
        self.invalid_opcode = False
        self.opcodes: set[int] = set()
        self.reads: set[bytes] = set()
        self.writes: set[bytes] = set()
        self.transient_reads: set[bytes] = set()
        self.transient_writes: set[bytes] = set()
        self.looked_at: set[bytes] = set()
        self.sizes: dict[bytes, tuple[int, int]] = {}
        self.calls: list[Frame] = []

    def frame(self) -> Frame:
        """The finished record."""
        return Frame(
            kind=self.kind,
            caller=self.caller,
            context=self.context,
            code=self.code,
            value=self.value,
            input=self.input,
            output=self.output,
            gas_used=self.gas_used,
            failed=self.failed,
            out_of_gas=self.out_of_gas,
            invalid_opcode=self.invalid_opcode,
            opcodes=frozenset(self.opcodes),
            reads=frozenset(self.reads),
            writes=frozenset(self.writes),
            transient_reads=frozenset(self.transient_reads),
            transient_writes=frozenset(self.transient_writes),
            looked_at=frozenset(self.looked_at),
            sizes=self.sizes,
            calls=tuple(self.calls),
        )


class Collector:
    """The records of one run."""

    def __init__(self, code_size: Callable[[Any, bytes], int]) -> None:
        self._code_size = code_size
        self._open: list[Record] = []
        # The call that the opcode under way is about to make.
        self._coming: Record | None = None
        self.hashed: set[bytes] = set()
        self.root: Frame | None = None

    def enter(self, message: Any) -> Record:
        """A call begins. For the first one there is no opcode before it."""
        depth = len(self._open)
        if depth > DEEPEST_CALL:
            raise TooDeep
        context = bytes(message.current_target)
        record = self._coming or Record("CALL", 0, bytes(message.caller), context, context)
        self._coming = None
        record.context = context
        if record.kind in ("CREATE", "CREATE2"):
            record.code = context
        record.value = b"" if record.kind == "DELEGATECALL" else _number(message.value)
        record.input = bytes(message.data) if depth <= 1 else bytes(message.data[:_INPUT_BYTES])
        self._open.append(record)
        return record

    def leave(self, output: bytes, *, failed: bool, out_of_gas: bool = False, gas_used: int = 0) -> None:
        """The innermost call ends."""
        record = self._open.pop()
        record.failed = failed
        # What the entry point itself used is not known when the run is stopped; it is nobody's.
        record.gas_used = gas_used if 0 < record.depth <= GAS_DEPTH else 0
        record.out_of_gas = out_of_gas
        if record.depth <= 1:
            record.output = bytes(output)
        # A call that ends in the middle of an opcode did not make the call it was about to make.
        self._coming = None
        if self._open:
            self._open[-1].calls.append(record.frame())
        else:
            self.root = record.frame()

    def fail_last(self, *, out_of_gas: bool) -> None:
        """The creation that ended last has failed after all: its code could not be stored."""
        parent = self._open[-1]
        last = parent.calls[-1]
        parent.calls[-1] = msgspec.structs.replace(last, failed=True, out_of_gas=out_of_gas)

    def after_call(self) -> None:
        """An opcode that calls is done. Was nothing entered (no balance, too deep), the attempt is recorded."""
        attempt, self._coming = self._coming, None
        if attempt is not None:
            attempt.failed = True
            self._open[-1].calls.append(attempt.frame())

    def close(self) -> None:
        """The run was stopped from within: end all that is open."""
        self._coming = None
        while self._open:
            self.leave(b"", failed=False)

    # --- the opcodes

    def hooks(self) -> dict[int, Callable[[Record, Any, int], None]]:
        """What is to be called before which opcode."""
        table: dict[int, Callable[[Record, Any, int], None]] = {}
        for opcode in (*opcodes.BANNED, *opcodes.STAKED_ONLY):
            table[opcode] = self._used
        table[opcodes.GAS] = self._gas
        table[opcodes.KECCAK256] = self._hash
        for opcode in (opcodes.SLOAD, opcodes.SSTORE, opcodes.TLOAD, opcodes.TSTORE):
            table[opcode] = self._storage
        for opcode in opcodes.LOOKS:
            table[opcode] = self._look
        for opcode in opcodes.CALLS:
            table[opcode] = self._call
        for opcode in (opcodes.CREATE, opcodes.CREATE2):
            table[opcode] = self._create
        return table

    @staticmethod
    def _used(record: Record, _evm: Any, opcode: int) -> None:
        record.opcodes.add(opcode)

    @staticmethod
    def _gas(record: Record, evm: Any, opcode: int) -> None:
        # OP-012. GAS does not jump, so what follows it in the code is what is executed next.
        following = int(evm.pc) + 1
        if following >= len(evm.code) or evm.code[following] not in opcodes.CALLS:
            record.opcodes.add(opcode)

    def _hash(self, _record: Record, evm: Any, _opcode: int) -> None:
        if len(evm.stack) < 2:
            return
        start, length = int(evm.stack[-1]), int(evm.stack[-2])
        # Slots come of short strings. What is beyond that, or would not even fit into memory, is of no use to a rule.
        if length <= 1024 and start < 2**32:
            self.hashed.add(bytes(evm.memory[start : start + length]).ljust(length, b"\0"))

    @staticmethod
    def _storage(record: Record, evm: Any, opcode: int) -> None:
        if not evm.stack:
            return
        slot = int(evm.stack[-1]).to_bytes(32, "big")
        if opcode == opcodes.SLOAD:
            record.reads.add(slot)
        elif opcode == opcodes.SSTORE:
            record.writes.add(slot)
        elif opcode == opcodes.TLOAD:
            record.transient_reads.add(slot)
        else:
            record.transient_writes.add(slot)

    def _look(self, record: Record, evm: Any, opcode: int) -> None:
        if not evm.stack:
            return
        address = _address(evm.stack[-1])
        self._measure(record, evm, address, opcode)
        following = int(evm.pc) + 1
        is_zero = following < len(evm.code) and evm.code[following] == opcodes.ISZERO
        if not (opcode == opcodes.EXTCODESIZE and is_zero):
            record.looked_at.add(address)

    def _call(self, record: Record, evm: Any, opcode: int) -> None:
        if len(evm.stack) < 6:
            return
        target = _address(evm.stack[-2])
        self._measure(record, evm, target, opcode)
        own = record.context
        context = target if opcode in (opcodes.CALL, opcodes.STATICCALL) else own
        coming = Record(_KINDS[opcode], record.depth + 1, own, context, target)
        if opcode in (opcodes.CALL, opcodes.CALLCODE):
            coming.value = _number(evm.stack[-3])
        self._coming = coming

    def _create(self, record: Record, evm: Any, opcode: int) -> None:
        record.opcodes.add(opcode)
        if len(evm.stack) >= 3:
            self._coming = Record(_KINDS[opcode], record.depth + 1, record.context, b"", b"")

    def _measure(self, record: Record, evm: Any, address: bytes, opcode: int) -> None:
        if address not in record.sizes:
            record.sizes[address] = self._code_size(evm, address), opcode


def _address(word: Any) -> bytes:
    return (int(word) & _ADDRESS_MASK).to_bytes(20, "big")


def _number(number: Any) -> bytes:
    """Without leading zeros; empty for zero."""
    return int(number).to_bytes(32, "big").lstrip(b"\0")
