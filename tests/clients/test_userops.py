"""viem and our codecs agree on every version of user operations: on hashes, and on what a client sends."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from capstan.core.hexes import to_checksum_address
from capstan.userops.codec import codec_for
from capstan.userops.models import Authorization, UserOperation
from capstan.userops.versions import RELEASES, Version
from tests.support.javascript import RunScript

OF_EACH_VERSION = 25
CHAIN_ID = 31337


def test_viem_hashes_operations_as_we_do_and_we_read_what_it_sends(javascript: RunScript) -> None:
    source = random.Random(7702)
    made: list[tuple[Version, bytes, UserOperation]] = [
        (version, source.randbytes(20), random_operation(version, source))
        for version in RELEASES
        for _ in range(OF_EACH_VERSION)
    ]
    given = [
        {"version": version, "entryPoint": to_checksum_address(place), "fields": codec_for(version).render(operation)}
        for version, place, operation in made
    ]
    report = javascript("userops.mjs", {"chainId": CHAIN_ID, "operations": given})
    for index, (version, place, operation) in enumerate(made):
        codec = codec_for(version)
        assert report[f"hash {index}"] == "0x" + codec.hash(operation, place, CHAIN_ID).hex(), version
        assert codec.parse(report[f"request {index}"]) == operation


def random_operation(version: Version, source: random.Random) -> UserOperation:
    """One with all kinds of optional parts. The paymaster's signature of 0.9 viem does not encode yet."""
    release = RELEASES[version]
    bits = 128 if release.packed else 256
    operation = UserOperation(
        sender=source.randbytes(20),
        nonce=source.getrandbits(256),
        call_data=source.randbytes(source.choice([0, 4, 33])),
        call_gas_limit=source.getrandbits(bits),
        verification_gas_limit=source.getrandbits(bits),
        pre_verification_gas=source.getrandbits(128),
        max_fee_per_gas=source.getrandbits(bits),
        max_priority_fee_per_gas=source.getrandbits(bits),
        signature=source.randbytes(65),
    )
    parts: dict[str, Any] = {}
    if source.random() < 0.5:
        parts |= {"factory": source.randbytes(20), "factory_data": source.randbytes(68)}
    if source.random() < 0.5:
        parts |= {"paymaster": source.randbytes(20), "paymaster_data": source.randbytes(source.choice([0, 90]))}
        if release.packed:
            parts["paymaster_verification_gas_limit"] = source.getrandbits(128)
            parts["paymaster_post_op_gas_limit"] = source.getrandbits(128)
    if release.delegation and source.random() < 0.5:
        parts |= {"factory": bytes.fromhex("7702"), "factory_data": source.randbytes(source.choice([0, 36]))}
        parts["authorization"] = Authorization(
            CHAIN_ID,
            source.randbytes(20),
            source.getrandbits(32),
            source.getrandbits(1),
            source.getrandbits(256),
            source.getrandbits(200),
        )
    return msgspec.structs.replace(operation, **parts)
