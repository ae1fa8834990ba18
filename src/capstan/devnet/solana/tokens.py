"""SPL token state, decoded by hand from its fixed layout: token accounts (165 bytes), mints (82 bytes), multisignature
accounts (355 bytes), and the type bytes and extension list Token-2022 appends to the first two.

Amounts stay integers. The one float, `uiAmount`, exists because the wire format asks for it; nothing uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from solders.account import Account
from solders.pubkey import Pubkey

from capstan.devnet.solana.programs import TOKEN_2022, TOKEN_PROGRAMS

ACCOUNT_LENGTH = 165
MINT_LENGTH = 82
MULTISIG_LENGTH = 355
MINT_OFFSET = 0
OWNER_OFFSET = 32
DELEGATE_OFFSET = 72

_TYPE_MINT = 1
_TYPE_ACCOUNT = 2
_STATES = ("uninitialized", "initialized", "frozen")
_U64_MAX = 2**64 - 1

# Extensions that carry no state. The others are listed as what they are to this node: present, not parsed.
_STATELESS_EXTENSIONS = {7: "immutableOwner", 9: "nonTransferable", 13: "nonTransferableAccount"}


@dataclass(frozen=True, slots=True)
class TokenAccount:
    mint: Pubkey
    owner: Pubkey
    amount: int
    delegate: Pubkey | None
    state: str
    native_reserve: int | None
    delegated_amount: int
    close_authority: Pubkey | None
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mint:
    mint_authority: Pubkey | None
    supply: int
    decimals: int
    freeze_authority: Pubkey | None
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Multisig:
    required: int
    valid: int
    signers: tuple[Pubkey, ...]


def is_token_program(address: Pubkey) -> bool:
    return address in TOKEN_PROGRAMS


def _u64(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "little")


def _optional_pubkey(data: bytes, offset: int) -> Pubkey | None:
    """A `COption<Pubkey>`: a 4-byte flag, then the key."""
    is_some = int.from_bytes(data[offset : offset + 4], "little") == 1
    return Pubkey(data[offset + 4 : offset + 36]) if is_some else None


def _has_type(data: bytes, kind: int) -> bool:
    """Whether Token-2022's type byte behind the base layout says `kind`."""
    return len(data) > ACCOUNT_LENGTH and len(data) != MULTISIG_LENGTH and data[ACCOUNT_LENGTH] == kind


def _extensions(data: bytes) -> tuple[str, ...]:
    names: list[str] = []
    position = ACCOUNT_LENGTH + 1
    while position + 4 <= len(data):
        kind = int.from_bytes(data[position : position + 2], "little")
        if kind == 0:
            break
        names.append(_STATELESS_EXTENSIONS.get(kind, "unparseableExtension"))
        position += 4 + int.from_bytes(data[position + 2 : position + 4], "little")
    return tuple(names)


def decode_account(data: bytes) -> TokenAccount | None:
    """The token account in `data`, or None when it is not an initialized one."""
    if len(data) != ACCOUNT_LENGTH and not _has_type(data, _TYPE_ACCOUNT):
        return None
    state = data[108]
    if state not in (1, 2):
        return None
    is_native = int.from_bytes(data[109:113], "little") == 1
    return TokenAccount(
        mint=Pubkey(data[0:32]),
        owner=Pubkey(data[32:64]),
        amount=_u64(data, 64),
        delegate=_optional_pubkey(data, 72),
        state=_STATES[state],
        native_reserve=_u64(data, 113) if is_native else None,
        delegated_amount=_u64(data, 121),
        close_authority=_optional_pubkey(data, 129),
        extensions=_extensions(data),
    )


def decode_mint(data: bytes) -> Mint | None:
    """The mint in `data`, or None when it is not an initialized one."""
    if len(data) != MINT_LENGTH and not _has_type(data, _TYPE_MINT):
        return None
    if data[45] != 1:
        return None
    return Mint(
        mint_authority=_optional_pubkey(data, 0),
        supply=_u64(data, 36),
        decimals=data[44],
        freeze_authority=_optional_pubkey(data, 46),
        extensions=_extensions(data) if len(data) > MINT_LENGTH else (),
    )


def decode_multisig(data: bytes) -> Multisig | None:
    if len(data) != MULTISIG_LENGTH or data[2] != 1:
        return None
    keys = [Pubkey(data[start : start + 32]) for start in range(3, MULTISIG_LENGTH, 32)]
    return Multisig(required=data[0], valid=data[1], signers=tuple(key for key in keys if key != Pubkey.default()))


