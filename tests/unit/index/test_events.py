"""Decoding of token events: by topic count, exactly, and without ever failing on what a contract may emit."""

from typing import Any

import msgspec
import pytest
from eth_abi.abi import encode
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.index import events
from capstan.index.events import Malformed, NodeLog, notice_in, place_of, transfers_in
from capstan.index.models import Notice, Standard, Transfer
from tests.support.index_chain import ZERO, address, batch, digest, erc20, erc721, event, node_log, single, word

BLOCK = digest("block")
WRAPPED = frozenset({address(77)})
words = st.integers(0, 2**256 - 1)
addresses = st.binary(min_size=20, max_size=20)


def log(part: dict[str, Any], **more: Any) -> NodeLog:
    return msgspec.convert(node_log(part, 9, BLOCK, 3, **more), NodeLog)


def decoded(part: dict[str, Any]) -> list[tuple[Any, ...]]:
    entry = log(part)
    found = transfers_in(entry, place_of(entry), WRAPPED)
    assert [item.position for item in found] == list(range(len(found)))
    return [(item.standard, item.token_id, item.sender, item.receiver, item.amount) for item in found]


@given(addresses, addresses, addresses, words)
def test_three_topics_are_erc20(contract: bytes, sender: bytes, receiver: bytes, amount: int) -> None:
    assert decoded(erc20(contract, sender, receiver, amount)) == [(Standard.ERC20, None, sender, receiver, amount)]


@given(addresses, addresses, addresses, words)
def test_four_topics_are_erc721(contract: bytes, sender: bytes, receiver: bytes, token_id: int) -> None:
    assert decoded(erc721(contract, sender, receiver, token_id)) == [(Standard.ERC721, token_id, sender, receiver, 1)]


@given(addresses, addresses, words)
def test_one_topic_has_all_in_the_data(sender: bytes, receiver: bytes, token_id: int) -> None:
    part = event(address(1), [events.TRANSFER], word(sender) + word(receiver) + word(token_id))
    assert decoded(part) == [(Standard.ERC721, token_id, sender, receiver, 1)]


@given(addresses, addresses, words, words)
def test_a_single_is_one_transfer(sender: bytes, receiver: bytes, token_id: int, amount: int) -> None:
    expected = [(Standard.ERC1155, token_id, sender, receiver, amount)]
    assert decoded(single(address(1), sender, receiver, token_id, amount)) == expected


@given(addresses, addresses, st.lists(st.tuples(words, words), max_size=6))
def test_a_batch_is_one_transfer_for_each_item(sender: bytes, receiver: bytes, items: list[tuple[int, int]]) -> None:
    part = batch(address(1), sender, receiver, items)
    # The same bytes as the reference encoder makes.
    data = encode(["uint256[]", "uint256[]"], [[item[0] for item in items], [item[1] for item in items]])
    assert part["data"] == "0x" + data.hex()
    assert decoded(part) == [(Standard.ERC1155, token_id, sender, receiver, amount) for token_id, amount in items]


def test_wrapping_counts_only_for_the_wrapped_coin_of_the_network() -> None:
    who, coin, other = address(5), address(77), address(78)
    for name, expected in (
        (events.DEPOSIT, (Standard.ERC20, None, ZERO, who, 8)),
        (events.WITHDRAWAL, (Standard.ERC20, None, who, ZERO, 8)),
    ):
        assert decoded(event(coin, [name, "0x" + word(who)], word(8))) == [expected]
        assert decoded(event(other, [name, "0x" + word(who)], word(8))) == []


def test_the_place_of_a_log_is_taken_over() -> None:
    entry = log(erc20(address(1), address(2), address(3), 4), blockTimestamp="0x64")
    assert transfers_in(entry, place_of(entry), WRAPPED) == (
        Transfer(
            9,
            3,
            0,
            Standard.ERC20,
            address(1),
            None,
            address(2),
            address(3),
            4,
            bytes.fromhex(BLOCK[2:]),
            bytes.fromhex(digest("tx", BLOCK, 3)[2:]),
            100,
        ),
    )
    assert place_of(entry, 7).timestamp == 7


PARTY = "0x" + word(address(2))


