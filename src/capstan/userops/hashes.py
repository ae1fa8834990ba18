"""The two ways in which entry points hash an operation, once its fields are encoded.

Called by the codecs. The hash covers the chain and the entry point, so that an operation is good for one place only.
"""

from functools import lru_cache

from capstan.core.hexes import keccak256
from capstan.userops.abi import address_word, word

PACKED_TYPE_HASH = keccak256(
    b"PackedUserOperation(address sender,uint256 nonce,bytes initCode,bytes callData,bytes32 accountGasLimits,"
    b"uint256 preVerificationGas,bytes32 gasFees,bytes paymasterAndData)"
)
_DOMAIN_TYPE_HASH = keccak256(b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")
_DOMAIN_NAME = keccak256(b"ERC4337")
_DOMAIN_VERSION = keccak256(b"1")


def plain_hash(encoded: bytes, entry_point: bytes, chain_id: int) -> bytes:
    """Entry points 0.6 and 0.7: the hash of the fields, then entry point and chain."""
    return keccak256(keccak256(encoded) + address_word(entry_point) + word(chain_id))


def typed_hash(encoded: bytes, entry_point: bytes, chain_id: int) -> bytes:
    """Entry points from 0.8 on: EIP-712 typed data, which wallets can show to their owner."""
    return keccak256(b"\x19\x01" + domain_separator(entry_point, chain_id) + keccak256(encoded))


@lru_cache(maxsize=256)
def domain_separator(entry_point: bytes, chain_id: int) -> bytes:
    """The EIP-712 domain of an entry point."""
    return keccak256(_DOMAIN_TYPE_HASH + _DOMAIN_NAME + _DOMAIN_VERSION + word(chain_id) + address_word(entry_point))
