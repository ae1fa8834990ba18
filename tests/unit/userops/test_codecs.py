"""The codecs of every version: what goes in comes out, and the bytes are those of eth-abi."""

import json
from typing import Any

import msgspec
import pytest
from eth_abi.abi import decode, encode
from eth_utils.crypto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.core.hexes import to_checksum_address
from capstan.userops.abi import Malformed, Reader
from capstan.userops.codec import codec_for, decode_handle_ops, encode_handle_ops
from capstan.userops.models import InvalidOperation, UserOperation
from capstan.userops.versions import RELEASES, Version
from tests.unit.userops import reference
from tests.unit.userops.strategies import VERSIONS, addresses, operations

every_version = pytest.mark.parametrize("version", VERSIONS)
packed_version = pytest.mark.parametrize("version", [each for each in VERSIONS if RELEASES[each].packed])
SENDER = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
OTHER = "0xe7f1725E7734CE288F8367e1Bb143E90bb3F0512"
AUTHORIZATION = {"chainId": "0x7a69", "address": OTHER, "nonce": "0x1", "yParity": "0x1", "r": "0x2", "s": "0x3"}


def plain(version: Version) -> dict[str, Any]:
    """An operation with the fields that are always required."""
    shared = {
        "sender": SENDER,
        "nonce": "0x1",
        "callData": "0x12",
        "callGasLimit": "0x2",
        "verificationGasLimit": "0x3",
        "preVerificationGas": "0x4",
        "maxFeePerGas": "0x5",
        "maxPriorityFeePerGas": "0x6",
        "signature": "0x7890",
    }
    return shared if RELEASES[version].packed else {**shared, "initCode": "0x", "paymasterAndData": "0x"}


@every_version
@given(data=st.data())
def test_rendered_operations_are_parsed_back(version: Version, data: st.DataObject) -> None:
    operation = data.draw(operations(version, delegations=True))
    rendered = json.loads(msgspec.json.encode(codec_for(version).render(operation)))
    assert codec_for(version).parse(rendered) == operation
    assert codec_for(version).render(codec_for(version).parse(rendered)) == rendered


@every_version
@given(data=st.data())
def test_the_struct_is_encoded_as_eth_abi_does(version: Version, data: st.DataObject) -> None:
    operation = data.draw(operations(version))
    # The first word that eth-abi writes only points behind itself.
    expected = encode([reference.kind(version)], [reference.values(version, operation)])[32:]
    assert codec_for(version).encode(operation) == expected
    decoded = codec_for(version).decode(Reader(expected))
    if operation.paymaster_signature is not None:
        # On the chain it is a part of the paymaster's data, and stays one.
        tail = reference.paymaster_and_data(operation)[52:]
        operation = msgspec.structs.replace(operation, paymaster_data=tail, paymaster_signature=None)
    # The tuple is in the transaction, not in the operation.
    assert decoded == msgspec.structs.replace(operation, authorization=None)


@every_version
@given(data=st.data(), entry_point=addresses, chain_id=st.integers(1, 2**64))
def test_the_hash_is_that_of_the_standard(
    version: Version, data: st.DataObject, entry_point: bytes, chain_id: int
) -> None:
    operation = data.draw(operations(version, delegations=True))
    expected = reference.operation_hash(version, operation, entry_point, chain_id)
    assert codec_for(version).hash(operation, entry_point, chain_id) == expected


@every_version
@settings(max_examples=30)
@given(data=st.data(), beneficiary=addresses)
def test_bundles_are_encoded_as_eth_abi_does_and_read_back(
    version: Version, data: st.DataObject, beneficiary: bytes
) -> None:
    bundle = data.draw(st.lists(operations(version), max_size=4))
    bundle = [msgspec.structs.replace(each, authorization=None, paymaster_signature=None) for each in bundle]
    calldata = encode_handle_ops(version, bundle, beneficiary)
    kind = f"{reference.kind(version)}[]"
    arguments = encode([kind, "address"], [[reference.values(version, each) for each in bundle], beneficiary])
    assert calldata == keccak(f"handleOps({kind},address)".encode())[:4] + arguments
    assert decode_handle_ops(version, calldata) == (bundle, beneficiary)


