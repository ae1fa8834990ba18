"""The state that a caller asks to assume: what is taken, and what is refused with the place named."""

from typing import Any

import pytest

from capstan.bundler.estimation.overrides import MOST_ENTRIES, parse_overrides
from capstan.bundler.refusals import INVALID_FIELDS, Refusal

ENTRY_POINT = b"\x43" * 20
ACCOUNT = "0x" + "Ab" * 20


def parse(value: object) -> dict[bytes, Any]:
    return dict(parse_overrides(value, entry_point=ENTRY_POINT))


def test_nothing_is_assumed_by_default() -> None:
    assert parse(None) == {}
    assert parse({}) == {}


def test_every_kind_of_state_is_taken() -> None:
    fields = {"balance": "0x10", "nonce": "0x1", "code": "0x6000", "stateDiff": {"0x1": "0x2"}}
    read = parse({ACCOUNT: fields})
    assert read == {
        b"\xab" * 20: {
            "balance": "0x10",
            "nonce": "0x1",
            "code": "0x6000",
            "stateDiff": {"0x" + "0" * 63 + "1": "0x" + "0" * 63 + "2"},
        }
    }
    assert list(parse({ACCOUNT: {"state": {"0x1": "0x2"}}})[b"\xab" * 20]) == ["state"]


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ([], "must be an object"),
        ({"0x12": {}}, "40 hex digits"),
        ({ACCOUNT: 5}, f"stateOverrides.{ACCOUNT}: must be an object"),
        ({ACCOUNT: {"balance": 5}}, f"stateOverrides.{ACCOUNT}.balance"),
        ({ACCOUNT: {"code": "0x1"}}, f"stateOverrides.{ACCOUNT}.code"),
        ({ACCOUNT: {"stateDiff": {"0xzz": "0x1"}}}, f"stateOverrides.{ACCOUNT}.stateDiff"),
        ({ACCOUNT: {"state": []}}, f"stateOverrides.{ACCOUNT}.state"),
        ({ACCOUNT: {"stateDiff": {}, "state": {}}}, "not both"),
        ({ACCOUNT: {"storage": {}}}, "storage: is not known"),
        ({"0x" + "43" * 20: {"code": "0x00"}}, "code of the entry point"),
        ({ACCOUNT: {"state": {hex(slot): "0x1" for slot in range(MOST_ENTRIES)}}}, "at most"),
    ],
)
def test_what_is_not_of_the_form_is_refused_with_its_place(value: object, place: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse(value)
    assert caught.value.code == INVALID_FIELDS
    assert place in caught.value.message
