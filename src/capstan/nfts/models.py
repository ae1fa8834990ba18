"""What the NFT paths answer, and the values behind it.

The field names are those of the API. Plain values; nothing here does input or output.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from capstan.index.models import Coverage

Standard = Literal["ERC721", "ERC1155"]
Count = Annotated[int, Meta(ge=0)]


class Trait(msgspec.Struct, frozen=True):
    """One attribute of an NFT."""

    trait_type: str
    value: Annotated[str, Meta(description="Always a string, also for numbers.")]


class NftMetadata(msgspec.Struct, frozen=True):
    """What is known of one NFT. A field is null when the contract or its document does not say, or cannot be read."""

    contract: Annotated[str, Meta(description="The contract as the request spelled it.")]
    token_id: Annotated[str, Meta(description="The id as a decimal number.", pattern="^[0-9]+$")]
    name: str | None
    description: str | None
    image_url: Annotated[str | None, Meta(description="As the document says; may be an `ipfs://` or `data:` address.")]
    image_gateway_url: Annotated[
        str | None, Meta(description="The same over HTTP; null when there is none, as for `data:` addresses.")
    ]
    standard: Standard
    owner: Annotated[
        str | None, Meta(description="The owner; of an ERC1155 id the only holder, null when there are several.")
    ]
    traits: list[Trait]


class NftCollection(msgspec.Struct, frozen=True):
    """What is known of a collection. A field is null when nobody says."""

    contract: Annotated[str, Meta(description="The contract as the request spelled it.")]
    chain: str
    name: str | None
    symbol: str | None
    standard: Standard
    total_supply: Annotated[
        Count | None, Meta(description="Tokens that exist; of an ERC1155 contract the ids that somebody holds.")
    ]
    num_owners: Annotated[
        Count | None, Meta(description="Addresses that hold one; null until the index knows every transfer.")
    ]
    floor_price_eth: Annotated[str | None, Meta(description="In the native coin; null when no source knows.")]
    floor_price_usd: Annotated[str | None, Meta(description="In US dollars; null when no source knows.")]
    banner_url: str | None
    image_url: str | None
    description: str | None


class OwnedNft(msgspec.Struct, frozen=True):
    """One NFT of an address."""

    contract: str
    token_id: Annotated[str, Meta(description="The id as a decimal number.", pattern="^[0-9]+$")]
    name: str | None
    collection_name: str | None
    image_url: str | None
    standard: Standard


class OwnedNfts(msgspec.Struct, frozen=True):
    """A page of the NFTs that an address owns, by contract and id."""

    address: Annotated[str, Meta(description="The address as the request spelled it.")]
    chain: str
    nfts: list[OwnedNft]
    page: Annotated[int, Meta(ge=1)]
    total: Annotated[int, Meta(ge=0, description="How many the address owns in all.")]


class Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """What could be used of a metadata document, of an NFT or of a collection."""

    name: str | None = None
    description: str | None = None
    image: str | None = None
    banner: str | None = None
    traits: tuple[Trait, ...] = ()


class OwnedToken(msgspec.Struct, frozen=True):
    """An id that an address holds."""

    contract: bytes
    token_id: int
    standard: Standard


class OwnedPage(msgspec.Struct, frozen=True):
    """Some of the ids that an address holds, and how many there are in all."""

    tokens: tuple[OwnedToken, ...]
    total: int
    coverage: Coverage


class CollectionSums(msgspec.Struct, frozen=True):
    """What transfers say of a contract: its holders, its ids, and the standards of its events."""

    owners: int
    ids: int
    standards: tuple[Standard, ...]
    coverage: Coverage


class Owners(msgspec.Struct, frozen=True):
    """Holders of one id, two at the most."""

    addresses: tuple[bytes, ...]
    coverage: Coverage
