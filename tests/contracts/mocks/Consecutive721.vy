# pragma version 0.4.3
# An ERC-721 contract that mints and moves whole ranges of ids (ERC-2309). For tests; anyone may mint.

event Transfer:
    sender: indexed(address)
    receiver: indexed(address)
    id: indexed(uint256)

event ConsecutiveTransfer:
    first: indexed(uint256)
    last: uint256
    sender: indexed(address)
    receiver: indexed(address)

owners: HashMap[uint256, address]
balanceOf: public(HashMap[address, uint256])
totalSupply: public(uint256)


@external
@view
def supportsInterface(interface_id: bytes4) -> bool:
    return interface_id in [0x01ffc9a7, 0x80ac58cd]


@external
@view
def ownerOf(id: uint256) -> address:
    assert self.owners[id] != empty(address)
    return self.owners[id]


@external
def mintRange(to: address, first: uint256, last: uint256):
    for place: uint256 in range(last - first + 1, bound=64):
        assert self.owners[first + place] == empty(address)
        self._set(empty(address), to, first + place)
    log ConsecutiveTransfer(first=first, last=last, sender=empty(address), receiver=to)


@external
def transferRange(to: address, first: uint256, last: uint256):
    for place: uint256 in range(last - first + 1, bound=64):
        assert self.owners[first + place] == msg.sender
        self._set(msg.sender, to, first + place)
    log ConsecutiveTransfer(first=first, last=last, sender=msg.sender, receiver=to)


@external
def transferFrom(owner: address, to: address, id: uint256):
    assert owner == msg.sender and self.owners[id] == owner
    self._set(owner, to, id)
    log Transfer(sender=owner, receiver=to, id=id)


@external
def burn(id: uint256):
    assert self.owners[id] == msg.sender
    self._set(msg.sender, empty(address), id)
    log Transfer(sender=msg.sender, receiver=empty(address), id=id)


def _set(owner: address, to: address, id: uint256):
    self.owners[id] = to
    if owner == empty(address):
        self.totalSupply += 1
    else:
        self.balanceOf[owner] -= 1
    if to == empty(address):
        self.totalSupply -= 1
    else:
        self.balanceOf[to] += 1
