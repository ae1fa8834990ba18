"""What every version of the entry point can do with its operations, and which codec does it.

Called by the wallets, the bundler and the sponsor with the version that belongs to the entry point they were given:
the shape of an operation is chosen by the entry point, never guessed from its fields.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from capstan.userops.abi import Malformed, Reader, address_word, array, members
from capstan.userops.flat import FlatCodec
from capstan.userops.models import UserOperation
from capstan.userops.packed import PackedCodec
from capstan.userops.versions import RELEASES, Release, Version


class Codec(Protocol):
    """The form of one version's operations."""

    @property
    def release(self) -> Release: ...

    @property
    def struct(self) -> str:
        """The type of the operation, as signatures of functions name it."""
        ...

    @property
    def handle_ops_selector(self) -> bytes: ...

    def parse(self, value: object, *, estimating: bool = False) -> UserOperation:
        """The operation of a JSON-RPC object. Raises `InvalidOperation`, which names the field.

        `estimating` makes gas limits and fees optional, as eth_estimateUserOperationGas has them.
        """
        ...

    def render(self, operation: UserOperation) -> dict[str, Any]:
        """The JSON-RPC object of the operation; absent fields are left out."""
        ...

    def encode(self, operation: UserOperation) -> bytes:
        """The struct that the entry point takes, ABI-encoded."""
        ...

    def decode(self, reader: Reader) -> UserOperation:
        """The operation of such a struct. Raises `Malformed` or `InvalidOperation`."""
        ...

    def hash(self, operation: UserOperation, entry_point: bytes, chain_id: int, delegate: bytes | None = None) -> bytes:
        """The userOpHash. `delegate` is the contract an EIP-7702 sender delegates to, where the operation does not
        carry the tuple itself."""
        ...

    def required_prefund(self, operation: UserOperation) -> int:
        """The most the operation can cost, in wei: what sender or paymaster must have deposited."""
        ...


_CODECS: Mapping[Version, Codec] = {
    version: PackedCodec(release) if release.packed else FlatCodec(release) for version, release in RELEASES.items()
}


def codec_for(version: Version) -> Codec:
    """The codec of a version."""
    return _CODECS[version]


def encode_handle_ops(version: Version, operations: Sequence[UserOperation], beneficiary: bytes) -> bytes:
    """The calldata of `handleOps(operations, beneficiary)`."""
    codec = codec_for(version)
    encoded = members([array(codec.encode(operation) for operation in operations), address_word(beneficiary)])
    return codec.handle_ops_selector + encoded


def decode_handle_ops(version: Version, calldata: bytes) -> tuple[list[UserOperation], bytes]:
    """The operations and the beneficiary of such calldata. Raises `Malformed` when it is none of this version's."""
    codec = codec_for(version)
    if calldata[:4] != codec.handle_ops_selector:
        raise Malformed(f"this is not a call of handleOps of entry point {version}")
    arguments = Reader(calldata[4:])
    return [codec.decode(each) for each in arguments.structs(0)], arguments.address(1)
