"""What operations cost before they are verified, in whole units of gas."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from capstan.userops.codec import codec_for
from capstan.userops.gas import (
    EXECUTE_USER_OP_SELECTOR,
    OVERHEADS,
    GasSchedule,
    calldata_gas,
    calldata_tokens,
    floor_gas,
    pre_verification_gas,
)
from capstan.userops.models import Authorization, UserOperation

PLAIN = UserOperation(sender=b"\x01" * 20, nonce=0, call_data=b"\x02" * 100)


def test_bytes_cost_by_whether_they_are_zero() -> None:
    assert calldata_gas(b"") == 0
    assert calldata_gas(b"\x00\x00\x01") == 4 + 4 + 16
    assert calldata_tokens(b"\x00\x00\x01") == 1 + 1 + 4
    assert calldata_gas(b"\x00\x01", GasSchedule(zero_byte=1, nonzero_byte=3)) == 4


@given(st.binary(max_size=300))
def test_a_token_is_a_quarter_of_a_byte(data: bytes) -> None:
    assert calldata_gas(data) == 4 * calldata_tokens(data)


def test_the_floor_counts_tokens_of_the_encoded_operation() -> None:
    encoded = codec_for("0.7").encode(PLAIN)
    assert floor_gas("0.7", PLAIN) == 10 * calldata_tokens(encoded)
    assert floor_gas("0.7", PLAIN, GasSchedule(floor_per_token=0)) == 0


def test_a_shared_bundle_costs_each_operation_less() -> None:
    alone = pre_verification_gas("0.7", PLAIN)
    shared = pre_verification_gas("0.7", PLAIN, overheads=msgspec.structs.replace(OVERHEADS["0.7"], bundle_size=3))
    assert alone.calldata == shared.calldata
    # The share is rounded up: three shares cover the whole.
    once = 21_000 + OVERHEADS["0.7"].bundle
    assert 3 * shared.overhead >= alone.overhead + 2 * (alone.overhead - once)


def test_what_an_operation_carries_is_added() -> None:
    plain = pre_verification_gas("0.8", PLAIN)
    executing = msgspec.structs.replace(PLAIN, call_data=EXECUTE_USER_OP_SELECTOR + b"\x02" * 96)
    assert pre_verification_gas("0.8", executing).overhead > plain.overhead + 1_610
    delegating = msgspec.structs.replace(PLAIN, authorization=Authorization(1, b"\x01" * 20, 0, 0, 1, 1))
    assert pre_verification_gas("0.8", delegating).overhead == plain.overhead + 25_000
    assert plain.total == plain.calldata + plain.overhead


@given(st.integers(0, 3000))
def test_more_data_never_costs_less(size: int) -> None:
    smaller = pre_verification_gas("0.6", msgspec.structs.replace(PLAIN, call_data=b"\x01" * size))
    larger = pre_verification_gas("0.6", msgspec.structs.replace(PLAIN, call_data=b"\x01" * (size + 1)))
    # Equal where the length itself is written with fewer non-zero bytes, as from 255 to 256.
    assert larger.total >= smaller.total