@every_version
@settings(max_examples=200)
@given(data=st.data())
def test_damaged_calldata_is_refused_or_read_never_more(version: Version, data: st.DataObject) -> None:
    calldata = bytearray(encode_handle_ops(version, [data.draw(operations(version))], bytes(20)))
    for _ in range(data.draw(st.integers(1, 3))):
        calldata[data.draw(st.integers(0, len(calldata) - 1))] = data.draw(st.integers(0, 255))
    del calldata[data.draw(st.integers(4, len(calldata))) :]
    try:
        decode_handle_ops(version, bytes(calldata))
    except (Malformed, InvalidOperation):
        return
    # What we accept, eth-abi accepts too, unless the damage is in padding or order, which it is stricter about.
    assert bytes(calldata[:4]) == codec_for(version).handle_ops_selector


def test_calldata_of_another_version_is_refused() -> None:
    with pytest.raises(Malformed, match=r"not a call of handleOps of entry point 0\.7"):
        decode_handle_ops("0.7", encode_handle_ops("0.6", [], bytes(20)))


@every_version
def test_every_required_field_is_missed_by_its_name(version: Version) -> None:
    for name in plain(version):
        for value in ({}, {name: None}):
            given_fields = {**{key: each for key, each in plain(version).items() if key != name}, **value}
            with pytest.raises(InvalidOperation, match="is required") as caught:
                codec_for(version).parse(given_fields)
            assert caught.value.field == name


@every_version
@pytest.mark.parametrize("value", ["1", 1, 1.5, True, "0x", "0xg", "0x1 ", "", [], {}, "-0x1", "0x" + "1" * 65])
def test_numbers_that_are_not_hex_are_refused_by_name(version: Version, value: object) -> None:
    names = ["nonce", "callGasLimit", "verificationGasLimit", "preVerificationGas", "maxFeePerGas"]
    for name in [*names, "maxPriorityFeePerGas"]:
        with pytest.raises(InvalidOperation) as caught:
            codec_for(version).parse({**plain(version), name: value})
        assert caught.value.field == name


@every_version
@pytest.mark.parametrize("value", ["12", 12, "0x1", "0xzz", " 0x12", [], True])
def test_byte_strings_that_are_not_hex_are_refused_by_name(version: Version, value: object) -> None:
    for name in ("callData", "signature"):
        with pytest.raises(InvalidOperation) as caught:
            codec_for(version).parse({**plain(version), name: value})
        assert caught.value.field == name


@every_version
@pytest.mark.parametrize("value", ["0x12", SENDER[:-1], SENDER + "0", 5, "", SENDER.replace("0x", "0X")])
def test_senders_that_are_not_addresses_are_refused(version: Version, value: object) -> None:
    with pytest.raises(InvalidOperation, match="40 hex digits") as caught:
        codec_for(version).parse({**plain(version), "sender": value})
    assert caught.value.field == "sender"


def test_leading_zeros_and_any_letter_case_are_taken() -> None:
    parsed = codec_for("0.7").parse({**plain("0.7"), "nonce": "0x0001", "sender": SENDER.lower(), "callData": "0xAB"})
    rendered = codec_for("0.7").render(parsed)
    assert (rendered["nonce"], rendered["sender"], rendered["callData"]) == ("0x1", SENDER, "0xab")


@packed_version
def test_limits_that_do_not_fit_their_half_are_refused(version: Version) -> None:
    names = ["callGasLimit", "verificationGasLimit", "maxFeePerGas", "maxPriorityFeePerGas"]
    for name in names:
        with pytest.raises(InvalidOperation, match="128 bits") as caught:
            codec_for(version).parse({**plain(version), name: hex(2**128)})
        assert caught.value.field == name
    assert (
        codec_for(version).parse({**plain(version), "preVerificationGas": hex(2**128)}).pre_verification_gas == 2**128
    )


