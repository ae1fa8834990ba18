"""Instructions as jsonParsed shows them: named fields for the system, SPL token, associated token and memo programs,
and the partially decoded form for every other program, as a Solana node gives it when it has no parser.

The names are those of Agave's `transaction-status`. An instruction that does not fit its layout is never guessed at: it
falls back to the partially decoded form.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from solders.instruction import CompiledInstruction
from solders.pubkey import Pubkey

from capstan.devnet.solana.binary import base58_encode
from capstan.devnet.solana.programs import ASSOCIATED_TOKEN, MEMO_PROGRAMS, SYSTEM, TOKEN_PROGRAMS
from capstan.devnet.solana.tokens import ui_amount

Info = dict[str, Any]
Fields = Callable[[bytes], Info]
Parsed = tuple[str, Any]


class NotParsable(ValueError):
    """The instruction is not one this module knows, or does not fit its layout."""


def parse_instruction(instruction: CompiledInstruction, keys: Sequence[Pubkey], stack_height: int | None) -> Info:
    program = keys[instruction.program_id_index]
    accounts = [str(keys[index]) for index in instruction.accounts]
    try:
        name, parsed = _parse(program, instruction.data, accounts)
    except (NotParsable, struct.error, UnicodeDecodeError, IndexError):
        return {
            "programId": str(program),
            "accounts": accounts,
            "data": base58_encode(instruction.data),
            "stackHeight": stack_height,
        }
    return {"program": name, "programId": str(program), "parsed": parsed, "stackHeight": stack_height}


def _parse(program: Pubkey, data: bytes, accounts: list[str]) -> Parsed:
    if program == SYSTEM:
        return "system", _system(data, accounts)
    if program in TOKEN_PROGRAMS:
        return "spl-token", _token(data, accounts)
    if program == ASSOCIATED_TOKEN:
        return "spl-associated-token-account", _associated_token(data, accounts)
    if program in MEMO_PROGRAMS:
        return "spl-memo", data.decode("utf-8")
    raise NotParsable


def _named(names: Sequence[str], accounts: Sequence[str]) -> Info:
    if len(accounts) < len(names):
        raise NotParsable
    return dict(zip(names, accounts, strict=False))


def _nothing(_: bytes) -> Info:
    return {}


def _pubkey(data: bytes) -> str:
    if len(data) < 32:
        raise NotParsable
    return str(Pubkey(data[:32]))


def _owner(data: bytes) -> Info:
    return {"owner": _pubkey(data)}


def _u64_field(name: str, *, text: bool = False) -> Fields:
    def fields(data: bytes) -> Info:
        (value,) = struct.unpack_from("<Q", data)
        return {name: str(value) if text else value}

    return fields


def _seed(data: bytes) -> tuple[str, bytes]:
    """A bincode string (8-byte length, text) and what follows it."""
    (length,) = struct.unpack_from("<Q", data)
    if len(data) < 8 + length:
        raise NotParsable
    return data[8 : 8 + length].decode("utf-8"), data[8 + length :]


# System program: a 4-byte number, then the arguments.


def _create_account(data: bytes) -> Info:
    lamports, space = struct.unpack_from("<QQ", data)
    return {"lamports": lamports, "space": space, "owner": _pubkey(data[16:])}


def _create_account_with_seed(data: bytes) -> Info:
    seed, rest = _seed(data[32:])
    return {"base": _pubkey(data), "seed": seed} | _create_account(rest)


def _allocate_with_seed(data: bytes) -> Info:
    seed, rest = _seed(data[32:])
    (space,) = struct.unpack_from("<Q", rest)
    return {"base": _pubkey(data), "seed": seed, "space": space, "owner": _pubkey(rest[8:])}


def _assign_with_seed(data: bytes) -> Info:
    seed, rest = _seed(data[32:])
    return {"base": _pubkey(data), "seed": seed, "owner": _pubkey(rest)}


def _transfer_with_seed(data: bytes) -> Info:
    (lamports,) = struct.unpack_from("<Q", data)
    seed, rest = _seed(data[8:])
    return {"lamports": lamports, "sourceSeed": seed, "sourceOwner": _pubkey(rest)}


_SYSTEM: dict[int, tuple[str, tuple[str, ...], Fields]] = {
    0: ("createAccount", ("source", "newAccount"), _create_account),
    1: ("assign", ("account",), _owner),
    2: ("transfer", ("source", "destination"), _u64_field("lamports")),
    3: ("createAccountWithSeed", ("source", "newAccount"), _create_account_with_seed),
    4: ("advanceNonce", ("nonceAccount", "recentBlockhashesSysvar", "nonceAuthority"), _nothing),
    5: (
        "withdrawFromNonce",
        ("nonceAccount", "destination", "recentBlockhashesSysvar", "rentSysvar", "nonceAuthority"),
        _u64_field("lamports"),
    ),
    6: (
        "initializeNonce",
        ("nonceAccount", "recentBlockhashesSysvar", "rentSysvar"),
        lambda data: {"nonceAuthority": _pubkey(data)},
    ),
    7: ("authorizeNonce", ("nonceAccount", "nonceAuthority"), lambda data: {"newAuthorized": _pubkey(data)}),
    8: ("allocate", ("account",), _u64_field("space")),
    9: ("allocateWithSeed", ("account",), _allocate_with_seed),
    10: ("assignWithSeed", ("account",), _assign_with_seed),
    11: ("transferWithSeed", ("source", "sourceBase", "destination"), _transfer_with_seed),
    12: ("upgradeNonce", ("nonceAccount",), _nothing),
}


def _system(data: bytes, accounts: list[str]) -> Info:
    (number,) = struct.unpack_from("<I", data)
    if number not in _SYSTEM:
        raise NotParsable
    kind, names, fields = _SYSTEM[number]
    return {"type": kind, "info": _named(names, accounts) | fields(data[4:])}


# Token programs: one byte, then the arguments.


def _optional_authority(name: str, data: bytes) -> Info:
    return {name: _pubkey(data[1:])} if data[0] == 1 else {}


def _initialize_mint(data: bytes) -> Info:
    return {"decimals": data[0], "mintAuthority": _pubkey(data[1:])} | _optional_authority("freezeAuthority", data[33:])


def _token_amount(data: bytes) -> Info:
    amount, decimals = struct.unpack_from("<QB", data)
    return {"tokenAmount": ui_amount(amount, decimals)}


_AMOUNT = _u64_field("amount", text=True)

# Number: name, accounts, arguments, and the name of the authority that follows the accounts (with what a
# multisignature authority is called: the same, behind "multisig").
_TOKEN: dict[int, tuple[str, tuple[str, ...], Fields, str | None]] = {
    0: ("initializeMint", ("mint", "rentSysvar"), _initialize_mint, None),
    1: ("initializeAccount", ("account", "mint", "owner", "rentSysvar"), _nothing, None),
    3: ("transfer", ("source", "destination"), _AMOUNT, "authority"),
    4: ("approve", ("source", "delegate"), _AMOUNT, "owner"),
    5: ("revoke", ("source",), _nothing, "owner"),
    7: ("mintTo", ("mint", "account"), _AMOUNT, "mintAuthority"),
    8: ("burn", ("account", "mint"), _AMOUNT, "authority"),
    9: ("closeAccount", ("account", "destination"), _nothing, "owner"),
    10: ("freezeAccount", ("account", "mint"), _nothing, "freezeAuthority"),
    11: ("thawAccount", ("account", "mint"), _nothing, "freezeAuthority"),
    12: ("transferChecked", ("source", "mint", "destination"), _token_amount, "authority"),
    13: ("approveChecked", ("source", "mint", "delegate"), _token_amount, "owner"),
    14: ("mintToChecked", ("mint", "account"), _token_amount, "mintAuthority"),
    15: ("burnChecked", ("account", "mint"), _token_amount, "authority"),
    16: ("initializeAccount2", ("account", "mint", "rentSysvar"), _owner, None),
    17: ("syncNative", ("account",), _nothing, None),
    18: ("initializeAccount3", ("account", "mint"), _owner, None),
    20: ("initializeMint2", ("mint",), _initialize_mint, None),
    22: ("initializeImmutableOwner", ("account",), _nothing, None),
}

_SET_AUTHORITY = 6
_AUTHORITY_TYPES = (
    ("mintTokens", "mint"),
    ("freezeAccount", "mint"),
    ("accountOwner", "account"),
    ("closeAccount", "account"),
)


def _token(data: bytes, accounts: list[str]) -> Info:
    number = data[0]
    if number == _SET_AUTHORITY:
        kind, owned = _AUTHORITY_TYPES[data[1]]
        new_authority = _pubkey(data[3:]) if data[2] == 1 else None
        info = _named((owned,), accounts) | {"authorityType": kind, "newAuthority": new_authority}
        return {"type": "setAuthority", "info": info | _authority("authority", accounts[1:])}
    if number not in _TOKEN:
        raise NotParsable
    kind, names, fields, authority = _TOKEN[number]
    info = _named(names, accounts) | fields(data[1:])
    if authority is not None:
        info |= _authority(authority, accounts[len(names) :])
    return {"type": kind, "info": info}


def _authority(name: str, accounts: list[str]) -> Info:
    """The authority, or the multisignature account and those who signed for it."""
    if not accounts:
        raise NotParsable
    if len(accounts) == 1:
        return {name: accounts[0]}
    return {f"multisig{name[0].upper()}{name[1:]}": accounts[0], "signers": accounts[1:]}


_ASSOCIATED = ("source", "account", "wallet", "mint", "systemProgram", "tokenProgram")


def _associated_token(data: bytes, accounts: list[str]) -> Info:
    number = data[0] if data else 0
    if number not in (0, 1):
        raise NotParsable
    return {"type": "createIdempotent" if number else "create", "info": _named(_ASSOCIATED, accounts)}