@pytest.mark.parametrize(
    "part",
    [
        event(address(1), [events.TRANSFER, PARTY], word(1)),
        event(address(1), [events.TRANSFER, PARTY, PARTY], ""),
        event(address(1), [events.TRANSFER, PARTY, PARTY], "00" * 31),
        event(address(1), [events.TRANSFER, "0x" + "01" * 32, PARTY], word(1)),
        event(address(1), [events.TRANSFER], word(address(1)) + word(address(2))),
        event(address(1), [events.TRANSFER], word(2**255) + word(address(2)) + word(3)),
        event(address(1), [events.TRANSFER_SINGLE, PARTY, PARTY], word(1) + word(2)),
        event(address(1), [events.TRANSFER_SINGLE, PARTY, PARTY, PARTY], word(1)),
        event(address(1), [events.TRANSFER_BATCH, PARTY, PARTY, PARTY], word(64) + word(2**255)),
        event(address(1), [events.TRANSFER_BATCH, PARTY, PARTY, PARTY], word(64) + word(64) + word(2**250)),
        event(
            address(1), [events.TRANSFER_BATCH, PARTY, PARTY, PARTY], word(64) + word(96) + word(0) + word(1) + word(1)
        ),
        event(address(1), [events.TRANSFER_BATCH, PARTY, PARTY, PARTY], word(63) + word(64) + word(0)),
    ],
)
def test_what_does_not_decode_is_malformed(part: dict[str, Any]) -> None:
    entry = log(part)
    with pytest.raises(Malformed):
        transfers_in(entry, place_of(entry), WRAPPED)


@settings(max_examples=300)
@given(
    st.sampled_from(sorted(events.TRANSFER_TOPICS | events.NOTICE_TOPICS)),
    st.lists(st.one_of(st.binary(min_size=32, max_size=32), words.map(lambda value: value.to_bytes(32))), max_size=3),
    st.one_of(
        st.binary(max_size=300),
        st.lists(st.integers(0, 200), max_size=9).map(lambda v: bytes.fromhex("".join(map(word, v)))),
    ),
)
def test_nothing_a_contract_emits_raises_anything_else(name: str, topics: list[bytes], data: bytes) -> None:
    entry = log(event(address(77), [name, *("0x" + topic.hex() for topic in topics)], data.hex()))
    try:
        for item in transfers_in(entry, place_of(entry), WRAPPED):
            assert len(item.sender) == len(item.receiver) == 20
            assert 0 <= item.amount < 2**256
            assert item.token_id is None or 0 <= item.token_id < 2**256
        notice_in(entry)
    except Malformed:
        return


def test_other_events_are_nothing() -> None:
    for part in (event(address(1), []), event(address(1), ["0x" + word(5)], word(1))):
        assert decoded(part) == []
        assert notice_in(log(part)) is None


def test_notices_name_the_ids_that_changed() -> None:
    assert notice_in(log(event(address(1), [events.METADATA_UPDATE], word(5)))) == Notice(address(1), 5, 5)
    assert notice_in(log(event(address(1), [events.BATCH_METADATA_UPDATE], word(5) + word(9)))) == Notice(
        address(1), 5, 9
    )
    uri = event(address(1), [events.URI, "0x" + word(6)], word(32) + word(3) + "616263".ljust(64, "0"))
    assert notice_in(log(uri)) == Notice(address(1), 6, 6)
    indexed = event(address(1), [events.METADATA_UPDATE, "0x" + word(7)])
    assert notice_in(log(indexed)) == Notice(address(1), 7, 7)


def test_the_names_of_events_are_those_of_the_standards() -> None:
    assert events.TRANSFER == "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
    assert events.TRANSFER_SINGLE == "0xc3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62"
    assert events.TRANSFER_BATCH == "0x4a39dc06d4c0dbc64b70af90fd698a233a518aa5d07e595d983b8c0526c8f7fb"
    assert events.DEPOSIT == "0xe1fffcc4923d04b559f4d29a8bfc6cda04eb5b0d3c460751c2402c5c5cc9109c"
    assert events.WITHDRAWAL == "0x7fcf532c15f0a6db0bd6d0e038bea71d30d808c7d98cb3bf7268a95bf5081b65"
    assert events.METADATA_UPDATE == "0xf8e1a15aba9398e019f0b49df1a4fde98ee17ae345cb5f6b5e2c27f5033e8ce7"
    assert events.BATCH_METADATA_UPDATE == "0x6bd5c950a8d8df17f772f5af37cb3655737899cbf903264b9795592da439661c"
    assert events.URI == "0x6bb7ff708619ba0610cba295a58592e0451dee2622938c8755667688daf3529b"
