# pragma version 0.4.3
# pragma evm-version cancun
"""
@title TokenReceiver
@notice A contract that takes NFTs, or refuses them with a wrong answer. Only for the tests of the sample contracts.
"""

accepts: bool
operator: public(address)
sender: public(address)
data: public(Bytes[1024])
ids: public(DynArray[uint256, 64])
amounts: public(DynArray[uint256, 64])


@deploy
def __init__(accepts_: bool):
    self.accepts = accepts_


@external
def onERC721Received(operator: address, sender: address, id: uint256, data: Bytes[1024]) -> bytes4:
    self._remember(operator, sender, [id], [1], data)
    return 0x150b7a02 if self.accepts else 0xffffffff


@external
def onERC1155Received(operator: address, sender: address, id: uint256, amount: uint256, data: Bytes[1024]) -> bytes4:
    self._remember(operator, sender, [id], [amount], data)
    return 0xf23a6e61 if self.accepts else 0xffffffff


@external
def onERC1155BatchReceived(
    operator: address,
    sender: address,
    ids: DynArray[uint256, 64],
    amounts: DynArray[uint256, 64],
    data: Bytes[1024],
) -> bytes4:
    self._remember(operator, sender, ids, amounts, data)
    return 0xbc197c81 if self.accepts else 0xffffffff


@internal
def _remember(
    operator: address,
    sender: address,
    ids: DynArray[uint256, 64],
    amounts: DynArray[uint256, 64],
    data: Bytes[1024],
):
    self.operator = operator
    self.sender = sender
    self.ids = ids
    self.amounts = amounts
    self.data = data
