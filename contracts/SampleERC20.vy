# pragma version 0.4.3
# pragma evm-version cancun
"""
@title SampleERC20
@license Apache-2.0
@notice A complete ERC-20 token for the development chain. Anyone may mint, so it has no value and must never be
        deployed where it could be taken for a real one.
"""

from ethereum.ercs import IERC20
from ethereum.ercs import IERC20Detailed

implements: IERC20
implements: IERC20Detailed

event Transfer:
    sender: indexed(address)
    receiver: indexed(address)
    value: uint256

event Approval:
    owner: indexed(address)
    spender: indexed(address)
    value: uint256

name: public(String[64])
symbol: public(String[16])
decimals: public(uint8)
totalSupply: public(uint256)
balanceOf: public(HashMap[address, uint256])
allowance: public(HashMap[address, HashMap[address, uint256]])


@deploy
def __init__(name_: String[64], symbol_: String[16], decimals_: uint8):
    self.name = name_
    self.symbol = symbol_
    self.decimals = decimals_


@external
def transfer(to: address, amount: uint256) -> bool:
    self._transfer(msg.sender, to, amount)
    return True


@external
def transferFrom(owner: address, to: address, amount: uint256) -> bool:
    self._spend_allowance(owner, amount)
    self._transfer(owner, to, amount)
    return True


@external
def approve(spender: address, amount: uint256) -> bool:
    self.allowance[msg.sender][spender] = amount
    log Approval(owner=msg.sender, spender=spender, value=amount)
    return True


@external
def mint(to: address, amount: uint256):
    """
    @notice Create tokens out of nothing, for anyone.
    """
    assert to != empty(address), "ERC20: mint to the zero address"
    self.totalSupply += amount
    # The total did not overflow, so neither can one balance.
    self.balanceOf[to] = unsafe_add(self.balanceOf[to], amount)
    log Transfer(sender=empty(address), receiver=to, value=amount)


@external
def burn(amount: uint256):
    self._burn(msg.sender, amount)


@external
def burnFrom(owner: address, amount: uint256):
    self._spend_allowance(owner, amount)
    self._burn(owner, amount)


@internal
def _transfer(owner: address, to: address, amount: uint256):
    assert to != empty(address), "ERC20: transfer to the zero address"
    assert self.balanceOf[owner] >= amount, "ERC20: transfer amount exceeds balance"
    self.balanceOf[owner] = unsafe_sub(self.balanceOf[owner], amount)
    self.balanceOf[to] = unsafe_add(self.balanceOf[to], amount)
    log Transfer(sender=owner, receiver=to, value=amount)


@internal
def _burn(owner: address, amount: uint256):
    assert self.balanceOf[owner] >= amount, "ERC20: burn amount exceeds balance"
    self.balanceOf[owner] = unsafe_sub(self.balanceOf[owner], amount)
    self.totalSupply = unsafe_sub(self.totalSupply, amount)
    log Transfer(sender=owner, receiver=empty(address), value=amount)


@internal
def _spend_allowance(owner: address, amount: uint256):
    allowed: uint256 = self.allowance[owner][msg.sender]
    # An allowance of 2**256 - 1 never runs out, as in most tokens.
    if allowed == max_value(uint256):
        return
    assert allowed >= amount, "ERC20: insufficient allowance"
    self.allowance[owner][msg.sender] = unsafe_sub(allowed, amount)
