# pragma version 0.4.3
"""
@title Calls whose gas is hard to foresee, for the tests of estimation.
@license Apache-2.0
"""

written: public(HashMap[uint256, uint256])
marks: public(uint256)
total: uint256


@external
def write(first: uint256, count: uint256):
    for each: uint256 in range(count, bound=1000):
        self.written[first + each] = 1


@external
def clear(first: uint256, count: uint256):
    """
    @notice Sets storage back to nothing: what is refunded at the end of the transaction is needed until then.
    """
    for each: uint256 in range(count, bound=1000):
        self.written[first + each] = 0


@external
def burn(rounds: uint256):
    found: bytes32 = empty(bytes32)
    for each: uint256 in range(rounds, bound=100_000):
        found = keccak256(found)
    self.total = convert(found, uint256)


@external
def nest(depth: uint256, first: uint256):
    """
    @notice Each call keeps a 64th of its gas from the next (EIP-150), so far more is needed than used.
    """
    if depth == 0:
        self.written[first] = 1
        return
    raw_call(self, abi_encode(depth - 1, first, method_id=method_id("nest(uint256,uint256)")))


@external
def swallow(first: uint256, count: uint256):
    """
    @notice Succeeds also when what it calls runs out of gas.
    """
    ignored: bool = raw_call(
        self,
        abi_encode(first, count, method_id=method_id("write(uint256,uint256)")),
        revert_on_failure=False,
    )
    self.marks += 1


@external
def uneven():
    """
    @notice Uses more or less with every limit it is given.
    """
    found: bytes32 = empty(bytes32)
    for each: uint256 in range(msg.gas % 50, bound=50):
        found = keccak256(found)
    self.marks += 1


@external
def fail():
    raise "not today"
