"""The settings of the transfer index, token data, NFT data and prices.

A part of `model`, in a file of its own. The comments are in `defaults.toml`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from capstan.settings.section import Count, PositiveCount, Seconds, SecondsOrNone, Section, ShareOrNone, Text

PriceSourceName = Literal["fixed", "chainlink", "uniswap-v3", "uniswap-v2", "erc4626", "http"]
LongSeconds = Annotated[float, Meta(gt=0, le=366 * 86_400)]


class Index(Section, frozen=True):
    """The transfer index."""

    wait_seconds: SecondsOrNone
    jobs: Annotated[int, Meta(ge=1, le=1_000)]
    calls: Annotated[int, Meta(ge=1, le=100)]
    most_subjects: PositiveCount


class Tokens(Section, frozen=True):
    """Token balances and metadata."""

    token_lists: tuple[Text, ...]
    metadata_seconds: LongSeconds
    most_tokens: PositiveCount
    memory_bytes: Annotated[int, Meta(ge=1_048_576)]


class Nfts(Section, frozen=True):
    """NFT metadata."""

    ipfs_gateways: tuple[Text, ...]
    arweave_gateways: tuple[Text, ...]
    fetch_seconds: Seconds
    fetch_bytes: PositiveCount
    fetch_redirects: Annotated[int, Meta(ge=0, le=10)]
    metadata_seconds: LongSeconds
    retry_seconds: LongSeconds
    longest_retry_seconds: LongSeconds
    floor_listing_days: Annotated[int, Meta(ge=0, le=366)]
    floor_receipts: Annotated[int, Meta(ge=0, le=1000)]
    floor_http_url: str
    memory_bytes: Annotated[int, Meta(ge=1_048_576)]


class Prices(Section, frozen=True):
    """Prices in US dollars."""

    sources: tuple[PriceSourceName, ...]
    fixed: dict[Text, Text]
    feed_seconds: LongSeconds
    window_seconds: Annotated[int, Meta(ge=60, le=86_400)]
    least_liquidity_usd: Count
    trusted_vaults: tuple[Text, ...]
    http_url: str
    http_seconds: LongSeconds
    http_confidence: ShareOrNone
    refresh_seconds: SecondsOrNone
