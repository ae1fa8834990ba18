"""What a user operation is, whichever version of the entry point it is for.

One struct serves all versions, so that everything above the codecs is written once: version 0.6 joins factory and data
to `initCode`, later ones keep them apart, and the codecs (`flat`, `packed`) know that. Plain values; nothing here does
input or output.
"""

import msgspec

# EIP-7702: an operation whose factory is this is sent by an account of its own key, which delegates to a contract.
DELEGATION_MARKER = bytes.fromhex("7702")
ADDRESS_BYTES = 20


class InvalidOperation(ValueError):
    """An operation that cannot be read. `field` names what is wrong; the message says why, without the name."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class Authorization(msgspec.Struct, frozen=True):
    """An EIP-7702 tuple: the sender's consent to run the code of `address`."""

    chain_id: int
    address: bytes
    nonce: int
    y_parity: int
    r: int
    s: int


class UserOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One user operation. Addresses have 20 bytes, a factory may be the two bytes of EIP-7702; None means absent."""

    sender: bytes
    nonce: int
    factory: bytes | None = None
    factory_data: bytes = b""
    call_data: bytes = b""
    call_gas_limit: int = 0
    verification_gas_limit: int = 0
    pre_verification_gas: int = 0
    max_fee_per_gas: int = 0
    max_priority_fee_per_gas: int = 0
    paymaster: bytes | None = None
    # Version 0.6 has no limits for the paymaster alone; there both are 0.
    paymaster_verification_gas_limit: int = 0
    paymaster_post_op_gas_limit: int = 0
    paymaster_data: bytes = b""
    # Version 0.9: signed by the paymaster in parallel with the sender, and therefore not part of the hash.
    paymaster_signature: bytes | None = None
    signature: bytes = b""
    authorization: Authorization | None = None

    @property
    def nonce_key(self) -> int:
        """The lane of the nonce: its upper 192 bits. Operations of one sender in different lanes are independent."""
        return self.nonce >> 64

    @property
    def nonce_sequence(self) -> int:
        """The place in the lane."""
        return self.nonce & (2**64 - 1)

    @property
    def is_delegation(self) -> bool:
        """Whether the factory is the EIP-7702 marker, short or padded to an address."""
        return self.factory is not None and self.factory.rstrip(b"\0") == DELEGATION_MARKER

    @property
    def init_code(self) -> bytes:
        """Factory and its data in one, as the entry point takes them."""
        if self.factory is None:
            return b""
        return self.factory.ljust(ADDRESS_BYTES, b"\0") + self.factory_data


def split_init_code(init_code: bytes) -> tuple[bytes | None, bytes]:
    """Factory and its data. Raises `InvalidOperation` when it is too short to hold an address."""
    if not init_code:
        return None, b""
    if init_code.ljust(ADDRESS_BYTES, b"\0")[:ADDRESS_BYTES] == DELEGATION_MARKER.ljust(ADDRESS_BYTES, b"\0"):
        return DELEGATION_MARKER.ljust(ADDRESS_BYTES, b"\0"), init_code[ADDRESS_BYTES:]
    if len(init_code) < ADDRESS_BYTES:
        raise InvalidOperation("initCode", "must be empty or begin with the 20 bytes of a factory")
    return init_code[:ADDRESS_BYTES], init_code[ADDRESS_BYTES:]
