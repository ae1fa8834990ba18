"""Programs by chance, always the same ones: what entities of nobody's design do.

A third is put together from things that rules are about, a third from any opcodes in an order that mostly works, and a
third is plain bytes, run by a helper contract, because an account that fails is refused before any rule is asked.
"""

from __future__ import annotations

import random

from capstan.bundler.models import Role
from tests.support.bytecode import calling, calling_function
from tests.validation.cases import HELPERS, NOWHERE, Case

_ROLES: tuple[Role, ...] = ("account", "factory", "paymaster")
_SEED = 7562
# Opcodes that take nothing, take one, take two words from the stack, and leave one.
_NULLARY = ["ADDRESS", "CALLER", "CALLVALUE", "CALLDATASIZE", "CODESIZE", "RETURNDATASIZE", "CHAINID", "PC", "MSIZE"]
_RARE = ["ORIGIN", "GASPRICE", "TIMESTAMP", "NUMBER", "SELFBALANCE", "BASEFEE", "GAS", "BLOBBASEFEE"]
_UNARY = ["ISZERO", "NOT", "CALLDATALOAD", "SLOAD", "TLOAD", "BALANCE", "EXTCODESIZE", "EXTCODEHASH"]
_BINARY = ["ADD", "MUL", "SUB", "DIV", "MOD", "LT", "GT", "EQ", "AND", "OR", "XOR", "BYTE", "SHL", "SHR"]


def random_cases(count: int) -> list[Case]:
    """So many operations, each with a program in one of its entities."""
    source = random.Random(_SEED)
    return [_case(source, number) for number in range(count)]


def _case(source: random.Random, number: int) -> Case:
    make = (_meaningful, _arithmetic, _helped)[number % 3]
    program = " ".join(make(source) for _ in range(source.randint(1, 4)))
    role = source.choice(_ROLES)
    staked = frozenset(each for each in _ROLES if source.random() < 0.4)
    return Case(
        f"{number} {role}",
        account=program if role == "account" else "",
        factory=program if role == "factory" else ("" if source.random() < 0.3 else None),
        paymaster=program if role == "paymaster" else ("" if source.random() < 0.2 else None),
        # An account that its factory has yet to create cannot have staked.
        staked=staked if role != "factory" else staked - {"account"},
    )


def _address(source: random.Random) -> str:
    known = [f"{{{name}}}" for name in HELPERS]
    number = source.choice([1, 2, 3, 4, 5, 9, 0x0B, 0x12, 0x64, 0x100])
    return source.choice([*known, *known, "{ep}", "ADDRESS", NOWHERE, f"{number:#042x}"])


def _meaningful(source: random.Random) -> str:
    slot = source.randint(0, 3)
    return source.choice(
        [
            f"{slot} SLOAD POP",
            f"1 {slot} SSTORE",
            f"{slot} TLOAD POP",
            f"1 {slot} TSTORE",
            f"{_address(source)} {source.choice(['EXTCODESIZE', 'EXTCODEHASH', 'BALANCE'])} POP",
            f"{_address(source)} EXTCODESIZE ISZERO POP",
            "PUSH0 PUSH0 PUSH0 CREATE POP",
            f"{slot} PUSH0 PUSH0 PUSH0 CREATE2 POP",
            calling_function("{ep}", source.choice(["b760faf9", "0bd28e3b", "70a08231"]), "ADDRESS"),
            *(
                calling(
                    _address(source),
                    source.choice(["ADDRESS", "1", "{idle}"]),
                    str(source.choice([0, 3, 128, 129])),
                    kind=source.choice(["CALL", "STATICCALL", "DELEGATECALL", "CALLCODE"]),
                    gas=source.choice(["GAS", "GAS", "GAS", "2299", "9000", "60000"]),
                    value=source.choice([0, 0, 0, 0, 1]),
                )
                for _ in range(8)
            ),
        ]
    )


def _arithmetic(source: random.Random) -> str:
    """Words that always leave the stack as it was."""
    words, height = [], 0
    for _ in range(source.randint(3, 14)):
        if height >= 2 and source.random() < 0.4:
            words.append(source.choice(_BINARY))
            height -= 1
        elif height and source.random() < 0.4:
            words.append(source.choice(_UNARY if source.random() < 0.5 else ["ISZERO", "NOT", "CALLDATALOAD"]))
        else:
            words.append(source.choice(_NULLARY if source.random() < 0.85 else _RARE))
            height += 1
    return " ".join([*words, *["POP"] * height])


def _helped(source: random.Random) -> str:
    kind = source.choice(["CALL", "STATICCALL", "DELEGATECALL"])
    return calling(f"{{random_{source.randint(0, 23)}}}", "ADDRESS", "1", kind=kind, gas="40000")


def random_helpers() -> dict[str, bytes]:
    """The helper contracts that the programs name beside those of the cases."""
    source = random.Random(_SEED + 1)
    return {f"random_{number}": source.randbytes(source.randint(1, 60)) for number in range(24)}
