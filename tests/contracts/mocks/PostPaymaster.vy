# pragma version 0.4.3
"""
@title A paymaster that pays for everything and works in postOp, for entry points of every version.
@license Apache-2.0
"""

ENTRY_POINT: immutable(address)
CONTEXT: immutable(uint256)
written: public(HashMap[uint256, uint256])
posts: public(uint256)


@deploy
@payable
def __init__(entry_point: address, context: uint256):
    ENTRY_POINT = entry_point
    CONTEXT = context
    raw_call(entry_point, abi_encode(self, method_id=method_id("depositTo(address)")), value=msg.value)


@external
@payable
@raw_return
def __default__() -> Bytes[1024]:
    """
    @notice postOp of 0.6 or of later versions writes storage. What is left is validatePaymasterUserOp.
    """
    assert msg.sender == ENTRY_POINT
    called: Bytes[4] = slice(msg.data, 0, 4)
    if called == method_id("postOp(uint8,bytes,uint256)", output_type=Bytes[4]) or called == method_id(
        "postOp(uint8,bytes,uint256,uint256)", output_type=Bytes[4]
    ):
        self.posts += 1
        for each: uint256 in range(5):
            self.written[self.posts * 100 + each] = 1
        return b""
    context: Bytes[64] = b""
    if CONTEXT != 0:
        context = concat(convert(CONTEXT, bytes32), convert(CONTEXT, bytes32))
    return abi_encode(context, empty(uint256))
