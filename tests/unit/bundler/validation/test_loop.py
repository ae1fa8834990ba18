"""Our loop against the specification's own, on programs by chance: same result, same gas, same storage, same end."""

import importlib
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from capstan.bundler.validation.evm.machine import FORKS, Machine
from capstan.bundler.validation.evm.messages import AccountState, Job
from capstan.bundler.validation.evm.world import fill
from capstan.core.hexes import keccak256

_TARGET, _OTHER, _CALLER = b"\xaa" * 20, b"\xbb" * 20, b"\xcc" * 20
# What the loop does itself, and what it must fit together with.
_PLAIN = [*range(0x5F, 0xA0), 0x01, 0x03, 0x10, 0x11, 0x14, 0x15, 0x16, 0x17, 0x18, 0x1B, 0x1C]
_OTHERS = [0x02, 0x04, 0x19, 0x20, 0x30, 0x33, 0x35, 0x36, 0x37, 0x39, 0x3D, 0x47, 0x50, 0x51, 0x52, 0x53, 0x54, 0x55]
_OTHERS += [0x56, 0x57, 0x58, 0x59, 0x5A, 0x5B, 0x5C, 0x5D, 0x5E, 0xA0, 0xF0, 0xF1, 0xF3, 0xF4, 0xFA, 0xFD, 0xFE, 0x0C]


def _program(source: random.Random) -> bytes:
    """Code that gets somewhere: words are pushed before anything takes them, and jumps often find their place."""
    code = bytearray()
    for _ in range(source.randint(4, 40)):
        code += bytes([0x60, source.choice([0, 1, 2, 4, 31, 32, 64, 255])])
    for _ in range(source.randint(5, 80)):
        opcode = source.choice(_PLAIN if source.random() < 0.7 else _OTHERS)
        code.append(opcode)
        if 0x60 <= opcode <= 0x7F:
            code += source.randbytes(opcode - 0x5F)
        if source.random() < 0.15:
            target = len(code) + 4
            code += bytes([0x61, *target.to_bytes(2, "big"), 0x56, 0x5B])
    # What is on top goes into storage, where it is seen. Sometimes the end is cut off, in the middle of a push too.
    code += bytes([0x5F, 0x55, 0x61, 0x01, 0x02, 0x55])
    return bytes(code[: len(code) - source.choice([0, 0, 0, 1, 2])])


def _job(fork: str, code: bytes, other: bytes, gas: int) -> tuple[Job, dict[bytes, bytes]]:
    codes = {keccak256(each): each for each in (code, other, b"")}
    accounts = {
        _TARGET: AccountState((5).to_bytes(32, "big"), 1, keccak256(code), {}),
        _OTHER: AccountState(bytes(32), 1, keccak256(other), {}),
        _CALLER: AccountState(bytes(32), 0, keccak256(b"")),
    }
    job = Job(
        fork=fork,
        chain_id=1,
        block_number=9,
        timestamp=9,
        caller=_CALLER,
        entry_point=_TARGET,
        data=bytes(range(68)),
        gas=gas,
        accounts=accounts,
    )
    return job, codes


class _Both:
    """A fork's specification, with and without our loop in it."""

    def __init__(self, fork: str) -> None:
        self.fork = fork
        self.interpreter: Any = importlib.import_module(f"ethereum.forks.{fork}.vm.interpreter")
        self.state = importlib.import_module(f"ethereum.forks.{fork}.state")
        self.own = self.interpreter.process_message, self.interpreter.process_create_message
        self.machine = Machine(fork, p256=False)

    def run(self, code: bytes, other: bytes, gas: int, *, ours: bool) -> tuple[Any, ...]:
        """What is left of gas, what is paid back, how it ended, and the storage afterwards."""
        job, codes = _job(self.fork, code, other, gas)
        state = self.state.State()
        fill(state, self.machine.parts, job.accounts, codes)
        if ours:
            # Nobody is the entry point, whose call of itself would end the run.
            self.machine.begin(msgspec.structs.replace(job, entry_point=bytes(20)))
        try:
            output = self.interpreter.process_message_call(self.machine.message(job, state))
        finally:
            self.interpreter.process_message, self.interpreter.process_create_message = self.own
        storage = {
            bytes(address): sorted((bytes(key), int(value)) for key, value in trie._data.items())
            for address, trie in state._storage_tries.items()
        }
        return int(output.gas_left), int(output.refund_counter), type(output.error), storage


@pytest.fixture(params=FORKS)
def both(request: pytest.FixtureRequest) -> Iterator[_Both]:
    pair = _Both(request.param)
    yield pair
    pair.interpreter.process_message, pair.interpreter.process_create_message = pair.own


def test_the_loop_does_what_the_specification_does(both: _Both) -> None:
    source = random.Random(1559)
    ends = set()
    for _ in range(150):
        code, other = _program(source), _program(source)
        gas = source.choice([60, 150, 400, 3_000, 100_000])
        expected = both.run(code, other, gas, ours=False)
        assert both.run(code, other, gas, ours=True) == expected, code.hex()
        ends.add(expected[2].__name__)
    # The programs end in every way there is.
    assert {"NoneType", "OutOfGasError", "StackUnderflowError", "InvalidOpcode", "Revert"} <= ends
