# pragma version 0.4.3
# pragma evm-version cancun
"""
@title VerifyingPaymasterV07
@license Apache-2.0
@notice Pays for the operations of EntryPoint 0.7 or 0.8 that its signer has signed. Data layout and hash are those of
        the VerifyingPaymaster sample of eth-infinitism/account-abstraction 0.7:
        paymasterAndData = paymaster (20) | verification gas limit (16) | postOp gas limit (16)
                         | abi.encode(uint48 validUntil, uint48 validAfter) (64) | signature (65).
        It reads its signer from its storage, so under ERC-7562 it must be staked.
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

struct PackedUserOperation:
    sender: address
    nonce: uint256
    initCode: Bytes[4096]
    callData: Bytes[8192]
    accountGasLimits: bytes32
    preVerificationGas: uint256
    gasFees: bytes32
    paymasterAndData: Bytes[256]
    signature: Bytes[4096]

GAS_LIMITS_OFFSET: constant(uint256) = 20
TIMES_OFFSET: constant(uint256) = 52


@deploy
def __init__(entry_point: address, signer: address, owner: address):
    verifying_paymaster.__init__(entry_point, signer, owner)


@external
@view
def getHash(userOp: PackedUserOperation, validUntil: uint48, validAfter: uint48) -> bytes32:
    """
    @notice What the signer signs (with the EIP-191 prefix). Of paymasterAndData only the two gas limits enter it.
    """
    return self._hash(userOp, validUntil, validAfter)


@external
def validatePaymasterUserOp(
    userOp: PackedUserOperation, userOpHash: bytes32, maxCost: uint256
) -> (Bytes[32], uint256):
    verifying_paymaster._check_entry_point()
    valid_until: uint48 = 0
    valid_after: uint48 = 0
    valid_until, valid_after = verifying_paymaster._times(userOp.paymasterAndData, TIMES_OFFSET)
    digest: bytes32 = self._hash(userOp, valid_until, valid_after)
    # No context: postOp is not called. A repeat is stopped by the nonce of the entry point.
    return b"", verifying_paymaster._validation_data(
        digest, userOp.paymasterAndData, TIMES_OFFSET, valid_until, valid_after
    )


@internal
@view
def _hash(user_operation: PackedUserOperation, valid_until: uint48, valid_after: uint48) -> bytes32:
    return keccak256(
        abi_encode(
            user_operation.sender,
            user_operation.nonce,
            keccak256(user_operation.initCode),
            keccak256(user_operation.callData),
            user_operation.accountGasLimits,
            extract32(user_operation.paymasterAndData, GAS_LIMITS_OFFSET),
            user_operation.preVerificationGas,
            user_operation.gasFees,
            chain.id,
            self,
            valid_until,
            valid_after,
        )
    )
