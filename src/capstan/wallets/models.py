"""Wallets as the service holds them, and as the API takes and shows them.

Made by the store and the service, encoded by the server. Addresses are bytes inside and EIP-55 text outside; the owner
is repeated as the request spelled it.
"""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from capstan.userops.versions import Version

Status = Literal["counterfactual", "deployed"]

ADDRESS_PATTERN = "^0x[0-9a-fA-F]{40}$"
# Nobody can sign for the zero address.
_OWNER_PATTERN = "^0x(?!0{40}$)[0-9a-fA-F]{40}$"


class Deployment(msgspec.Struct, frozen=True):
    """Where a wallet appeared on the chain."""

    block_number: int
    block_hash: bytes
    # The timestamp of the block.
    at: datetime
    # None when the block is certain and the transaction is not.
    transaction: bytes | None


class Wallet(msgspec.Struct, frozen=True, kw_only=True):
    """One wallet of one account."""

    id: str
    account_id: str
    chain: str
    # `chain/network`.
    network: str
    address: bytes
    owner: bytes
    # The owner as the request that created the wallet spelled it.
    owner_text: str
    salt: int
    factory: bytes
    entry_point: bytes
    version: Version
    created_at: datetime
    # The block at which it was created here, or last seen to be taken back: nothing was at the address then. None when
    # it was deployed already.
    absent_at: int | None
    deployed: bool
    # None while it is not deployed, and also when it is and nobody knows since when.
    deployment: Deployment | None


class CreateWallet(msgspec.Struct, frozen=True):
    """The body of `POST /v1/wallets/create`."""

    owner: Annotated[
        str,
        Meta(
            description="The account that owns the wallet, in any letter case.",
            examples=["0x70997970C51812dc3A010C7d01b50e0d17dc79C8"],
            pattern=_OWNER_PATTERN,
        ),
    ]
    chain: Annotated[str, Meta(description="The chain, such as `ethereum`.", examples=["ethereum"])]
    salt: Annotated[
        str | None,
        Meta(
            description="Makes a second wallet of the same owner. A decimal or 0x-hex number below 2^256 is that"
            " number; any other text stands for its keccak-256 hash. Without it the salt is 0.",
            examples=["0"],
        ),
    ] = None
    network: Annotated[
        str | None,
        Meta(description="The network of the chain; without it the key decides: main or default test network."),
    ] = None
    entry_point_version: Annotated[
        Version | None,
        Meta(description="The entry point that the wallet is for; without it the newest that the network has."),
    ] = None


class WalletView(msgspec.Struct, frozen=True, kw_only=True):
    """A wallet, as its creation tells it."""

    address: Annotated[str, Meta(description="The address, which is certain before anything is on the chain.")]
    owner: str
    chain: str
    network: str
    status: Annotated[Status, Meta(description="Whether the wallet has code on the chain.")]
    factory: Annotated[str, Meta(description="The contract that deploys it.")]
    salt: Annotated[str, Meta(description="The salt as the factory takes it, a 0x-hex number.")]
    entry_point: Annotated[str, Meta(description="The entry point that the wallet trusts.")]
    entry_point_version: Version
    factory_data: Annotated[
        str | None,
        Meta(
            description="`factoryData` of its first operation, beside `factory`, from version 0.7 on;"
            " null once it is deployed, for then an operation must have neither."
        ),
    ]
    init_code: Annotated[
        str, Meta(description="`initCode` of its first operation in version 0.6; `0x` once it is deployed.")
    ]
    created_at: str


class WalletDetail(WalletView, frozen=True, kw_only=True):
    """A wallet, as reading it tells it."""

    nonce: Annotated[int, Meta(description="The nonce of its next operation, in the lane with the key 0.")]
    deployed_at: Annotated[
        str | msgspec.UnsetType | None,
        Meta(description="The time of the block that deployed it; absent before, null when it cannot be found."),
    ] = msgspec.UNSET
    deploy_tx: Annotated[
        str | msgspec.UnsetType | None,
        Meta(description="The transaction that deployed it; absent before, null when it cannot be found."),
    ] = msgspec.UNSET


class WalletItem(msgspec.Struct, frozen=True):
    """A wallet in a list."""

    address: str
    owner: str
    chain: str
    network: str
    status: Status
    created_at: str


class WalletList(msgspec.Struct, frozen=True):
    """One page of the account's wallets, the newest first."""

    wallets: list[WalletItem]
    page: int
    total: Annotated[int, Meta(description="How many there are on all pages.")]