@packed_version
def test_factory_and_its_data_come_together(version: Version) -> None:
    codec = codec_for(version)
    for given_fields, field in (({"factory": OTHER}, "factoryData"), ({"factoryData": "0x12"}, "factoryData")):
        with pytest.raises(InvalidOperation, match="both or none") as caught:
            codec.parse({**plain(version), **given_fields})
        assert caught.value.field == field
    parsed = codec.parse({**plain(version), "factory": OTHER, "factoryData": "0x"})
    assert to_checksum_address(parsed.factory or b"") == OTHER
    assert codec.parse({**plain(version), "factory": None, "factoryData": "0x"}).factory is None


@packed_version
def test_fields_of_a_paymaster_come_together(version: Version) -> None:
    codec = codec_for(version)
    limits = {"paymasterVerificationGasLimit": "0x1", "paymasterPostOpGasLimit": "0x2"}
    whole = {"paymaster": OTHER, **limits, "paymasterData": "0x12"}
    assert codec.parse({**plain(version), **whole}).paymaster_post_op_gas_limit == 2
    for name in limits:
        with pytest.raises(InvalidOperation, match="is required") as caught:
            codec.parse({**plain(version), **{key: each for key, each in whole.items() if key != name}})
        assert caught.value.field == name
    for name in ("paymasterVerificationGasLimit", "paymasterPostOpGasLimit", "paymasterData"):
        with pytest.raises(InvalidOperation, match="without paymaster") as caught:
            codec.parse({**plain(version), name: "0x12"})
        assert caught.value.field == name


@packed_version
def test_fields_of_the_other_shape_are_refused_and_others_ignored(version: Version) -> None:
    codec = codec_for(version)
    for name in ("initCode", "paymasterAndData"):
        with pytest.raises(InvalidOperation, match=f"not a field of entry point {version}") as caught:
            codec.parse({**plain(version), name: "0x" + "12" * 60})
        assert caught.value.field == name
    assert codec.parse({**plain(version), "comment": 5}) == codec.parse(plain(version))


def test_version_06_refuses_the_fields_of_later_versions() -> None:
    for name in ("factory", "factoryData", "paymaster", "paymasterData", "eip7702Auth"):
        with pytest.raises(InvalidOperation, match=r"not a field of entry point 0\.6") as caught:
            codec_for("0.6").parse({**plain("0.6"), name: OTHER})
        assert caught.value.field == name


@pytest.mark.parametrize("name", ["initCode", "paymasterAndData"])
def test_version_06_needs_an_address_before_the_data(name: str) -> None:
    with pytest.raises(InvalidOperation, match="20 bytes") as caught:
        codec_for("0.6").parse({**plain("0.6"), name: "0x" + "12" * 19})
    assert caught.value.field == name


@every_version
def test_estimation_needs_no_gas_and_no_fees(version: Version) -> None:
    names = ["callGasLimit", "verificationGasLimit", "preVerificationGas", "maxFeePerGas", "maxPriorityFeePerGas"]
    given_fields = {key: each for key, each in plain(version).items() if key not in names}
    parsed = codec_for(version).parse(given_fields, estimating=True)
    assert (parsed.call_gas_limit, parsed.max_fee_per_gas) == (0, 0)


@pytest.mark.parametrize("version", ["0.8", "0.9"])
def test_a_delegation_is_hashed_with_its_delegate(version: Version) -> None:
    codec = codec_for(version)
    short = codec.parse({**plain(version), "factory": "0x7702", "eip7702Auth": AUTHORIZATION})
    padded = codec.parse({**plain(version), "factory": "0x7702" + "0" * 36, "factoryData": "0x"})
    assert short.is_delegation
    assert padded.is_delegation
    assert short.init_code == padded.init_code == bytes.fromhex("7702").ljust(20, b"\0")
    assert codec.render(short)["factory"] == "0x7702"
    delegate = bytes.fromhex(OTHER[2:])
    assert codec.hash(short, bytes(20), 1) == codec.hash(padded, bytes(20), 1, delegate)
    assert codec.hash(padded, bytes(20), 1, bytes(20)) != codec.hash(padded, bytes(20), 1, delegate)
    with pytest.raises(InvalidOperation, match="delegates to no contract"):
        codec.hash(padded, bytes(20), 1)


