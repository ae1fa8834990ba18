"""The values of the transfer index: transfers, notices, subjects, and what its readers get.

Made by the decoder and the stores of this package, read by the token and NFT capabilities. Addresses and hashes are
bytes and ids are integers inside the index; whoever shows them writes them as text. Plain values, no input or output.
"""

import enum

import msgspec

ZERO_ADDRESS = bytes(20)


class Standard(enum.IntEnum):
    """The standard whose event told of a transfer."""

    ERC20 = 20
    ERC721 = 721
    ERC1155 = 1155


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """One movement of one token. An ERC-1155 batch is several, told apart by `position`.

    A range of ids that moved at once (ERC-2309) is one movement too, whatever its length; its amount is their number.
    """

    block_number: int
    log_index: int
    # The place in a batch; 0 for everything else.
    position: int
    standard: Standard
    contract: bytes
    # None for ERC-20.
    token_id: int | None
    sender: bytes
    receiver: bytes
    amount: int
    block_hash: bytes
    transaction_hash: bytes
    # Unix seconds; None where the node does not tell it with the log.
    timestamp: int | None

    @property
    def is_nft(self) -> bool:
        """Whether it is about an id rather than an amount alone."""
        return self.token_id is not None

    @property
    def last_token_id(self) -> int | None:
        """The last id of a range, which begins with `token_id`; None for everything else."""
        if self.token_id is None or self.amount == 1 or self.standard is not Standard.ERC721:
            return None
        return self.token_id + self.amount - 1


class NoticeKind(enum.IntEnum):
    """What a contract says has changed."""

    # The documents of some ids: ERC-4906, or `URI` of ERC-1155.
    IDS = 0
    # The document of the collection: ERC-7572.
    COLLECTION = 1
    # The code behind a proxy (ERC-1967), and with it anything that the contract says.
    CODE = 2


class Notice(msgspec.Struct, frozen=True, gc=False):
    """A contract says that something of it changed; `first` and `last` are the ids, where it is about ids."""

    contract: bytes
    first: int = 0
    last: int = 0
    kind: NoticeKind = NoticeKind.IDS


class SubjectKind(enum.IntEnum):
    """What a subject of the index is."""

    # Every transfer of the network.
    ALL = 0
    # The transfers from and to one address.
    HOLDER = 1
    # The NFT transfers of one contract.
    CONTRACT = 2


class Subject(msgspec.Struct, frozen=True):
    """What the index follows: everything, one holder, or one contract."""

    kind: SubjectKind
    address: bytes = b""

    def __str__(self) -> str:
        return "everything" if self.kind is SubjectKind.ALL else f"{self.kind.name.lower()} 0x{self.address.hex()}"


EVERYTHING = Subject(SubjectKind.ALL)


class Position(msgspec.Struct, frozen=True):
    """The block up to which the index has followed the chain."""

    number: int
    hash: bytes


class Coverage(msgspec.Struct, frozen=True):
    """How far an answer can be relied on."""

    # The block of which the answer speaks; None while the index has not seen a block yet.
    block: int | None
    # Whether the history before it is all there.
    complete: bool


class Holding(msgspec.Struct, frozen=True):
    """How much of one NFT id an address holds."""

    contract: bytes
    token_id: int
    standard: Standard
    owner: bytes
    amount: int


class Collection(msgspec.Struct, frozen=True):
    """Sums over one NFT contract."""

    # Addresses that hold at least one of its tokens.
    owners: int
    # Different ids that somebody holds; of ERC-721, all that were minted less all that were burned.
    ids: int
    # All that was minted less all that was burned, over all ids.
    supply: int
    # The standards whose transfers were seen.
    standards: tuple[Standard, ...]


class TransferPage(msgspec.Struct, frozen=True):
    """One page of transfers, newest first, and how many there are in all."""

    transfers: tuple[Transfer, ...]
    total: int
    coverage: Coverage


class HoldingPage(msgspec.Struct, frozen=True):
    """One page of holdings by contract and id, and how many there are in all."""

    holdings: tuple[Holding, ...]
    total: int
    coverage: Coverage
