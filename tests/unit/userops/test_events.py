"""What entry points tell: events and errors, against eth-abi's encoding of them."""

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from capstan.userops import events, failures
from capstan.userops.events import decode_event
from capstan.userops.failures import FailedOperation, decode_failure, revert_text
from tests.unit.userops.strategies import addresses, texts, words

hashes = st.binary(min_size=32, max_size=32)


def topic(signature: str) -> bytes:
    return keccak(signature.encode())


def padded(address: bytes) -> bytes:
    return address.rjust(32, b"\0")


@given(
    op_hash=hashes,
    sender=addresses,
    paymaster=st.one_of(addresses, st.just(bytes(20))),
    nonce=words,
    ok=st.booleans(),
    cost=words,
)
def test_handled_operations_are_read(
    op_hash: bytes, sender: bytes, paymaster: bytes, nonce: int, ok: bool, cost: int
) -> None:
    signature = "UserOperationEvent(bytes32,address,address,uint256,bool,uint256,uint256)"
    data = encode(["uint256", "bool", "uint256", "uint256"], [nonce, ok, cost, 5])
    event = decode_event([topic(signature), op_hash, padded(sender), padded(paymaster)], data)
    payer = paymaster if any(paymaster) else None
    assert event == events.OperationHandled(op_hash, sender, payer, nonce, ok, cost, 5)


@given(op_hash=hashes, sender=addresses, nonce=words, reason=texts)
def test_reasons_of_reverts_are_read(op_hash: bytes, sender: bytes, nonce: int, reason: bytes) -> None:
    data = encode(["uint256", "bytes"], [nonce, reason])
    names = {
        "UserOperationRevertReason": events.OperationReverted,
        "PostOpRevertReason": events.PostOperationReverted,
    }
    for name, kind in names.items():
        found = decode_event([topic(f"{name}(bytes32,address,uint256,bytes)"), op_hash, padded(sender)], data)
        assert found == kind(op_hash, sender, nonce, reason)


@given(op_hash=hashes, sender=addresses, factory=addresses)
def test_deployments_are_read(op_hash: bytes, sender: bytes, factory: bytes) -> None:
    first = topic("AccountDeployed(bytes32,address,address,address)")
    data = encode(["address", "address"], [factory, bytes(20)])
    assert decode_event([first, op_hash, padded(sender)], data) == events.AccountDeployed(
        op_hash, sender, factory, None
    )


def test_the_small_events_are_read() -> None:
    assert decode_event([topic("BeforeExecution()")], b"") == events.BeforeExecution()
    changed = topic("SignatureAggregatorChanged(address)")
    assert decode_event([changed, bytes(32)], b"") == events.AggregatorChanged(None)
    low = topic("UserOperationPrefundTooLow(bytes32,address,uint256)")
    assert decode_event([low, bytes(32), padded(b"\1" * 20)], bytes(32)) == events.PrefundTooLow(
        bytes(32), b"\1" * 20, 0
    )


def test_what_only_looks_like_our_events_is_left_alone() -> None:
    first = topic("AccountDeployed(bytes32,address,address,address)")
    assert decode_event([], b"") is None
    assert decode_event([topic("Transfer(address,address,uint256)"), bytes(32)], b"") is None
    assert decode_event([first, bytes(32)], bytes(64)) is None
    assert decode_event([first, bytes(32), b"\xff" * 32], bytes(64)) is None
    assert decode_event([first, bytes(32), bytes(32)], bytes(63)) is None


@given(index=words, reason=st.text(max_size=80), inner=texts)
def test_failed_operations_are_read(index: int, reason: str, inner: bytes) -> None:
    short = topic("FailedOp(uint256,string)")[:4] + encode(["uint256", "string"], [index, reason])
    long = topic("FailedOpWithRevert(uint256,string,bytes)")[:4] + encode(
        ["uint256", "string", "bytes"], [index, reason, inner]
    )
    assert decode_failure(short) == FailedOperation(index, reason)
    assert decode_failure(long) == FailedOperation(index, reason, inner)


@pytest.mark.parametrize(
    ("reason", "code", "entity"),
    [
        ("AA13 initCode failed or OOG", "AA13", "factory"),
        ("AA21 didn't pay prefund", "AA21", "account"),
        ("AA33 reverted", "AA33", "paymaster"),
        ("AA50 postOp revert", "AA50", "paymaster"),
        ("AA51 prefund below actualGasCost", "AA51", "account"),
        ("AA40 over verificationGasLimit", "AA40", "account"),
        ("AA95 out of gas", "AA95", "bundle"),
        ("nothing known", None, "bundle"),
    ],
)
def test_the_code_names_the_entity(reason: str, code: str | None, entity: str) -> None:
    failure = FailedOperation(0, reason)
    assert (failure.code, failure.entity) == (code, entity)


def test_other_errors_are_read() -> None:
    sender = topic("SenderAddressResult(address)")[:4] + encode(["address"], [b"\1" * 20])
    assert decode_failure(sender) == failures.SenderAddress(b"\1" * 20)
    aggregator = topic("SignatureValidationFailed(address)")[:4] + encode(["address"], [b"\1" * 20])
    assert decode_failure(aggregator) == failures.AggregatorFailed(b"\1" * 20)
    post = topic("PostOpReverted(bytes)")[:4] + encode(["bytes"], [b"no"])
    assert decode_failure(post) == failures.PostOperationReverted(b"no")
    error = topic("Error(string)")[:4] + encode(["string"], ["too late"])
    assert revert_text(error) == "too late"
    assert revert_text(topic("Panic(uint256)")[:4] + encode(["uint256"], [0x11])) == "panic code 0x11"
    assert revert_text(b"\x01\x02") == "0x0102"
    named = topic("Eip7702SenderNotDelegate(address)")[:4] + encode(["address"], [b"\1" * 20])
    assert revert_text(named) == "Eip7702SenderNotDelegate"


@given(st.binary(max_size=200))
def test_no_data_makes_the_decoder_fail(data: bytes) -> None:
    for selector in (b"", topic("FailedOp(uint256,string)")[:4], topic("Error(string)")[:4]):
        revert_text(selector + data)
