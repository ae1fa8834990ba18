"""The versions of the entry point, as data: in what their operations and hashes differ.

Read by the codecs; `codec.codec_for` gives the codec of a version. The addresses are configuration of each network
and not known here.
"""

from typing import Literal

import msgspec

Version = Literal["0.6", "0.7", "0.8", "0.9"]


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """One version of the entry point."""

    version: Version
    # 0.6 takes every field by itself; later ones pack gas limits and fees in pairs (PackedUserOperation).
    packed: bool
    # From 0.8 on the hash is that of EIP-712 typed data.
    typed_hash: bool
    # Whether operations may carry an EIP-7702 tuple, and whether the entry point itself knows the factory 0x7702.
    authorization: bool
    delegation: bool
    # Whether the end of the paymaster's data may be a signature that the hash leaves out.
    paymaster_signature: bool


RELEASES: dict[Version, Release] = {
    release.version: release
    for release in (
        Release(
            version="0.6",
            packed=False,
            typed_hash=False,
            authorization=False,
            delegation=False,
            paymaster_signature=False,
        ),
        Release(
            version="0.7",
            packed=True,
            typed_hash=False,
            authorization=True,
            delegation=False,
            paymaster_signature=False,
        ),
        Release(
            version="0.8", packed=True, typed_hash=True, authorization=True, delegation=True, paymaster_signature=False
        ),
        Release(
            version="0.9", packed=True, typed_hash=True, authorization=True, delegation=True, paymaster_signature=True
        ),
    )
}
# The newest first: what is preferred where several are configured.
NEWEST_FIRST: tuple[Version, ...] = tuple(reversed(RELEASES))
