# pragma version 0.4.3
# pragma evm-version cancun
"""
@title SampleERC721
@license Apache-2.0
@notice A complete ERC-721 collection with metadata for the development chain. Anyone may mint any free id.
        Even ids carry their metadata on chain as a data: URI. Odd ids point to IPFS, where nothing need be found.
"""

from ethereum.ercs import IERC165
from ethereum.ercs import IERC721

implements: IERC165
implements: IERC721

interface Receiver:
    def onERC721Received(operator: address, sender: address, id: uint256, data: Bytes[1024]) -> bytes4: nonpayable

event Transfer:
    sender: indexed(address)
    receiver: indexed(address)
    tokenId: indexed(uint256)

event Approval:
    owner: indexed(address)
    approved: indexed(address)
    tokenId: indexed(uint256)

event ApprovalForAll:
    owner: indexed(address)
    operator: indexed(address)
    approved: bool

INTERFACE_ERC165: constant(bytes4) = 0x01ffc9a7
INTERFACE_ERC721: constant(bytes4) = 0x80ac58cd
INTERFACE_ERC721_METADATA: constant(bytes4) = 0x5b5e139f
# onERC721Received(address,address,uint256,bytes)
RECEIVED: constant(bytes4) = 0x150b7a02

name: public(String[64])
symbol: public(String[16])
totalSupply: public(uint256)
isApprovedForAll: public(HashMap[address, HashMap[address, bool]])
owners: HashMap[uint256, address]
balances: HashMap[address, uint256]
approvals: HashMap[uint256, address]


@deploy
def __init__(name_: String[64], symbol_: String[16]):
    self.name = name_
    self.symbol = symbol_


@external
@view
def supportsInterface(interface_id: bytes4) -> bool:
    return interface_id in [INTERFACE_ERC165, INTERFACE_ERC721, INTERFACE_ERC721_METADATA]


@external
@view
def balanceOf(owner: address) -> uint256:
    assert owner != empty(address), "ERC721: the zero address owns nothing"
    return self.balances[owner]


@external
@view
def ownerOf(id: uint256) -> address:
    return self._owner(id)


@external
@view
def getApproved(id: uint256) -> address:
    self._owner(id)
    return self.approvals[id]


@external
@payable
def approve(to: address, id: uint256):
    owner: address = self._owner(id)
    assert msg.sender == owner or self.isApprovedForAll[owner][msg.sender], "ERC721: not owner nor operator"
    self.approvals[id] = to
    log Approval(owner=owner, approved=to, tokenId=id)


@external
def setApprovalForAll(operator: address, approved: bool):
    self.isApprovedForAll[msg.sender][operator] = approved
    log ApprovalForAll(owner=msg.sender, operator=operator, approved=approved)


@external
@payable
def transferFrom(owner: address, to: address, id: uint256):
    self._transfer(owner, to, id)


@external
@payable
def safeTransferFrom(owner: address, to: address, id: uint256, data: Bytes[1024] = b""):
    self._transfer(owner, to, id)
    if to.is_contract:
        answer: bytes4 = extcall Receiver(to).onERC721Received(msg.sender, owner, id, data)
        assert answer == RECEIVED, "ERC721: the receiver refused"


@external
def mint(to: address, id: uint256):
    """
    @notice Create a token with a free id, for anyone.
    """
    assert to != empty(address), "ERC721: mint to the zero address"
    assert self.owners[id] == empty(address), "ERC721: already minted"
    self.owners[id] = to
    self.balances[to] += 1
    self.totalSupply += 1
    log Transfer(sender=empty(address), receiver=to, tokenId=id)


@external
def burn(id: uint256):
    owner: address = self._owner(id)
    self._check_may_move(owner, id)
    self.approvals[id] = empty(address)
    self.owners[id] = empty(address)
    self.balances[owner] -= 1
    self.totalSupply -= 1
    log Transfer(sender=owner, receiver=empty(address), tokenId=id)


@external
@view
def tokenURI(id: uint256) -> String[1024]:
    self._owner(id)
    number: String[78] = uint2str(id)
    if id % 2 == 1:
        return concat("ipfs://bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354/", number, ".json")
    # No "#" and no "%" anywhere: they would change the meaning of the URI for strict readers.
    shade: uint256 = id % 200
    image: String[512] = concat(
        "data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 100 100'>",
        "<rect width='100' height='100' fill='rgb(",
        uint2str(shade * 53 % 200), ",", uint2str(shade * 97 % 200), ",", uint2str(shade * 151 % 200),
        ")'/><circle cx='50' cy='50' r='30' fill='white'/></svg>",
    )
    return concat(
        'data:application/json;utf8,{"name":"Capstan Sample ', number,
        '","description":"A sample token of the Capstan development chain.","image":"', image,
        '","attributes":[{"trait_type":"Storage","value":"on-chain"},{"trait_type":"Last digit","value":"',
        uint2str(id % 10), '"}]}',
    )


@internal
@view
def _owner(id: uint256) -> address:
    owner: address = self.owners[id]
    assert owner != empty(address), "ERC721: no such token"
    return owner


@internal
@view
def _check_may_move(owner: address, id: uint256):
    assert (
        msg.sender == owner or self.approvals[id] == msg.sender or self.isApprovedForAll[owner][msg.sender]
    ), "ERC721: not owner nor approved"


@internal
def _transfer(owner: address, to: address, id: uint256):
    assert self._owner(id) == owner, "ERC721: transfer from incorrect owner"
    assert to != empty(address), "ERC721: transfer to the zero address"
    self._check_may_move(owner, id)
    self.approvals[id] = empty(address)
    self.owners[id] = to
    self.balances[owner] -= 1
    self.balances[to] += 1
    log Transfer(sender=owner, receiver=to, tokenId=id)