def test_before_version_08_the_short_marker_is_no_factory() -> None:
    with pytest.raises(InvalidOperation, match="40 hex digits"):
        codec_for("0.7").parse({**plain("0.7"), "factory": "0x7702", "factoryData": "0x"})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"chainId": "1"}, "chainId"),
        ({"address": "0x12"}, "address"),
        ({"nonce": hex(2**64)}, "nonce"),
        ({"yParity": "0x2"}, "yParity"),
        ({"yParity": None}, "yParity"),
        ({"r": None}, "r"),
        ({"s": "s"}, "s"),
    ],
)
def test_faults_of_an_authorization_are_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidOperation) as caught:
        codec_for("0.8").parse({**plain("0.8"), "eip7702Auth": {**AUTHORIZATION, **change}})
    assert caught.value.field == f"eip7702Auth.{field}"


def test_an_authorization_may_bring_v_instead_of_the_parity() -> None:
    tuples = {key: each for key, each in AUTHORIZATION.items() if key != "yParity"}
    parsed = codec_for("0.7").parse({**plain("0.7"), "eip7702Auth": {**tuples, "v": "0x1c"}})
    assert parsed.authorization is not None
    assert parsed.authorization.y_parity == 1


def test_a_signature_of_the_paymaster_is_not_part_of_the_hash_from_09_on() -> None:
    codec = codec_for("0.9")
    limits = {"paymasterVerificationGasLimit": "0x1", "paymasterPostOpGasLimit": "0x2"}
    whole = {**plain("0.9"), "paymaster": OTHER, **limits, "paymasterData": "0x1234"}
    hashes = {
        codec.hash(codec.parse({**whole, "paymasterSignature": signature}), bytes(20), 1)
        for signature in ("0x01", "0x02", "0x" + "ab" * 65)
    }
    assert len(hashes) == 1
    assert codec.hash(codec.parse(whole), bytes(20), 1) not in hashes
    absurd = codec.parse({**whole, "paymasterData": "0x00ff" + reference.MAGIC.hex()})
    with pytest.raises(InvalidOperation, match="longer than the data"):
        codec.hash(absurd, bytes(20), 1)
    with pytest.raises(InvalidOperation, match=r"not a field of entry point 0\.8"):
        codec_for("0.8").parse({**whole, "paymasterSignature": "0x01"})


def test_the_prefund_counts_the_verification_of_a_paymaster() -> None:
    operation = UserOperation(
        sender=bytes(20),
        nonce=0,
        call_gas_limit=10,
        verification_gas_limit=100,
        pre_verification_gas=1000,
        max_fee_per_gas=7,
        paymaster=b"\1" * 20,
        paymaster_verification_gas_limit=10_000,
        paymaster_post_op_gas_limit=100_000,
    )
    assert codec_for("0.6").required_prefund(operation) == 1310 * 7
    assert codec_for("0.7").required_prefund(operation) == 111_110 * 7
    alone = msgspec.structs.replace(operation, paymaster=None)
    assert codec_for("0.6").required_prefund(alone) == 1110 * 7


def test_eth_abi_agrees_on_what_a_struct_holds() -> None:
    operation = UserOperation(sender=b"\1" * 20, nonce=5, call_data=b"abc", signature=b"s")
    encoded = (32).to_bytes(32, "big") + codec_for("0.8").encode(operation)
    (found,) = decode([reference.PACKED], encoded)
    assert found[0] == "0x" + "01" * 20
    assert (found[1], found[3], found[8]) == (5, b"abc", b"s")
