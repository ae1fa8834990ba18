"""The stand-in for coincurve gives the answers of coincurve."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.bundler.validation.evm.curve import RecoveredKey, provide_coincurve, stand_in

coincurve = pytest.importorskip("coincurve", reason="this Python has no coincurve to compare with")


def recover(maker: type, signature: bytes, message: bytes) -> bytes | None:
    try:
        key = maker.from_signature_and_message(signature, message, hasher=None)  # type: ignore[attr-defined]  # both have it
    except ValueError:
        return None
    return bytes(key.format(compressed=False))


@given(st.integers(1, 2**255), st.binary(min_size=32, max_size=32))
def test_keys_of_real_signatures_are_the_same(secret: int, message: bytes) -> None:
    private = coincurve.PrivateKey.from_int(secret)
    signature = private.sign_recoverable(message, hasher=None)
    expected = private.public_key.format(compressed=False)
    assert recover(coincurve.PublicKey, signature, message) == expected
    assert recover(RecoveredKey, signature, message) == expected


@given(st.binary(min_size=64, max_size=64), st.integers(0, 1), st.binary(min_size=32, max_size=32))
def test_other_signatures_are_judged_alike(body: bytes, parity: int, message: bytes) -> None:
    signature = body + bytes([parity])
    assert recover(RecoveredKey, signature, message) == recover(coincurve.PublicKey, signature, message)


def test_an_installed_coincurve_stays() -> None:
    provide_coincurve()
    assert sys.modules["coincurve"] is coincurve
    assert stand_in().PublicKey is RecoveredKey