def decimal_text(amount: int, decimals: int) -> str:
    """The amount in whole tokens, exact, without trailing zeros."""
    if decimals == 0:
        return str(amount)
    digits = str(amount).rjust(decimals + 1, "0")
    return f"{digits[:-decimals]}.{digits[-decimals:]}".rstrip("0").rstrip(".")


def ui_amount(amount: int, decimals: int) -> dict[str, Any]:
    """`UiTokenAmount`. The float is null where Solana's own arithmetic overflows (more than 19 decimals)."""
    scale = 10**decimals
    return {
        "uiAmount": amount / scale if scale <= _U64_MAX else None,
        "decimals": decimals,
        "amount": str(amount),
        "uiAmountString": decimal_text(amount, decimals),
    }


def parse(owner: Pubkey, data: bytes, read: Callable[[Pubkey], Account | None]) -> dict[str, Any] | None:
    """The `jsonParsed` form of token state, or None when it cannot be parsed (a token account whose mint is gone)."""
    if (account := decode_account(data)) is not None:
        decimals = mint_decimals(account.mint, read)
        if decimals is None:
            return None
        parsed = {"type": "account", "info": _account_json(account, decimals)}
    elif (mint := decode_mint(data)) is not None:
        parsed = {"type": "mint", "info": _mint_json(mint)}
    elif (multisig := decode_multisig(data)) is not None:
        parsed = {"type": "multisig", "info": _multisig_json(multisig)}
    else:
        return None
    program = "spl-token-2022" if owner == TOKEN_2022 else "spl-token"
    return {"program": program, "parsed": parsed, "space": len(data)}


def mint_decimals(mint: Pubkey, read: Callable[[Pubkey], Account | None]) -> int | None:
    account = read(mint)
    if account is None or not is_token_program(account.owner):
        return None
    decoded = decode_mint(account.data)
    return None if decoded is None else decoded.decimals


def _account_json(account: TokenAccount, decimals: int) -> dict[str, Any]:
    info: dict[str, Any] = {
        "mint": str(account.mint),
        "owner": str(account.owner),
        "tokenAmount": ui_amount(account.amount, decimals),
        "state": account.state,
        "isNative": account.native_reserve is not None,
    }
    if account.delegate is not None:
        info["delegate"] = str(account.delegate)
        info["delegatedAmount"] = ui_amount(account.delegated_amount, decimals)
    if account.native_reserve is not None:
        info["rentExemptReserve"] = ui_amount(account.native_reserve, decimals)
    if account.close_authority is not None:
        info["closeAuthority"] = str(account.close_authority)
    return info | _extensions_json(account.extensions)


def _mint_json(mint: Mint) -> dict[str, Any]:
    return {
        "mintAuthority": None if mint.mint_authority is None else str(mint.mint_authority),
        "supply": str(mint.supply),
        "decimals": mint.decimals,
        "isInitialized": True,
        "freezeAuthority": None if mint.freeze_authority is None else str(mint.freeze_authority),
    } | _extensions_json(mint.extensions)


def _multisig_json(multisig: Multisig) -> dict[str, Any]:
    return {
        "numRequiredSigners": multisig.required,
        "numValidSigners": multisig.valid,
        "isInitialized": True,
        "signers": [str(signer) for signer in multisig.signers],
    }


def _extensions_json(names: tuple[str, ...]) -> dict[str, Any]:
    return {"extensions": [{"extension": name} for name in names]} if names else {}


def token_balances(keys: Sequence[Pubkey], read: Callable[[Pubkey], Account | None]) -> list[dict[str, Any]]:
    """`UiTransactionTokenBalance` for every token account among a transaction's accounts."""
    balances: list[dict[str, Any]] = []
    for index, key in enumerate(keys):
        account = read(key)
        if account is None or not is_token_program(account.owner):
            continue
        token = decode_account(account.data)
        decimals = None if token is None else mint_decimals(token.mint, read)
        if token is None or decimals is None:
            continue
        balances.append(
            {
                "accountIndex": index,
                "mint": str(token.mint),
                "uiTokenAmount": ui_amount(token.amount, decimals),
                "owner": str(token.owner),
                "programId": str(account.owner),
            }
        )
    return balances
