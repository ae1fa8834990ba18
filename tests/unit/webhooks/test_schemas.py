"""The API description of webhooks says what is taken: each body that fits is read, and what is refused does not fit."""

from typing import Any

import pytest
from jsonschema_rs import validator_for

from capstan.core.errors import InvalidRequest
from capstan.outbound.urls import is_well_formed
from capstan.webhooks.filters import parse_filters
from capstan.webhooks.kinds import EVENT_TYPES
from capstan.webhooks.schemas import change_schema, creation_schema
from tests.unit.webhooks.test_filters import GOOD

CREATION = validator_for(creation_schema())
CHANGE = validator_for(change_schema())
MOST = 2**256 - 1


def body(event_type: str, config: dict[str, Any], url: str = "https://example.com/hook") -> dict[str, Any]:
    return {"url": url, "chain": "ethereum", "event_type": event_type, "config": config}


@pytest.mark.parametrize("name", sorted(EVENT_TYPES))
@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_key_fits_exactly_where_it_is_read(name: str, key: str) -> None:
    known = key in EVENT_TYPES[name].keys
    assert CREATION.is_valid(body(name, {key: GOOD[key]})) is known
    assert CHANGE.is_valid({"config": {key: GOOD[key]}})


@pytest.mark.parametrize(
    ("name", "config", "fits"),
    [
        ("log", {}, True),
        ("log", {"topics": [None, GOOD["topics"][0], [GOOD["topics"][0]]]}, True),
        ("log", {"topics": [None] * 5}, False),
        ("log", {"addresses": ["0x12"]}, False),
        ("log", {"confirmations": 1_001}, False),
        ("log", {"confirmations": 7.0}, True),
        ("nft_transfer", {"token_ids": [str(10**77), "0x" + "f" * 64, MOST, "0"]}, True),
        ("nft_transfer", {"token_ids": [str(MOST + 1)]}, False),
        ("nft_transfer", {"token_ids": [MOST + 1]}, False),
        ("nft_transfer", {"token_ids": [-1]}, False),
        (
            "nft_transfer",
            {"token_ids": ["119171509235061925671230172102055018200647052540000649894010672170362581959412"]},
            False,
        ),
        ("NEW_BLOCK", {"every": 0}, False),
        ("NEW_BLOCK", {"every": 2**31}, True),
        ("NEW_BLOCK", {"other": 1}, False),
    ],
)
def test_a_filter_fits_exactly_when_it_is_read(name: str, config: dict[str, Any], fits: bool) -> None:
    assert CREATION.is_valid(body(name, config)) is fits
    if fits:
        parse_filters(EVENT_TYPES[name], config)
        return
    with pytest.raises(InvalidRequest):
        parse_filters(EVENT_TYPES[name], config)


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("https://example.com", True),
        ("https://example.com:65535/a?b=c#d", True),
        ("https://example.com?b=c", True),
        ("http://127.0.0.1:8080/hook", True),
        ("http://[::1]:8080/hook", True),
        ("http://localhost/", True),
        ("https://xn--bcher-kva.example/", True),
        ("", False),
        ("https://", False),
        ("https://example.com:65536/", False),
        ("https://93.184.215.14/", False),
        ("https://2130706433/", False),
        ("https://0x7f.1/", False),
        ("https://user@example.com/", False),
        ("https://example.com/ä", False),
        ("https://example.com/\n", False),
        ("ftp://example.com/", False),
        ("https://example.com/" + "x" * 2_048, False),
    ],
)
def test_an_address_fits_exactly_when_its_form_is_taken(url: str, fits: bool) -> None:
    assert is_well_formed(url) is fits
    assert CREATION.is_valid(body("log", {}, url)) is fits
    assert CHANGE.is_valid({"url": url}) is fits
