# pragma version 0.4.3
# pragma evm-version cancun
"""
@title verifying_paymaster
@license Apache-2.0
@notice What the verifying paymasters of all entry point versions share: the owner, the signer, the deposit and stake at
        the entry point, and the check of the signer's signature. A module, not a contract: VerifyingPaymasterV06 and
        VerifyingPaymasterV07 add the layout and the hash of their UserOperation.
"""

interface EntryPoint:
    def depositTo(account: address): payable
    def withdrawTo(withdrawAddress: address, withdrawAmount: uint256): nonpayable
    def addStake(unstakeDelaySec: uint32): payable
    def unlockStake(): nonpayable
    def withdrawStake(withdrawAddress: address): nonpayable
    def balanceOf(account: address) -> uint256: view

event OwnershipTransferred:
    previousOwner: indexed(address)
    newOwner: indexed(address)

event SignerChanged:
    previousSigner: indexed(address)
    newSigner: indexed(address)

# ERC-4337: the authorizer part of validationData that means "wrong signature".
SIG_VALIDATION_FAILED: constant(uint256) = 1
TIMES_LENGTH: constant(uint256) = 64
SIGNATURE_LENGTH: constant(uint256) = 65
# Half the order of secp256k1. A higher s is the malleable twin of a valid signature (EIP-2).
MAX_S: constant(bytes32) = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0

entryPoint: public(immutable(address))
owner: public(address)
verifyingSigner: public(address)


@deploy
def __init__(entry_point: address, signer: address, owner_: address):
    assert entry_point.is_contract, "VerifyingPaymaster: the entry point is not a contract"
    entryPoint = entry_point
    self._set_owner(owner_)
    self._set_signer(signer)


@external
def transferOwnership(newOwner: address):
    self._check_owner()
    self._set_owner(newOwner)


@external
def setSigner(newSigner: address):
    """
    @notice Replace the signer. What the former one signed stops being valid at once.
    """
    self._check_owner()
    self._set_signer(newSigner)


@external
@payable
def deposit():
    """
    @notice Add to the money that pays for operations. For anyone.
    """
    extcall EntryPoint(entryPoint).depositTo(self, value=msg.value)


@external
@view
def getDeposit() -> uint256:
    return staticcall EntryPoint(entryPoint).balanceOf(self)


@external
def withdrawTo(withdrawAddress: address, amount: uint256):
    self._check_owner()
    extcall EntryPoint(entryPoint).withdrawTo(withdrawAddress, amount)


@external
@payable
def addStake(unstakeDelaySec: uint32):
    self._check_owner()
    extcall EntryPoint(entryPoint).addStake(unstakeDelaySec, value=msg.value)


@external
def unlockStake():
    self._check_owner()
    extcall EntryPoint(entryPoint).unlockStake()


@external
def withdrawStake(withdrawAddress: address):
    self._check_owner()
    extcall EntryPoint(entryPoint).withdrawStake(withdrawAddress)


@internal
@view
def _check_entry_point():
    assert msg.sender == entryPoint, "Sender not EntryPoint"


@internal
@view
def _check_owner():
    assert msg.sender == self.owner, "Ownable: caller is not the owner"


@internal
def _set_owner(new_owner: address):
    assert new_owner != empty(address), "Ownable: new owner is the zero address"
    log OwnershipTransferred(previousOwner=self.owner, newOwner=new_owner)
    self.owner = new_owner


@internal
def _set_signer(new_signer: address):
    # ecrecover answers the zero address for a malformed signature, so that must never be the signer.
    assert new_signer != empty(address), "VerifyingPaymaster: signer is the zero address"
    log SignerChanged(previousSigner=self.verifyingSigner, newSigner=new_signer)
    self.verifyingSigner = new_signer


@internal
@pure
def _times(data: Bytes[256], offset: uint256) -> (uint48, uint48):
    """
    @notice validUntil and validAfter, ABI-encoded at this offset. Nothing but one signature may follow.
    """
    assert (
        len(data) == offset + TIMES_LENGTH + SIGNATURE_LENGTH
    ), "VerifyingPaymaster: invalid signature length in paymasterAndData"
    return abi_decode(slice(data, offset, TIMES_LENGTH), (uint48, uint48))


@internal
@view
def _validation_data(
    digest: bytes32, data: Bytes[256], offset: uint256, valid_until: uint48, valid_after: uint48
) -> uint256:
    """
    @notice ERC-4337 validationData: the two times, and 1 in the lowest bit when the signature is not our signer's.
    """
    packed: uint256 = (convert(valid_until, uint256) << 160) | (convert(valid_after, uint256) << 208)
    if self._is_signed(digest, data, offset + TIMES_LENGTH):
        return packed
    return packed | SIG_VALIDATION_FAILED


@internal
@view
def _is_signed(digest: bytes32, data: Bytes[256], offset: uint256) -> bool:
    r: uint256 = convert(extract32(data, offset), uint256)
    s: uint256 = convert(extract32(data, offset + 32), uint256)
    v: uint256 = convert(slice(data, offset + 64, 1), uint256)
    if s > convert(MAX_S, uint256):
        return False
    # EIP-191, personal_sign over 32 bytes.
    message: bytes32 = keccak256(concat(b"\x19Ethereum Signed Message:\n32", digest))
    return ecrecover(message, v, r, s) == self.verifyingSigner
