# pragma version 0.4.3
# pragma evm-version cancun
"""
@title SampleERC1155
@license Apache-2.0
@notice A complete ERC-1155 collection for the development chain. Anyone may mint any amount of any id.
        Batches hold at most 64 items. The metadata URI points to IPFS, where nothing need be found.
"""

from ethereum.ercs import IERC165

implements: IERC165

interface Receiver:
    def onERC1155Received(
        operator: address, sender: address, id: uint256, amount: uint256, data: Bytes[1024]
    ) -> bytes4: nonpayable
    def onERC1155BatchReceived(
        operator: address,
        sender: address,
        ids: DynArray[uint256, 64],
        amounts: DynArray[uint256, 64],
        data: Bytes[1024],
    ) -> bytes4: nonpayable

event TransferSingle:
    operator: indexed(address)
    sender: indexed(address)
    receiver: indexed(address)
    id: uint256
    value: uint256

event TransferBatch:
    operator: indexed(address)
    sender: indexed(address)
    receiver: indexed(address)
    ids: DynArray[uint256, 64]
    values: DynArray[uint256, 64]

event ApprovalForAll:
    owner: indexed(address)
    operator: indexed(address)
    approved: bool

INTERFACE_ERC165: constant(bytes4) = 0x01ffc9a7
INTERFACE_ERC1155: constant(bytes4) = 0xd9b67a26
INTERFACE_ERC1155_METADATA_URI: constant(bytes4) = 0x0e89341c
# onERC1155Received(address,address,uint256,uint256,bytes)
RECEIVED: constant(bytes4) = 0xf23a6e61
# onERC1155BatchReceived(address,address,uint256[],uint256[],bytes)
BATCH_RECEIVED: constant(bytes4) = 0xbc197c81

name: public(String[64])
symbol: public(String[16])
totalSupply: public(HashMap[uint256, uint256])
isApprovedForAll: public(HashMap[address, HashMap[address, bool]])
balances: HashMap[uint256, HashMap[address, uint256]]


@deploy
def __init__(name_: String[64], symbol_: String[16]):
    self.name = name_
    self.symbol = symbol_


@external
@view
def supportsInterface(interface_id: bytes4) -> bool:
    return interface_id in [INTERFACE_ERC165, INTERFACE_ERC1155, INTERFACE_ERC1155_METADATA_URI]


@external
@pure
def uri(id: uint256) -> String[128]:
    """
    @notice One URI for all ids; the reader puts the id, as 64 lower-case hex digits, in place of {id}.
    """
    return "ipfs://bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354/{id}.json"


@external
@view
def balanceOf(owner: address, id: uint256) -> uint256:
    return self.balances[id][owner]


@external
@view
def balanceOfBatch(owners: DynArray[address, 64], ids: DynArray[uint256, 64]) -> DynArray[uint256, 64]:
    assert len(owners) == len(ids), "ERC1155: owners and ids differ in length"
    amounts: DynArray[uint256, 64] = []
    for index: uint256 in range(len(owners), bound=64):
        amounts.append(self.balances[ids[index]][owners[index]])
    return amounts


@external
def setApprovalForAll(operator: address, approved: bool):
    self.isApprovedForAll[msg.sender][operator] = approved
    log ApprovalForAll(owner=msg.sender, operator=operator, approved=approved)


@external
def safeTransferFrom(owner: address, to: address, id: uint256, amount: uint256, data: Bytes[1024]):
    self._check_may_move(owner)
    self._move(owner, to, id, amount)
    log TransferSingle(operator=msg.sender, sender=owner, receiver=to, id=id, value=amount)
    self._check_receiver(owner, to, id, amount, data)


@external
def safeBatchTransferFrom(
    owner: address,
    to: address,
    ids: DynArray[uint256, 64],
    amounts: DynArray[uint256, 64],
    data: Bytes[1024],
):
    self._check_may_move(owner)
    assert len(ids) == len(amounts), "ERC1155: ids and amounts differ in length"
    for index: uint256 in range(len(ids), bound=64):
        self._move(owner, to, ids[index], amounts[index])
    log TransferBatch(operator=msg.sender, sender=owner, receiver=to, ids=ids, values=amounts)
    if to.is_contract:
        answer: bytes4 = extcall Receiver(to).onERC1155BatchReceived(msg.sender, owner, ids, amounts, data)
        assert answer == BATCH_RECEIVED, "ERC1155: the receiver refused"


@external
def mint(to: address, id: uint256, amount: uint256):
    """
    @notice Create tokens out of nothing, for anyone. A receiving contract is asked, as for a transfer.
    """
    assert to != empty(address), "ERC1155: mint to the zero address"
    self.totalSupply[id] += amount
    # The total did not overflow, so neither can one balance.
    self.balances[id][to] = unsafe_add(self.balances[id][to], amount)
    log TransferSingle(operator=msg.sender, sender=empty(address), receiver=to, id=id, value=amount)
    self._check_receiver(empty(address), to, id, amount, b"")


@external
def burn(owner: address, id: uint256, amount: uint256):
    self._check_may_move(owner)
    assert self.balances[id][owner] >= amount, "ERC1155: burn amount exceeds balance"
    self.balances[id][owner] = unsafe_sub(self.balances[id][owner], amount)
    self.totalSupply[id] = unsafe_sub(self.totalSupply[id], amount)
    log TransferSingle(operator=msg.sender, sender=owner, receiver=empty(address), id=id, value=amount)


@internal
@view
def _check_may_move(owner: address):
    assert msg.sender == owner or self.isApprovedForAll[owner][msg.sender], "ERC1155: not owner nor approved"


@internal
def _move(owner: address, to: address, id: uint256, amount: uint256):
    assert to != empty(address), "ERC1155: transfer to the zero address"
    assert self.balances[id][owner] >= amount, "ERC1155: insufficient balance for transfer"
    self.balances[id][owner] = unsafe_sub(self.balances[id][owner], amount)
    self.balances[id][to] = unsafe_add(self.balances[id][to], amount)


@internal
def _check_receiver(sender: address, to: address, id: uint256, amount: uint256, data: Bytes[1024]):
    if to.is_contract:
        answer: bytes4 = extcall Receiver(to).onERC1155Received(msg.sender, sender, id, amount, data)
        assert answer == RECEIVED, "ERC1155: the receiver refused"
