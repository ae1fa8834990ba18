"""Accounts as JSON (`UiAccount`): base58, base64, base64+zstd, and jsonParsed for the state this node can read.

jsonParsed knows SPL tokens, nonces, upgradeable programs, lookup tables and the clock. For everything else it gives
base64, as a Solana node does when it has no parser.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from solders.account import Account
from solders.clock import Clock
from solders.pubkey import Pubkey
from solders.sysvar import CLOCK

from capstan.devnet.solana import tokens
from capstan.devnet.solana.binary import base58_encode, base64_encode, zstd_frame
from capstan.devnet.solana.errors import invalid_request
from capstan.devnet.solana.messages import (
    LOOKUP_TABLE_HEADER,
    NONCE_LENGTH,
    AccountReader,
    lookup_table_addresses,
)
from capstan.devnet.solana.programs import ADDRESS_LOOKUP_TABLE, SYSTEM, UPGRADEABLE_LOADER

MAX_BASE58_BYTES = 128

_PROGRAM_STATE = 2
_PROGRAM_DATA_STATE = 3
_PROGRAM_DATA_HEADER = 45


class AccountEncoding(StrEnum):
    BINARY = "binary"
    BASE58 = "base58"
    BASE64 = "base64"
    BASE64_ZSTD = "base64+zstd"
    JSON_PARSED = "jsonParsed"


class DataSlice(msgspec.Struct, frozen=True):
    offset: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[int, msgspec.Meta(ge=0)]

    def cut(self, data: bytes) -> bytes:
        return data[self.offset : self.offset + self.length]


def encode_account(
    address: Pubkey,
    account: Account,
    encoding: AccountEncoding,
    data_slice: DataSlice | None,
    read: AccountReader,
    *,
    refuse_long_base58: bool = True,
) -> dict[str, Any]:
    """`read` looks up other accounts of the same state; a token account's decimals are in its mint.

    A reply refuses data too long for base58; a notification cannot, and says so in place of the data.
    """
    data = _parse(address, account, read) if encoding is AccountEncoding.JSON_PARSED else None
    return {
        "lamports": account.lamports,
        "data": _encode_data(account.data, encoding, data_slice, refuse_long_base58) if data is None else data,
        "owner": str(account.owner),
        "executable": account.executable,
        "rentEpoch": account.rent_epoch,
        "space": len(account.data),
    }


def _encode_data(
    whole: bytes, encoding: AccountEncoding, data_slice: DataSlice | None, refuse_long_base58: bool
) -> str | list[str]:
    data = whole if data_slice is None else data_slice.cut(whole)
    if encoding in (AccountEncoding.BINARY, AccountEncoding.BASE58):
        text = _base58(data, refuse_long_base58)
        return text if encoding is AccountEncoding.BINARY else [text, "base58"]
    if encoding is AccountEncoding.BASE64_ZSTD:
        return [base64_encode(zstd_frame(data)), "base64+zstd"]
    return [base64_encode(data), "base64"]


def _base58(data: bytes, refuse_long: bool) -> str:
    if len(data) <= MAX_BASE58_BYTES:
        return base58_encode(data)
    if not refuse_long:
        return "error: data too large for bs58 encoding"
    raise invalid_request(
        f"Encoded binary (base 58) data should be less than {MAX_BASE58_BYTES} bytes, please use Base64 encoding."
    )


def _parse(address: Pubkey, account: Account, read: AccountReader) -> dict[str, Any] | None:
    data = account.data
    if tokens.is_token_program(account.owner):
        return tokens.parse(account.owner, data, read)
    program, parsed = None, None
    if address == CLOCK:
        program, parsed = "sysvar", {"type": "clock", "info": _clock(data)}
    elif account.owner == SYSTEM and len(data) == NONCE_LENGTH:
        program, parsed = "nonce", _nonce(data)
    elif account.owner == UPGRADEABLE_LOADER:
        program, parsed = "bpf-upgradeable-loader", _upgradeable_program(data)
    elif account.owner == ADDRESS_LOOKUP_TABLE and len(data) >= LOOKUP_TABLE_HEADER:
        program, parsed = "address-lookup-table", {"type": "lookupTable", "info": _lookup_table(data)}
    return None if parsed is None else {"program": program, "parsed": parsed, "space": len(data)}


def _u32(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "little")


def _u64(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")


def _clock(data: bytes) -> dict[str, Any]:
    clock = Clock.from_bytes(data)
    return {
        "slot": clock.slot,
        "epoch": clock.epoch,
        "epochStartTimestamp": clock.epoch_start_timestamp,
        "leaderScheduleEpoch": clock.leader_schedule_epoch,
        "unixTimestamp": clock.unix_timestamp,
    }


def _nonce(data: bytes) -> dict[str, Any]:
    if _u32(data, 4) != 1:
        return {"type": "uninitialized"}
    return {
        "type": "initialized",
        "info": {
            "authority": str(Pubkey(data[8:40])),
            "blockhash": str(Pubkey(data[40:72])),  # same text form as a hash: base58 of 32 bytes
            "feeCalculator": {"lamportsPerSignature": str(_u64(data, 72))},
        },
    }


def _upgradeable_program(data: bytes) -> dict[str, Any] | None:
    state = _u32(data, 0) if len(data) >= 4 else None
    if state == _PROGRAM_STATE and len(data) >= 36:
        return {"type": "program", "info": {"programData": str(Pubkey(data[4:36]))}}
    if state == _PROGRAM_DATA_STATE and len(data) >= _PROGRAM_DATA_HEADER:
        authority = str(Pubkey(data[13:45])) if data[12] == 1 else None
        code = [base64_encode(data[_PROGRAM_DATA_HEADER:]), "base64"]
        return {"type": "programData", "info": {"slot": _u64(data, 4), "authority": authority, "data": code}}
    return None


def _lookup_table(data: bytes) -> dict[str, Any]:
    info: dict[str, Any] = {
        "deactivationSlot": str(_u64(data, 4)),
        "lastExtendedSlot": str(_u64(data, 12)),
        "lastExtendedSlotStartIndex": data[20],
        "addresses": [str(address) for address in lookup_table_addresses(data)],
    }
    if data[21] == 1:
        info["authority"] = str(Pubkey(data[22:54]))
    return info
