"""The loop that executes code: the few plain opcodes that make up most of it by hand, all others by the specification.

Called by the machine for each call. Pushing, duplicating, swapping, jumping and comparing are three quarters of what
contracts do, and the specification takes many objects for each. Here they work on Python's own numbers, with the checks
in the specification's order. `test_the_loop_does_what_the_specification_does` runs both and compares.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ethereum_types.numeric import U256, Uint

from capstan.bundler.validation.evm.collector import Collector, Record
from capstan.bundler.validation.opcodes import CALLS, CREATE, CREATE2

Operation = Callable[[Any], None]
Hook = Callable[[Record, Any, int], None]

_MOST_WORDS = 1024
_WORD = 2**256
_CALLING = CALLS | {CREATE, CREATE2}
_PUSH0, _PUSH32, _DUP1, _DUP16, _SWAP1, _SWAP16 = 0x5F, 0x7F, 0x80, 0x8F, 0x90, 0x9F
_POP, _JUMP, _JUMPI, _JUMPDEST = 0x50, 0x56, 0x57, 0x5B
_ISZERO, _MLOAD, _MSTORE = 0x15, 0x51, 0x52
_TAKING_ONE = frozenset({_JUMP, _POP, _ISZERO})
# What two words on the stack become, the upper one first. All of these cost the same.
_BINARY: dict[int, Callable[[int, int], int]] = {
    0x01: lambda x, y: (x + y) % _WORD,
    0x03: lambda x, y: (x - y) % _WORD,
    0x10: lambda x, y: int(x < y),
    0x11: lambda x, y: int(x > y),
    0x14: lambda x, y: int(x == y),
    0x16: lambda x, y: x & y,
    0x17: lambda x, y: x | y,
    0x18: lambda x, y: x ^ y,
    0x1B: lambda x, y: (y << x) % _WORD if x < 256 else 0,
    0x1C: lambda x, y: y >> x if x < 256 else 0,
}
_BASE_GAS, _VERY_LOW_GAS, _MID_GAS, _HIGH_GAS, _JUMPDEST_GAS = 2, 3, 8, 10, 1


class Halts:
    """The exceptions of a fork with which execution ends."""

    def __init__(self, exceptions: Any) -> None:
        self.out_of_gas: type[Exception] = exceptions.OutOfGasError
        self.underflow: type[Exception] = exceptions.StackUnderflowError
        self.overflow: type[Exception] = exceptions.StackOverflowError
        self.bad_jump: type[Exception] = exceptions.InvalidJumpDestError
        self.bad_opcode: type[Exception] = exceptions.InvalidOpcode


class Loop:
    """Executes the code of one fork."""

    def __init__(self, operations: Sequence[Operation | None], halts: Halts) -> None:
        self._operations = operations
        self._halts = halts
        self.steps = 0

    def run(self, evm: Any, record: Record, hooks: Sequence[Hook | None], collector: Collector) -> None:
        """Execute until the code ends or halts. Raises what the specification raises.

        One long function, because a call of Python's for each opcode is what it is there to avoid. Place and gas are
        plain numbers here, and are put into the machine's state before anything else looks at that.
        """
        halts, operations = self._halts, self._operations
        code, stack, memory = evm.code, evm.stack, evm.memory
        length, pushes, jumps = len(code), *prepare(code)
        place, gas, steps = 0, int(evm.gas_left), 0
        try:
            while place < length:
                opcode = code[place]
                steps += 1
                if _PUSH0 <= opcode <= _SWAP16:
                    cost = _BASE_GAS if opcode == _PUSH0 else _VERY_LOW_GAS
                    if gas < cost:
                        raise halts.out_of_gas
                    gas -= cost
                    if opcode <= _PUSH32:
                        if len(stack) == _MOST_WORDS:
                            raise halts.overflow
                        value, place = pushes[place]
                        stack.append(value)
                        continue
                    place += 1
                    if opcode <= _DUP16:
                        depth = opcode - _DUP1 + 1
                        if depth > len(stack):
                            raise halts.underflow
                        if len(stack) == _MOST_WORDS:
                            raise halts.overflow
                        stack.append(stack[-depth])
                        continue
                    depth = opcode - _SWAP1 + 2
                    if depth > len(stack):
                        raise halts.underflow
                    stack[-1], stack[-depth] = stack[-depth], stack[-1]
                    continue
                binary = _BINARY.get(opcode)
                if binary is not None:
                    if len(stack) < 2:
                        raise halts.underflow
                    if gas < _VERY_LOW_GAS:
                        raise halts.out_of_gas
                    gas -= _VERY_LOW_GAS
                    upper = stack.pop()
                    stack[-1] = U256(binary(upper._number, stack[-1]._number))
                    place += 1
                    continue
                if opcode == _JUMPDEST:
                    if gas < _JUMPDEST_GAS:
                        raise halts.out_of_gas
                    gas -= _JUMPDEST_GAS
                    place += 1
                    continue
                if opcode == _JUMPI:
                    if len(stack) < 2:
                        raise halts.underflow
                    target, condition = stack.pop()._number, stack.pop()._number
                    if gas < _HIGH_GAS:
                        raise halts.out_of_gas
                    gas -= _HIGH_GAS
                    if condition and target not in jumps:
                        raise halts.bad_jump
                    place = target if condition else place + 1
                    continue
                if opcode in _TAKING_ONE:
                    if not stack:
                        raise halts.underflow
                    top = stack.pop()._number
                    cost = _MID_GAS if opcode == _JUMP else (_BASE_GAS if opcode == _POP else _VERY_LOW_GAS)
                    if gas < cost:
                        raise halts.out_of_gas
                    gas -= cost
                    place += 1
                    if opcode == _ISZERO:
                        stack.append(_ONE if top == 0 else _ZERO)
                    elif opcode == _JUMP:
                        if top not in jumps:
                            raise halts.bad_jump
                        place = top
                    continue
                if opcode == _MSTORE and len(stack) > 1 and stack[-1]._number + 32 <= len(memory):
                    # Within the memory that there is; what makes it grow has its price worked out below.
                    if gas < _VERY_LOW_GAS:
                        raise halts.out_of_gas
                    gas -= _VERY_LOW_GAS
                    start = stack.pop()._number
                    memory[start : start + 32] = stack.pop()._number.to_bytes(32, "big")
                    place += 1
                    continue
                if opcode == _MLOAD and stack and stack[-1]._number + 32 <= len(memory):
                    if gas < _VERY_LOW_GAS:
                        raise halts.out_of_gas
                    gas -= _VERY_LOW_GAS
                    start = stack[-1]._number
                    stack[-1] = U256(int.from_bytes(memory[start : start + 32], "big"))
                    place += 1
                    continue
                operation = operations[opcode]
                if operation is None:
                    record.opcodes.add(opcode)
                    record.invalid_opcode = True
                    raise halts.bad_opcode(opcode)
                evm.pc, evm.gas_left = Uint(place), Uint(gas)
                hook = hooks[opcode]
                if hook is not None:
                    hook(record, evm, opcode)
                operation(evm)
                if opcode in _CALLING:
                    collector.after_call()
                place, gas = evm.pc._number, evm.gas_left._number
                if not evm.running:
                    return
            evm.pc, evm.gas_left = Uint(place), Uint(gas)
        finally:
            self.steps += steps


_ZERO, _ONE = U256(0), U256(1)


@lru_cache(maxsize=1024)
def prepare(code: bytes) -> tuple[dict[int, tuple[U256, int]], frozenset[int]]:
    """What each PUSH of the code pushes and where it goes on, and where the code may jump to."""
    pushes: dict[int, tuple[U256, int]] = {}
    jumps = set()
    place, length = 0, len(code)
    while place < length:
        opcode = code[place]
        following = place + 1
        if opcode == _JUMPDEST:
            jumps.add(place)
        elif _PUSH0 <= opcode <= _PUSH32:
            following += opcode - _PUSH0
            # Behind the end of the code there are zeros.
            data = code[place + 1 : following].ljust(opcode - _PUSH0, b"\0")
            pushes[place] = U256(int.from_bytes(data, "big")), following
        place = following
    return pushes, frozenset(jumps)
