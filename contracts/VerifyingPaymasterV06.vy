# pragma version 0.4.3
# pragma evm-version cancun
"""
@title VerifyingPaymasterV06
@license Apache-2.0
@notice Pays for the operations of EntryPoint 0.6 that its signer has signed. Data layout and hash are those of the
        VerifyingPaymaster sample of eth-infinitism/account-abstraction 0.6:
        paymasterAndData = paymaster (20) | abi.encode(uint48 validUntil, uint48 validAfter) (64) | signature (65).
        It counts operations per sender in its storage, so under ERC-7562 it must be staked.
        Limits: initCode and signature 4,096 bytes each, callData 8,192 bytes; more reverts.
"""

import verifying_paymaster

initializes: verifying_paymaster

exports: (
    verifying_paymaster.entryPoint,
    verifying_paymaster.owner,
    verifying_paymaster.verifyingSigner,
    verifying_paymaster.transferOwnership,
    verifying_paymaster.setSigner,
    verifying_paymaster.deposit,
    verifying_paymaster.getDeposit,
    verifying_paymaster.withdrawTo,
    verifying_paymaster.addStake,
    verifying_paymaster.unlockStake,
    verifying_paymaster.withdrawStake,
)

struct UserOperation:
    sender: address
    nonce: uint256
    initCode: Bytes[4096]
    callData: Bytes[8192]
    callGasLimit: uint256
    verificationGasLimit: uint256
    preVerificationGas: uint256
    maxFeePerGas: uint256
    maxPriorityFeePerGas: uint256
    paymasterAndData: Bytes[256]
    signature: Bytes[4096]

TIMES_OFFSET: constant(uint256) = 20
# Eleven words: the fixed part of an ABI-encoded UserOperation.
HEAD_LENGTH: constant(uint256) = 352

senderNonce: public(HashMap[address, uint256])


@deploy
def __init__(entry_point: address, signer: address, owner: address):
    verifying_paymaster.__init__(entry_point, signer, owner)


@external
@view
def getHash(userOp: UserOperation, validUntil: uint48, validAfter: uint48) -> bytes32:
    """
    @notice What the signer signs (with the EIP-191 prefix). Only the length of paymasterAndData enters it.
    """
    return self._hash(userOp, validUntil, validAfter)


@external
def validatePaymasterUserOp(userOp: UserOperation, userOpHash: bytes32, maxCost: uint256) -> (Bytes[32], uint256):
    verifying_paymaster._check_entry_point()
    valid_until: uint48 = 0
    valid_after: uint48 = 0
    valid_until, valid_after = verifying_paymaster._times(userOp.paymasterAndData, TIMES_OFFSET)
    digest: bytes32 = self._hash(userOp, valid_until, valid_after)
    # Counted before the signature is checked, as in the original: an operation is never paid for twice.
    self.senderNonce[userOp.sender] += 1
    # No context: postOp is not called.
    return b"", verifying_paymaster._validation_data(
        digest, userOp.paymasterAndData, TIMES_OFFSET, valid_until, valid_after
    )


@internal
@view
def _hash(user_operation: UserOperation, valid_until: uint48, valid_after: uint48) -> bytes32:
    # The original hashes the calldata of the operation up to paymasterAndData. The entry point sends canonical ABI
    # encoding, so encoding again gives the same bytes.
    packed_length: uint256 = (
        HEAD_LENGTH
        + 32 + self._padded(len(user_operation.initCode))
        + 32 + self._padded(len(user_operation.callData))
    )
    return keccak256(
        abi_encode(
            slice(abi_encode(user_operation, ensure_tuple=False), 0, packed_length),
            chain.id,
            self,
            self.senderNonce[user_operation.sender],
            valid_until,
            valid_after,
        )
    )


@internal
@pure
def _padded(length: uint256) -> uint256:
    return (length + 31) // 32 * 32
