"""Contracts made of a few bytes, for tests that need one which does a certain thing and nothing else.

`assemble("PUSH1 1 PUSH0 SSTORE")` gives the bytes of a program; numbers stand behind a PUSH of fitting length. The
entities here do what they are told first, and then what an account, a paymaster or a factory has to do.
"""

from __future__ import annotations

# Names of opcodes that follow each other, by the number of the first.
_RUNS = {
    0x00: "STOP ADD MUL SUB DIV SDIV MOD SMOD ADDMOD MULMOD EXP SIGNEXTEND",
    0x10: "LT GT SLT SGT EQ ISZERO AND OR XOR NOT BYTE SHL SHR SAR CLZ",
    0x20: "KECCAK256",
    0x30: "ADDRESS BALANCE ORIGIN CALLER CALLVALUE CALLDATALOAD CALLDATASIZE CALLDATACOPY CODESIZE CODECOPY GASPRICE",
    0x3B: "EXTCODESIZE EXTCODECOPY RETURNDATASIZE RETURNDATACOPY EXTCODEHASH BLOCKHASH COINBASE TIMESTAMP NUMBER",
    0x44: "DIFFICULTY GASLIMIT CHAINID SELFBALANCE BASEFEE BLOBHASH BLOBBASEFEE",
    0x50: "POP MLOAD MSTORE MSTORE8 SLOAD SSTORE JUMP JUMPI PC MSIZE GAS JUMPDEST TLOAD TSTORE MCOPY PUSH0",
    0x80: " ".join(f"DUP{number}" for number in range(1, 17)),
    0x90: " ".join(f"SWAP{number}" for number in range(1, 17)),
    0xA0: "LOG0 LOG1 LOG2 LOG3 LOG4",
    0xF0: "CREATE CALL CALLCODE RETURN DELEGATECALL CREATE2",
    0xFA: "STATICCALL",
    0xFD: "REVERT INVALID SELFDESTRUCT",
}
_OPCODES = {name: first + place for first, names in _RUNS.items() for place, name in enumerate(names.split())}


def push(value: int | bytes | str) -> bytes:
    """Push a number, or bytes as a number. Text is an address."""
    if isinstance(value, str):
        value = bytes.fromhex(value.removeprefix("0x"))
    data = value if isinstance(value, bytes) else value.to_bytes(max(1, -(-value.bit_length() // 8)), "big")
    return bytes([0x5F + len(data)]) + data


def assemble(program: str) -> bytes:
    """The bytes of a program. A number, decimal or 0x, is pushed; a name is that opcode; `!0c` is the byte 0x0c."""
    code = b""
    for word in program.split():
        if word.startswith("!"):
            code += bytes.fromhex(word[1:])
        elif word.startswith("0x"):
            code += push(word if len(word) == 42 else int(word, 16))
        elif word.isdigit():
            code += push(int(word))
        else:
            code += bytes([_OPCODES[word]])
    return code


def deployer(runtime: bytes) -> bytes:
    """Code that creates a contract with this code."""
    return b"\x61" + len(runtime).to_bytes(2, "big") + bytes.fromhex("80600a5f395ff3") + b"" + runtime


def _stakable(entry_point: str, body: bytes) -> bytes:
    """Called with value, it stakes that at the entry point for a day; else it does what `body` does."""
    add_stake = assemble(
        f"0x0396cb60 224 SHL PUSH0 MSTORE 86400 4 MSTORE PUSH0 PUSH0 36 PUSH0 CALLVALUE {entry_point} GAS CALL STOP"
    )
    head = assemble("CALLVALUE ISZERO")
    # PUSH2 target JUMPI, staking, JUMPDEST, body
    target = len(head) + 4 + len(add_stake)
    return head + b"\x61" + target.to_bytes(2, "big") + b"\x57" + add_stake + b"\x5b" + body


def account(entry_point: str, does: str = "", validation_data: int = 0) -> bytes:
    """The code of an account that does this in its validation, and then agrees to everything."""
    return _stakable(entry_point, assemble(does) + push(validation_data) + assemble("PUSH0 MSTORE 32 PUSH0 RETURN"))


def paymaster(entry_point: str, does: str = "", *, context: int = 0, validation_data: int = 0) -> bytes:
    """The code of a paymaster that does this in its validation, and then pays. `context` is the length of it."""
    answer = assemble("64 PUSH0 MSTORE") + push(validation_data) + assemble("32 MSTORE")
    words = -(-context // 32)
    answer += assemble(f"{context} 64 MSTORE 0xff 248 SHL 96 MSTORE {96 + 32 * words} PUSH0 RETURN")
    return _stakable(entry_point, assemble(does) + answer)


def factory(entry_point: str, creates: bytes, does: str = "", after: str = "") -> bytes:
    """The code of a factory that does something, creates one contract with CREATE2 and salt 0, does something more."""
    init = deployer(creates)
    before, end = assemble(does), assemble(after) + assemble("PUSH0 MSTORE 32 PUSH0 RETURN")
    # The code to create stands behind the rest, whose length depends on where it stands.
    size = b"\x61" + len(init).to_bytes(2, "big")
    make = size + b"\x61%b" + assemble("PUSH0 CODECOPY PUSH0") + size + assemble("PUSH0 PUSH0 CREATE2")
    body = before + make + end
    empty = len(_stakable(entry_point, b""))
    place = (empty + len(body)).to_bytes(2, "big")
    return _stakable(entry_point, body.replace(b"\x61%b", b"\x61" + place)) + init


def calling(target: str, *words: str, kind: str = "CALL", gas: str = "GAS", value: int = 0) -> str:
    """A program that calls a contract with some words, each given as a program that leaves it on the stack."""
    fill = " ".join(f"{word} {32 * place} MSTORE" for place, word in enumerate(words))
    sent = f"{value} " if kind in ("CALL", "CALLCODE") else ""
    return f"{fill} PUSH0 PUSH0 {32 * len(words)} PUSH0 {sent}{target} {gas} {kind} POP"


def calling_function(target: str, selector: str, *words: str, value: int = 0) -> str:
    """The same with a selector before the words."""
    fill = " ".join(f"{word} {4 + 32 * place} MSTORE" for place, word in enumerate(words))
    size = 4 + 32 * len(words)
    return f"0x{selector} 224 SHL PUSH0 MSTORE {fill} PUSH0 PUSH0 {size} PUSH0 {value} {target} GAS CALL POP"


# Within a paymaster: the sender of the operation, the first member of the struct that the first argument points to.
SENDER = "4 CALLDATALOAD 4 ADD CALLDATALOAD"
