"""The addresses that new contracts get. Called wherever one must be known before the contract is there. Pure."""

from capstan.core.hexes import keccak256


def create2_address(deployer: bytes, salt: bytes, init_code: bytes) -> bytes:
    """The address that CREATE2 gives (EIP-1014). The salt has 32 bytes."""
    return keccak256(b"\xff" + deployer + salt + keccak256(init_code))[12:]


def create_address(deployer: bytes, nonce: int) -> bytes:
    """The address that CREATE gives: the hash of the RLP list of both."""
    number = nonce.to_bytes(-(-nonce.bit_length() // 8), "big")
    content = b"\x94" + deployer + (number if 0 < nonce < 0x80 else bytes([0x80 + len(number)]) + number)
    return keccak256(bytes([0xC0 + len(content)]) + content)[12:]
