"""What is made of metadata documents, however they are written."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.nfts.documents import document_of
from capstan.nfts.models import Document, Trait

URI = "https://example.com/1"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
FIELDS = [
    "name",
    "title",
    "description",
    "image",
    "image_url",
    "image_data",
    "attributes",
    "traits",
    "properties",
    "banner",
]


def made(content: object, token_id: int | None = None) -> Document:
    found = document_of("", json.dumps(content).encode(), URI, token_id)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("attributes", "traits"),
    [
        ([{"trait_type": "A", "value": "b"}], [("A", "b")]),
        (
            [{"trait_type": "A", "value": 1}, {"value": 2.50}, {"trait_type": "C"}],
            [("A", "1"), ("property", "2.5"), ("C", "")],
        ),
        ([{"trait_type": "A", "value": True}, {"trait_type": "B", "value": None}], [("A", "true"), ("B", "")]),
        ([{"Colour": "red"}, "plain", None, [1]], [("Colour", "red"), ("property", "plain")]),
        (
            {"A": "b", "C": 3, "D": {"value": "e", "class": "x"}, "F": ["g"]},
            [("A", "b"), ("C", "3"), ("D", "e"), ("F", '["g"]')],
        ),
        ('[{"trait_type": "A", "value": 12345678901234567890.10}]', [("A", "12345678901234567890.10")]),
        ('{"A": 1e400}', [("A", "1e400")]),
        ("not json", []),
        ([], []),
        (7, []),
        ([{"trait_type": 5, "value": "x"}], [("5", "x")]),
        ([{"trait_type": ["x"], "value": "x"}], [("property", "x")]),
    ],
)
def test_traits_in_every_form(attributes: Any, traits: list[tuple[str, str]]) -> None:
    found = made({"attributes": attributes})
    assert found.traits == tuple(Trait(*pair) for pair in traits)


def test_properties_count_when_there_are_no_attributes() -> None:
    assert made({"attributes": [], "properties": {"A": 1}}).traits == (Trait("A", "1"),)


def test_numbers_are_not_rounded() -> None:
    content = b'{"attributes": {"big": 115792089237316195423570985008687907853269984665640564039457584007913129639935}}'
    found = document_of("", content, URI)
    assert found is not None
    assert found.traits[0].value == str(2**256 - 1)


@pytest.mark.parametrize(
    ("content", "image"),
    [
        ({"image": "a"}, "a"),
        ({"image": "", "image_url": "b"}, "b"),
        ({"image": {"url": "x"}, "imageUrl": "c"}, "c"),
        ({"image_data": "https://example.com/x.svg"}, "https://example.com/x.svg"),
        ({"image_data": "<svg/>"}, "data:image/svg+xml;base64,PHN2Zy8+"),
        ({"image": "  ipfs://x  "}, "ipfs://x"),
        ({}, None),
    ],
)
def test_images_in_every_form(content: Any, image: str | None) -> None:
    assert made(content).image == image


def test_id_is_put_into_the_document() -> None:
    assert made({"name": "{id}", "image": "i/{id}"}, 255).image == "i/" + "ff".rjust(64, "0")
    assert made({"name": "{id}"}).name == "{id}"


def test_text_that_utf8_cannot_hold_is_replaced() -> None:
    found = document_of("", b'{"name": "a\\ud800b\\u0000c", "description": "x\\u0000y\\udfff"}', URI)
    assert found is not None
    assert (found.name, found.description) == ("a?bc", "xy?")
    msgspec.json.encode(found)


def test_bounds() -> None:
    found = made({"name": "n" * 10**5, "description": "d" * 10**5, "attributes": [{"value": "v" * 3_000}] * 10**3})
    assert found.name is not None
    assert found.description is not None
    assert (len(found.name), len(found.description)) == (1000, 20_000)
    assert len(found.traits) == 500
    assert len(found.traits[0].value) == 2000


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=8))
def test_any_json_makes_a_document_that_can_be_sent(content: dict[str, Any]) -> None:
    found = document_of("", json.dumps(content).encode(), URI)
    assert found is not None
    assert msgspec.json.decode(msgspec.json.encode(found), type=Document) == found


@given(st.binary(max_size=300), st.text(max_size=20))
def test_no_bytes_break_it(content: bytes, kind: str) -> None:
    document_of(kind, content, URI)
