"""Request parameters: their shapes as typed structs, and the checks every method shares. All failures are -32602,
worded as a Solana node words them where clients are known to read the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.signature import Signature

from capstan.devnet.solana.account_json import AccountEncoding, DataSlice
from capstan.devnet.solana.binary import base58_decode, base64_decode
from capstan.devnet.solana.errors import invalid_params, min_context_slot_not_reached
from capstan.devnet.solana.ledger import Ledger
from capstan.devnet.solana.records import Bank, Commitment
from capstan.devnet.solana.tokens import decode_account
from capstan.devnet.solana.transaction_json import TransactionDetails, TransactionEncoding

U8 = Annotated[int, msgspec.Meta(ge=0, le=2**8 - 1)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
"""The upper bound is checked by `convert`: msgspec takes bounds only up to the signed 64-bit range."""

U64_MAX = 2**64 - 1

MAX_FILTERS = 4
MAX_MEMCMP_BYTES = 128


class _Config(msgspec.Struct, frozen=True, rename="camel"):
    """Unknown keys are ignored, as the real node ignores them."""


class CommitmentConfig(_Config, frozen=True):
    commitment: Commitment | None = None


class ContextConfig(CommitmentConfig, frozen=True):
    min_context_slot: U64 | None = None


class AccountConfig(ContextConfig, frozen=True):
    encoding: AccountEncoding | None = None
    data_slice: DataSlice | None = None


class Memcmp(_Config, frozen=True):
    offset: U64
    bytes: str | list[U8]
    encoding: str | None = None


class ProgramFilter(_Config, frozen=True):
    """Either an exact data length, or bytes at an offset."""

    data_size: U64 | None = None
    memcmp: Memcmp | None = None


class ProgramAccountsConfig(AccountConfig, frozen=True):
    filters: list[ProgramFilter | Literal["tokenAccountState"]] | None = None
    with_context: bool | None = None
    sort_results: bool | None = None


class BlockConfig(CommitmentConfig, frozen=True):
    encoding: TransactionEncoding | None = None
    transaction_details: TransactionDetails | None = None
    rewards: bool | None = None
    max_supported_transaction_version: U8 | None = None


class TransactionConfig(CommitmentConfig, frozen=True):
    encoding: TransactionEncoding | None = None
    max_supported_transaction_version: U8 | None = None


class SignaturesConfig(ContextConfig, frozen=True):
    before: str | None = None
    until: str | None = None
    limit: U64 | None = None


class StatusConfig(_Config, frozen=True):
    search_transaction_history: bool = False


class SupplyConfig(CommitmentConfig, frozen=True):
    exclude_non_circulating_accounts_list: bool = False


class AirdropConfig(CommitmentConfig, frozen=True):
    recent_blockhash: str | None = None


class SendConfig(_Config, frozen=True):
    skip_preflight: bool = False
    preflight_commitment: Commitment | None = None
    encoding: TransactionEncoding | None = None
    max_retries: U64 | None = None
    min_context_slot: U64 | None = None


class SimulatedAccounts(_Config, frozen=True):
    addresses: list[str]
    encoding: AccountEncoding | None = None


class SimulateConfig(ContextConfig, frozen=True):
    sig_verify: bool = False
    replace_recent_blockhash: bool = False
    encoding: TransactionEncoding | None = None
    accounts: SimulatedAccounts | None = None
    inner_instructions: bool = False


class TokenFilter(_Config, frozen=True):
    mint: str | None = None
    program_id: str | None = None


class SignatureSubscribeConfig(CommitmentConfig, frozen=True):
    enable_received_notification: bool | None = None


class Mentions(_Config, frozen=True):
    mentions: list[str]


def read(params: Any, *types: Any, required: int) -> list[Any]:
    """The positional parameters, converted. Missing optional ones are None."""
    if params is None:
        params = []
    if not isinstance(params, list):
        raise invalid_params("Invalid params: invalid type: map, expected a sequence.")
    if len(params) < required:
        raise invalid_params(f"`params` should have at least {required} argument(s)")
    if len(params) > len(types):
        raise invalid_params(f"Invalid parameters: Expected from {required} to {len(types)} parameters.")
    values: list[Any] = []
    for index, kind in enumerate(types):
        value = params[index] if index < len(params) else None
        expected = kind if index < required else kind | None
        values.append(convert(value, expected))
    return values


def convert(value: Any, kind: Any) -> Any:
    if isinstance(value, int) and value > U64_MAX:
        raise invalid_params(f"Invalid params: invalid value: integer `{value}`, expected u64.")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise invalid_params(f"Invalid params: {error}.") from error


def pubkey(text: str) -> Pubkey:
    try:
        return Pubkey.from_string(text)
    except ValueError as error:
        raise invalid_params(f"Invalid param: {_parse_reason(error)}") from error


def pubkeys(texts: Sequence[str], limit: int) -> list[Pubkey]:
    if len(texts) > limit:
        raise invalid_params(f"Too many inputs provided; max {limit}")
    return [pubkey(text) for text in texts]


def signature(text: str) -> Signature:
    try:
        return Signature.from_string(text)
    except ValueError as error:
        raise invalid_params(f"Invalid param: {_parse_reason(error)}") from error


def blockhash(text: str, prefix: str = "Invalid param: ") -> Hash:
    try:
        return Hash.from_string(text)
    except Exception as error:  # solders raises its own ParseHashError, which is a bare Exception
        raise invalid_params(f"{prefix}{_parse_reason(error)}") from error


def _parse_reason(error: Exception) -> str:
    """The name Agave gives the failure."""
    return "WrongSize" if "wrong size" in str(error) else "Invalid"


def bank_for(ledger: Ledger, config: CommitmentConfig | None) -> Bank:
    """The view a request asks for; finalized when it does not say."""
    commitment = (config.commitment if config else None) or Commitment.FINALIZED
    bank = ledger.bank(commitment)
    minimum = config.min_context_slot if isinstance(config, ContextConfig) else None
    if minimum is not None and bank.slot < minimum:
        raise min_context_slot_not_reached(bank.slot)
    return bank


def at_least_confirmed(config: CommitmentConfig | None) -> Commitment:
    commitment = (config.commitment if config else None) or Commitment.FINALIZED
    if commitment is Commitment.PROCESSED:
        raise invalid_params("Method does not support commitment below `confirmed`")
    return commitment


AccountFilter = Callable[[bytes], bool]
"""Says whether an account with this data passes."""


def compile_filters(filters: Sequence[ProgramFilter | str] | None) -> list[AccountFilter]:
    filters = filters or []
    if len(filters) > MAX_FILTERS:
        raise invalid_params(f"Too many filters provided; max {MAX_FILTERS}")
    return [_compile_filter(item) for item in filters]


def _compile_filter(item: ProgramFilter | str) -> AccountFilter:
    if isinstance(item, str):
        return lambda data: decode_account(data) is not None
    if item.data_size is not None:
        size = item.data_size
        return lambda data: len(data) == size
    if item.memcmp is None:
        raise invalid_params("Invalid params: a filter is either `dataSize` or `memcmp`.")
    offset, needle = item.memcmp.offset, _memcmp_bytes(item.memcmp)
    return lambda data: data[offset : offset + len(needle)] == needle


def _memcmp_bytes(memcmp: Memcmp) -> bytes:
    try:
        if isinstance(memcmp.bytes, list):
            needle = bytes(memcmp.bytes)
        elif memcmp.encoding == "base64":
            needle = base64_decode(memcmp.bytes)
        else:
            needle = base58_decode(memcmp.bytes)
    except ValueError as error:
        raise invalid_params(f"Invalid param: {error}") from error
    if len(needle) > MAX_MEMCMP_BYTES:
        raise invalid_params("Invalid param: DataTooLarge")
    return needle
