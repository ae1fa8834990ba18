"""Which NFT standard a contract follows: what it says itself (ERC-165), else what its transfers show.

Called by the NFT services with the results of `questions`. Pure.
"""

from collections.abc import Sequence

from capstan.chain.calls.decoding import boolean
from capstan.chain.calls.models import ContractCall, call
from capstan.nfts.models import Standard

_ERC721 = bytes.fromhex("80ac58cd")
_ERC1155 = bytes.fromhex("d9b67a26")
# ERC-165: whoever says yes to this says yes to everything.
_NOTHING = bytes.fromhex("ffffffff")
QUESTIONS = 3


def questions(contract: bytes) -> list[ContractCall]:
    """What to ask the contract."""
    return [call(contract, "supportsInterface(bytes4)", interface) for interface in (_ERC721, _ERC1155, _NOTHING)]


def declared(results: Sequence[bytes | None]) -> Standard | None:
    """The standard that the contract declares. One that declares both counts as ERC721."""
    erc721, erc1155, everything = (boolean(result) for result in results)
    if everything:
        return None
    if erc721:
        return "ERC721"
    return "ERC1155" if erc1155 else None


def shown(standards: Sequence[Standard]) -> Standard | None:
    """The standard that transfers show, by the same rule."""
    if "ERC721" in standards:
        return "ERC721"
    return "ERC1155" if "ERC1155" in standards else None
