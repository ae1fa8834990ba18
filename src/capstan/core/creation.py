"""The addresses that new contracts get. Called wherever one must be known before the contract is there. Pure."""

from capstan.core.hexes import keccak256


def create2_address(deployer: bytes, salt: bytes, init_code: bytes) -> bytes:
    """The address that CREATE2 gives (EIP-1014). The salt has 32 bytes."""
    return keccak256(b"\xff" + deployer + salt + keccak256(init_code))[12:]


def create_address(deployer: bytes, nonce: int) -> bytes:
    """The address that CREATE gives, for nonces from 1 to 127: the hash of the RLP list of both."""
    if not 0 < nonce < 0x80:
        raise ValueError("only nonces from 1 to 127 are written as one byte")
    return keccak256(b"\xd6\x94" + deployer + bytes([nonce]))[12:]
