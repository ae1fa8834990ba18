"""What the token paths answer, and the values behind it.

The field names are those of the API. Plain values; nothing here does input or output.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from capstan.index.models import Coverage

Decimals = Annotated[int, Meta(ge=0, le=78)]
Whole = Annotated[str, Meta(pattern="^[0-9]+$")]


class TokenBalance(msgspec.Struct, frozen=True):
    """What an address holds of one token."""

    contract: Annotated[str, Meta(description="The token contract.")]
    symbol: Annotated[str | None, Meta(description="Null when the contract does not say.")]
    name: Annotated[str | None, Meta(description="Null when the contract does not say.")]
    decimals: Annotated[Decimals | None, Meta(description="Null when the contract says none, or an absurd one.")]
    balance: Annotated[Whole, Meta(description="Whole number of the smallest unit.")]
    formatted_balance: Annotated[
        str | None, Meta(description="The balance as a decimal number of tokens; null without decimals.")
    ]
    usd_value: Annotated[str | None, Meta(description="The balance in US dollars; null when no source knows a price.")]
    logo_url: Annotated[str | None, Meta(description="From the token lists of the operator; null when in none.")]


class TokenBalances(msgspec.Struct, frozen=True):
    """A page of the tokens that an address holds: those with a balance, the most valuable first."""

    address: Annotated[str, Meta(description="The address as the request spelled it.")]
    chain: str
    tokens: list[TokenBalance]
    page: Annotated[int, Meta(ge=1)]
    total: Annotated[int, Meta(ge=0, description="How many tokens the address holds in all.")]


class TokenMetadata(msgspec.Struct, frozen=True):
    """What is known of a token."""

    contract: Annotated[str, Meta(description="The token contract as the request spelled it.")]
    chain: str
    name: Annotated[str | None, Meta(description="Null when the contract does not say.")]
    symbol: Annotated[str | None, Meta(description="Null when the contract does not say.")]
    decimals: Annotated[Decimals | None, Meta(description="Null when the contract says none, or an absurd one.")]
    total_supply: Annotated[Whole | None, Meta(description="Whole number of the smallest unit.")]
    formatted_total_supply: Annotated[
        str | None, Meta(description="The supply as a decimal number of tokens; null without decimals.")
    ]
    price_usd: Annotated[str | None, Meta(description="The price of one token in US dollars; null when unknown.")]
    market_cap_usd: Annotated[str | None, Meta(description="Price times total supply; null when unknown.")]
    logo_url: Annotated[str | None, Meta(description="From the token lists of the operator; null when in none.")]


class TokenFacts(msgspec.Struct, frozen=True):
    """What a token says of itself, and seldom changes."""

    name: str | None
    symbol: str | None
    decimals: int | None


class HeldTokens(msgspec.Struct, frozen=True):
    """The token contracts that may hold something for an address."""

    contracts: tuple[bytes, ...]
    coverage: Coverage
