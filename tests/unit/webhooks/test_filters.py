"""The `config` of webhooks: which keys each type knows, what is refused, and how the refusal names it."""

from typing import Any

import pytest

from capstan.core.errors import Conflict, InvalidRequest
from capstan.webhooks.filters import MOST_ENTRIES, Filters, check_change, is_idle, parse_filters
from capstan.webhooks.kinds import EVENT_TYPES

ADDRESS = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
WORD = "0x" + "ab" * 32
# The table of the documentation, without `confirmations`, which all have.
KEYS = {
    "address_activity": {"addresses"},
    "token_transfer": {"addresses", "contracts", "min_value"},
    "nft_transfer": {"addresses", "contracts", "token_ids"},
    "mined_transaction": {"tx_hashes"},
    "log": {"addresses", "topics"},
    "ADDRESS_ACTIVITY": {"addresses", "min_value", "selectors"},
    "MINED_TRANSACTION": {"tx_hashes"},
    "NFT_ACTIVITY": {"addresses", "contracts", "token_ids"},
    "TOKEN_TRANSFER": {"addresses", "contracts", "senders", "receivers", "min_value"},
    "INTERNAL_TRANSFER": {"addresses", "min_value"},
    "NEW_BLOCK": {"every"},
    "PENDING_TRANSACTION": {"addresses", "selectors", "min_value"},
}
GOOD: dict[str, Any] = {
    "addresses": [ADDRESS],
    "contracts": [ADDRESS],
    "senders": [ADDRESS],
    "receivers": [ADDRESS],
    "token_ids": ["7"],
    "tx_hashes": [WORD],
    "selectors": ["0xa9059cbb"],
    "topics": [WORD],
    "min_value": "1",
    "every": 2,
    "confirmations": 3,
}


@pytest.mark.parametrize("name", sorted(KEYS))
@pytest.mark.parametrize("key", sorted(GOOD))
def test_each_type_knows_its_keys_and_no_other(name: str, key: str) -> None:
    kind = EVENT_TYPES[name]
    if key in KEYS[name] | {"confirmations"}:
        parse_filters(kind, {key: GOOD[key]})
        return
    with pytest.raises(InvalidRequest, match=f'unknown key "{key}"'):
        parse_filters(kind, {key: GOOD[key]})


def test_there_are_twelve_types_in_two_formats() -> None:
    assert EVENT_TYPES.keys() == KEYS.keys()
    assert {name for name, kind in EVENT_TYPES.items() if kind.format == "A"} == {
        name for name in KEYS if name == name.lower()
    }


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("log", {"addresses": ADDRESS}, r"config\.addresses: expected a list"),
        ("log", {"addresses": [ADDRESS, "0x12"]}, r"config\.addresses\[1\]: an address is"),
        ("log", {"addresses": [None]}, r"config\.addresses\[0\]"),
        ("log", {"topics": [None, [WORD, "0x12"]]}, r"config\.topics\[1\]\[1\]: a topic is"),
        ("log", {"topics": [None] * 5}, r"config\.topics: expected a list of at most 4"),
        ("log", {"topics": {}}, r"config\.topics"),
        ("nft_transfer", {"token_ids": [-1]}, r"config\.token_ids\[0\]: expected a number from 0"),
        ("nft_transfer", {"token_ids": [True]}, r"config\.token_ids\[0\]: expected a whole number"),
        ("nft_transfer", {"token_ids": [1.5]}, r"config\.token_ids\[0\]: expected a whole number"),
        ("token_transfer", {"min_value": "1.5"}, r"config\.min_value: expected a whole number"),
        ("token_transfer", {"min_value": str(2**256)}, r"config\.min_value: expected a number from 0"),
        ("mined_transaction", {"tx_hashes": ["0xab"]}, r"config\.tx_hashes\[0\]: a transaction hash is"),
        ("ADDRESS_ACTIVITY", {"selectors": [WORD]}, r"config\.selectors\[0\]: a selector is"),
        ("NEW_BLOCK", {"every": 0}, r"config\.every: expected a whole number from 1"),
        ("NEW_BLOCK", {"confirmations": -1}, r"config\.confirmations: expected a whole number from 0"),
        ("NEW_BLOCK", {"confirmations": "1"}, r"config\.confirmations"),
        ("log", {"addresses": [ADDRESS] * (MOST_ENTRIES + 1)}, r"config\.addresses: at most 100000 entries"),
    ],
)
def test_bad_values_are_refused_and_named(name: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_filters(EVENT_TYPES[name], config)


def test_a_change_with_keys_of_another_type_conflicts_with_the_type() -> None:
    kind = EVENT_TYPES["log"]
    check_change(kind, {"topics": [WORD]})
    with pytest.raises(Conflict, match="log knows addresses, confirmations, topics, and not selectors"):
        check_change(kind, {"addresses": [ADDRESS], "selectors": ["0xa9059cbb"]})
    with pytest.raises(InvalidRequest, match=r"config\.selectors\[0\]"):
        check_change(kind, {"selectors": ["0xa9"]})
    with pytest.raises(InvalidRequest, match='unknown key "nonsense"'):
        check_change(kind, {"selectors": ["0xa9059cbb"], "nonsense": 1})


def test_values_are_read_in_any_letter_case_and_spelling() -> None:
    address = bytes.fromhex(ADDRESS[2:])
    filters = parse_filters(
        EVENT_TYPES["TOKEN_TRANSFER"],
        {"addresses": [ADDRESS.lower(), "0x" + ADDRESS[2:].upper()], "min_value": 10, "confirmations": 12.0},
    )
    assert filters == Filters(addresses=frozenset({address}), min_value=10, confirmations=12)
    ids = parse_filters(EVENT_TYPES["nft_transfer"], {"token_ids": ["10", "0x0a", 10, 10.0, str(2**256 - 1)]})
    assert ids.token_ids == {10, 2**256 - 1}


def test_mined_transactions_wait_for_one_confirmation_unless_told_otherwise() -> None:
    assert parse_filters(EVENT_TYPES["mined_transaction"], {}).confirmations == 1
    assert parse_filters(EVENT_TYPES["MINED_TRANSACTION"], {"confirmations": 5}).confirmations == 5
    assert parse_filters(EVENT_TYPES["log"], {}).confirmations == 0


@pytest.mark.parametrize("name", sorted(KEYS))
def test_types_that_watch_given_things_match_nothing_before(name: str) -> None:
    waits = name not in {"nft_transfer", "log", "NFT_ACTIVITY", "TOKEN_TRANSFER", "NEW_BLOCK"}
    kind = EVENT_TYPES[name]
    assert is_idle(kind, parse_filters(kind, {})) is waits
    if "min_value" in kind.keys:
        assert is_idle(kind, parse_filters(kind, {"min_value": "1"})) is waits
    for key in kind.given:
        assert is_idle(kind, parse_filters(kind, {key: []})) is True
        assert is_idle(kind, parse_filters(kind, {key: GOOD[key]})) is False
