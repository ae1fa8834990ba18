"""Reads the operation of a sponsor request: which entry point it is for, and its fields as far as they are given.

Called by the sponsor service for both ways of asking. The paymaster fields that a request may carry are left out but
for the gas limits, because ours take their place. Pure.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from capstan.catalogue.networks import Network as NetworkFacts
from capstan.core.errors import InvalidRequest, NotFound
from capstan.core.hexes import parse_address, to_checksum_address
from capstan.gas.sponsor.paymasters import LONGEST_CALL_DATA, LONGEST_INIT_CODE, with_paymaster
from capstan.userops.codec import codec_for
from capstan.userops.models import InvalidOperation, UserOperation
from capstan.userops.versions import NEWEST_FIRST, Version

_REQUIRED = ("sender", "nonce", "callData", "maxFeePerGas", "maxPriorityFeePerGas")
_LIMITS = ("callGasLimit", "verificationGasLimit", "preVerificationGas")
_ONLY_V06 = ("initCode", "paymasterAndData")
_OURS = ("paymaster", "paymasterData", "paymasterAndData", "paymasterSignature")
# In the form of a real one, so that estimation with it does not fail: most accounts check the form first.
_DUMMY_SIGNATURE = "0x" + "f" * 31 + "0" * 33 + "7" + "a" * 63 + "1c"
_OUR_LIMITS = ("paymasterVerificationGasLimit", "paymasterPostOpGasLimit")


class Subject(msgspec.Struct, frozen=True):
    """An operation with our paymaster in it, and where it is to be executed."""

    version: Version
    entry_point: bytes
    paymaster: bytes
    operation: UserOperation
    # Whether a gas limit is missing and has to be estimated.
    incomplete: bool


def read_subject(facts: NetworkFacts, given: Mapping[str, Any], entry_point: str | None) -> Subject:
    """The operation of a request. Raises `InvalidRequest`, which names the field, and `NotFound` without paymaster."""
    version = _version(facts, given, entry_point)
    paymaster = parse_address(facts.paymasters[version])
    for name in _REQUIRED:
        if given.get(name) is None:
            raise InvalidRequest(f"user_operation.{name}: is required")
    operation = _parse(version, given)
    if len(operation.init_code) > LONGEST_INIT_CODE:
        raise InvalidRequest(f"user_operation: the paymaster takes initCode of at most {LONGEST_INIT_CODE} bytes")
    if len(operation.call_data) > LONGEST_CALL_DATA:
        raise InvalidRequest(f"user_operation: the paymaster takes callData of at most {LONGEST_CALL_DATA} bytes")
    limits = (operation.call_gas_limit, operation.verification_gas_limit, operation.pre_verification_gas)
    # A call limit of zero is good for an operation that calls nothing; absent is something else.
    absent = any(given.get(name) is None for name in _LIMITS)
    return Subject(
        version=version,
        entry_point=parse_address(facts.entry_points[version]),
        paymaster=paymaster,
        operation=with_paymaster(version, operation, paymaster),
        incomplete=absent or not any(limits),
    )


def _parse(version: Version, given: Mapping[str, Any]) -> UserOperation:
    kept = {name: value for name, value in given.items() if name not in _OURS and name not in _OUR_LIMITS}
    if not given.get("signature") or given["signature"] == "0x":
        kept["signature"] = _DUMMY_SIGNATURE
    if version == "0.6":
        kept = {"initCode": "0x", **kept, "paymasterAndData": "0x"}
    else:
        # The codec takes limits only beside a paymaster; which one it is does not matter yet.
        kept |= {"paymaster": "0x" + "00" * 20, "paymasterData": "0x"}
        kept |= {name: given[name] for name in _OUR_LIMITS if given.get(name) is not None}
    try:
        return codec_for(version).parse(kept, estimating=True)
    except InvalidOperation as error:
        raise InvalidRequest(f"user_operation.{error}") from None


def _version(facts: NetworkFacts, given: Mapping[str, Any], entry_point: str | None) -> Version:
    offered = [each for each in NEWEST_FIRST if each in facts.entry_points and each in facts.paymasters]
    if not offered:
        raise NotFound(f"Network {facts.name} has no paymaster: the operator must deploy one and set `paymasters`")
    if entry_point is not None:
        return _named(facts, offered, entry_point)
    flat = any(name in given for name in _ONLY_V06)
    fitting = [each for each in offered if (each == "0.6") == flat]
    if not fitting:
        shape = "0.6" if flat else "0.7 or later"
        raise NotFound(f"Network {facts.name} has no paymaster for operations of entry point {shape}")
    return fitting[0]


def _named(facts: NetworkFacts, offered: list[Version], entry_point: str) -> Version:
    try:
        address = parse_address(entry_point)
    except ValueError as error:
        raise InvalidRequest(f"entry_point: {error}") from None
    for version in offered:
        if parse_address(facts.entry_points[version]) == address:
            return version
    known = ", ".join(facts.entry_points[version] for version in offered)
    raise InvalidRequest(
        f"entry_point: there is no paymaster for {to_checksum_address(address)} on {facts.name}; there is for {known}"
    )
