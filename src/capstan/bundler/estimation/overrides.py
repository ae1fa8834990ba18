"""Reads the third parameter of eth_estimateUserOperationGas: the state that is to be assumed, as `eth_call` takes it.

Called by the JSON-RPC method. Every fault is a refusal that names the place. What passes is handed to a node, so only
what the form allows passes. Pure.
"""

from collections.abc import Mapping
from typing import Any

from capstan.bundler.refusals import INVALID_FIELDS, Refusal
from capstan.bundler.simulator import StateOverride
from capstan.core.hexes import parse_address, parse_data, parse_quantity, to_data

# Accounts and slots together: an estimate is no way to send megabytes to a node.
MOST_ENTRIES = 2_000
_NAME = "stateOverrides"


def parse_overrides(value: object, *, entry_point: bytes) -> StateOverride:
    """The override by account. Absent and null are none. The entry point's code must stay its own."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Refusal(INVALID_FIELDS, f"{_NAME}: must be an object of accounts")
    found: dict[bytes, dict[str, Any]] = {}
    entries = 0
    for account, fields in value.items():
        try:
            address = parse_address(account)
        except ValueError as error:
            raise Refusal(INVALID_FIELDS, f"{_NAME}: {error}") from None
        place = f"{_NAME}.{account}"
        if not isinstance(fields, Mapping):
            raise Refusal(INVALID_FIELDS, f"{place}: must be an object")
        found[address] = _account(place, fields)
        if address == entry_point and "code" in found[address]:
            raise Refusal(INVALID_FIELDS, f"{place}.code: the code of the entry point cannot be replaced")
        entries += 1 + sum(len(slots) for slots in found[address].values() if isinstance(slots, dict))
        if entries > MOST_ENTRIES:
            raise Refusal(INVALID_FIELDS, f"{_NAME}: at most {MOST_ENTRIES} accounts and slots")
    return found


def _account(place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, value in fields.items():
        try:
            match name:
                case "balance" | "nonce":
                    parse_quantity(value, lenient=True)
                    read[name] = value
                case "code":
                    read[name] = to_data(parse_data(value))
                case "state" | "stateDiff":
                    read[name] = _slots(value)
                case _:
                    raise ValueError("is not known; balance, nonce, code, state and stateDiff are")
        except ValueError as error:
            raise Refusal(INVALID_FIELDS, f"{place}.{name}: {error}") from None
    if "state" in read and "stateDiff" in read:
        raise Refusal(INVALID_FIELDS, f"{place}: give state or stateDiff, not both")
    return read


def _slots(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("must be an object of slots")
    return {_word(slot): _word(content) for slot, content in value.items()}


def _word(value: object) -> str:
    return to_data(parse_quantity(value, lenient=True).to_bytes(32, "big"))
