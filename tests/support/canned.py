"""Contracts that answer as a test says: written in bytecode, because no compiler would make them so badly.

`canned` gives the creation code of a contract with an answer for each function. Deploy it with `EvmDevnet.send`.
"""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec
from eth_abi.abi import encode

from capstan.core.hexes import keccak256, to_checksum_address
from capstan.devnet.models import DevAccount
from tests.support.devnet import EvmDevnet


class Returns(msgspec.Struct, frozen=True):
    """Return these bytes."""

    data: bytes


class Reverts(msgspec.Struct, frozen=True):
    """Revert without a reason."""


class Breaks(msgspec.Struct, frozen=True):
    """Run into an invalid instruction, which uses up all gas."""


class Loops(msgspec.Struct, frozen=True):
    """Never end, until the gas is gone."""


class Floods(msgspec.Struct, frozen=True):
    """Return a string of so many zero bytes."""

    size: int


class BlockNumber(msgspec.Struct, frozen=True):
    """Return the number of the block: a value that changes without any event."""


class Emits(msgspec.Struct, frozen=True):
    """Emit an event with this signature, these words of data, and these indexed words."""

    event: str
    values: tuple[int, ...] = ()
    indexed: tuple[int, ...] = ()


Action: TypeAlias = Emits | Returns | Reverts | Breaks | Loops | Floods | BlockNumber


def text(value: str | bytes) -> Returns:
    """A string as the ABI encodes it."""
    raw = value.encode() if isinstance(value, str) else value
    return Returns(encode(["bytes"], [raw]))


def word(value: int | bytes) -> Returns:
    """A number, or bytes at the left of a word."""
    return Returns(value.to_bytes(32, "big") if isinstance(value, int) else value.ljust(32, b"\0"))


def address(value: str) -> Returns:
    """An address."""
    return Returns(bytes.fromhex(value[2:]).rjust(32, b"\0"))


YES, NO = word(1), word(0)
SUPPORTS = "supportsInterface(bytes4)"
ERC165, ERC721, ERC1155, NOTHING = "01ffc9a7", "80ac58cd", "d9b67a26", "ffffffff"


def supports(*interfaces: str) -> dict[str, Action]:
    """The answers of a contract that declares these interfaces."""
    said = {f"{SUPPORTS}:{interface}": YES for interface in (ERC165, *interfaces)}
    return {**said, SUPPORTS: NO}


def canned(answers: Mapping[str, Action], fallback: Action | None = None) -> bytes:
    """Creation code. Keys are signatures; `signature:80ac58cd` is that function with this first argument (bytes4).

    Put the more specific key first. Other functions do what `fallback` says; by default they revert.
    """
    runtime = _runtime(answers, fallback or Reverts())
    # PUSH3 size, DUP1, PUSH1 offset, PUSH0, CODECOPY, PUSH0, RETURN
    head = b"\x62" + len(runtime).to_bytes(3, "big") + b"\x80\x60\x0b\x5f\x39\x5f\xf3"
    assert len(head) == 11
    return head + runtime


def proxy(target: str) -> bytes:
    """Creation code of a minimal proxy (ERC-1167)."""
    runtime = bytes.fromhex(f"363d3d373d3d3d363d73{target[2:]}5af43d82803e903d91602b57fd5bf3")
    return b"\x60" + bytes([len(runtime)]) + b"\x80\x60\x09\x5f\x39\x5f\xf3" + runtime


def deploy(devnet: EvmDevnet, account: DevAccount, code: bytes) -> str:
    """The checksummed address of a new contract with this creation code."""
    receipt = devnet.send(account, None, data=code, gas=12_000_000)
    assert receipt["status"] == "0x1", receipt
    return to_checksum_address(receipt["contractAddress"])


def _runtime(answers: Mapping[str, Action], fallback: Action) -> bytes:
    """The dispatcher, then one block for each answer, then their data. Laid out twice: first to know the places."""
    places = [0] * (len(answers) + 1)
    data_at = 0
    code = b""
    for _ in range(2):
        code = bytes.fromhex("5f3560e01c")
        for place, key in enumerate(answers):
            signature, _, argument = key.partition(":")
            code += b"\x80\x63" + keccak256(signature.encode())[:4] + b"\x14"
            if argument:
                # The first four bytes of the argument: PUSH1 4, CALLDATALOAD, PUSH1 224, SHR, PUSH4, EQ, AND
                code += b"\x60\x04\x35\x60\xe0\x1c\x63" + bytes.fromhex(argument) + b"\x14\x16"
            code += b"\x61" + places[place].to_bytes(2, "big") + b"\x57"
        code += b"\x61" + places[-1].to_bytes(2, "big") + b"\x56"
        data = b""
        for place, action in enumerate([*answers.values(), fallback]):
            places[place] = len(code)
            code += b"\x5b" + _block(action, len(code) + 1, data_at + len(data))
            data += action.data if isinstance(action, Returns) else b""
        data_at = len(code)
        code += data
    return code


def _block(action: Action, place: int, data_at: int) -> bytes:
    match action:
        case Returns(data=data):
            size = len(data).to_bytes(2, "big")
            return b"\x61" + size + b"\x61" + data_at.to_bytes(2, "big") + b"\x5f\x39\x61" + size + b"\x5f\xf3"
        case Reverts():
            return b"\x5f\x5f\xfd"
        case Breaks():
            return b"\xfe"
        case Loops():
            return b"\x5b\x61" + place.to_bytes(2, "big") + b"\x56"
        case Floods(size=size):
            whole = (size + 64).to_bytes(3, "big")
            length = size.to_bytes(3, "big")
            return b"\x60\x20\x5f\x52\x62" + length + b"\x60\x20\x52\x62" + whole + b"\x5f\xf3"
        case Emits(event=event, values=values, indexed=indexed):
            # For each value: PUSH32 value, PUSH1 place, MSTORE. Then the topics, PUSH1 size, PUSH0, LOG, STOP.
            code = b"".join(
                b"\x7f" + value.to_bytes(32, "big") + b"\x60" + bytes([32 * place]) + b"\x52"
                for place, value in enumerate(values)
            )
            others = b"".join(b"\x7f" + topic.to_bytes(32, "big") for topic in reversed(indexed))
            topics = others + b"\x7f" + keccak256(event.encode())
            instruction = bytes([0xA1 + len(indexed)])
            return code + topics + b"\x60" + bytes([32 * len(values)]) + b"\x5f" + instruction + b"\x00"
        case BlockNumber():
            return b"\x43\x5f\x52\x60\x20\x5f\xf3"
