"""What is found on the development chain after it was set up.

`deploy_all` returns a `Deployment`; the command line copies its fields into `dev.json`. All addresses are EIP-55
checksummed. The private keys are worthless test keys that everyone may know.
"""

from __future__ import annotations

import msgspec


class DevAccount(msgspec.Struct, frozen=True):
    """A funded account of the development chain."""

    address: str
    private_key: str


class SampleToken(msgspec.Struct, frozen=True):
    """A sample ERC-20. Anyone may mint; `minter_index` names an account that surely can."""

    address: str
    symbol: str
    decimals: int
    minter_index: int


class SampleCollection(msgspec.Struct, frozen=True):
    """A sample NFT collection, `ERC721` or `ERC1155`."""

    address: str
    standard: str


class PriceFeed(msgspec.Struct, frozen=True):
    """A price feed in US dollars. `token` is the ERC-20 it prices, or None for the native coin."""

    address: str
    description: str
    decimals: int
    token: str | None


class Deployment(msgspec.Struct, frozen=True):
    """Accounts and contracts of a development chain that is ready for use.

    `entry_points`, `factories` and `paymasters` are keyed by the entry point version: "0.6", "0.7", "0.8".
    `paymaster_owner` may withdraw and change the signer. `bundler_executors` are funded accounts nothing else uses.
    """

    chain_id: int
    accounts: tuple[DevAccount, ...]
    entry_points: dict[str, str]
    factories: dict[str, str]
    paymasters: dict[str, str]
    paymaster_signer: DevAccount
    paymaster_owner: DevAccount
    bundler_executors: tuple[DevAccount, ...]
    tokens: tuple[SampleToken, ...]
    nfts: tuple[SampleCollection, ...]
    price_feeds: tuple[PriceFeed, ...]
    multicall3: str
    deployment_proxy: str
