"""The params of eth_subscribe, judged as geth judges them."""

import json
from typing import Any

import pytest

from capstan.core.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND
from capstan.feed.filters import BadSubscription, Kind, LogFilter, read_id, read_subscription

ADDRESS = "0x" + "Ab" * 20
TOPIC = "0x" + "Cd" * 32
OTHER = "0x" + "12" * 32


def read(*params: Any) -> Any:
    return read_subscription(json.dumps(params).encode())


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_is_known(kind: Kind) -> None:
    assert read(kind.value).kind is kind


def test_a_filter_is_read_in_lower_case_with_arrays_and_nulls() -> None:
    wanted = read("logs", {"address": [ADDRESS], "topics": [None, TOPIC, [TOPIC, OTHER], []]})
    assert wanted.filter.addresses == {ADDRESS.lower()}
    assert wanted.filter.topics == (None, frozenset({TOPIC.lower()}), frozenset({TOPIC.lower(), OTHER}), None)
    assert read("logs", {"address": ADDRESS}).filter.addresses == {ADDRESS.lower()}
    assert read("logs", {"topics": [[None, TOPIC]]}).filter.topics == (None,)
    assert read("logs", {"address": []}).filter.addresses is None
    assert read("logs").filter == read("logs", {}).filter == read("logs", None).filter == LogFilter()


def test_a_log_with_fewer_topics_than_the_filter_does_not_match() -> None:
    assert LogFilter(None, (None, None)).matches(ADDRESS, (TOPIC, OTHER, TOPIC))
    assert not LogFilter(None, (None, None)).matches(ADDRESS, (TOPIC,))


@pytest.mark.parametrize(
    ("option", "number"),
    [
        ({"fromBlock": "0x10"}, 16),
        ({"fromBlock": "0x0"}, 0),
        ({"fromBlock": "earliest"}, 0),
        ({"fromBlock": "latest"}, None),
        ({"fromBlock": "pending"}, None),
        ({"fromBlock": None}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("kind", ["newHeads", "logs"])
def test_from_block_asks_for_a_replay(kind: str, option: dict[str, Any], number: int | None) -> None:
    assert read(kind, option).from_block == number


def test_whole_transactions_are_asked_for_with_true() -> None:
    assert read("newPendingTransactions", True).full
    assert not read("newPendingTransactions", False).full
    assert not read("newPendingTransactions").full


@pytest.mark.parametrize("tag", ["safe", "finalized"])
@pytest.mark.parametrize("kind", ["newHeads", "logs"])
def test_a_subscription_that_would_begin_at_a_settled_block_is_told_what_to_do(kind: str, tag: str) -> None:
    with pytest.raises(BadSubscription, match=f"cannot begin at {tag}; read that block with eth_getBlockByNumber"):
        read(kind, {"fromBlock": tag})


@pytest.mark.parametrize(
    "params",
    [
        pytest.param([], id="nothing"),
        pytest.param([1], id="no name"),
        pytest.param(["newHeads", 1], id="option is no object"),
        pytest.param(["newHeads", {"fromBlock": 16}], id="number instead of hex"),
        pytest.param(["newHeads", {"fromBlock": "0x010"}], id="leading zero"),
        pytest.param(["newHeads", {"fromBlock": {}}], id="object as block"),
        pytest.param(["newHeads", {}, {}], id="too many"),
        pytest.param(["syncing", {}], id="syncing takes nothing"),
        pytest.param(["newPendingTransactions", {}], id="pending takes a boolean"),
        pytest.param(["logs", {"address": "0x12"}], id="short address"),
        pytest.param(["logs", {"address": [ADDRESS, 1]}], id="number as address"),
        pytest.param(["logs", {"address": ["0x" + f"{n:040x}" for n in range(1001)]}], id="too many addresses"),
        pytest.param(["logs", {"topics": TOPIC}], id="topics are no array"),
        pytest.param(["logs", {"topics": [TOPIC] * 5}], id="five positions"),
        pytest.param(["logs", {"topics": ["0x12"]}], id="short topic"),
        pytest.param(["logs", {"topics": [[["0x12"]]]}], id="nested topics"),
        pytest.param(["logs", {"topics": [{}]}], id="object as topic"),
        pytest.param(["logs", {"topics": [["0x" + f"{n:064x}" for n in range(1001)]]}], id="too many topics"),
        pytest.param(["logs", {"blockHash": TOPIC}], id="block hash"),
        pytest.param(["logs", {"toBlock": "0x10"}], id="an end"),
        pytest.param(["logs", {"toBlock": []}], id="array as end"),
    ],
)
def test_bad_params_are_refused(params: list[Any]) -> None:
    with pytest.raises(BadSubscription) as caught:
        read(*params)
    assert caught.value.code == INVALID_PARAMS
    assert caught.value.message


def test_an_unknown_kind_is_not_found() -> None:
    with pytest.raises(BadSubscription) as caught:
        read("newBlocks")
    assert caught.value.code == METHOD_NOT_FOUND
    assert "newBlocks" in caught.value.message


@pytest.mark.parametrize("params", [b"[]", b"[1]", b'["0x1","0x2"]', b"[", b'{"a":1}'])
def test_an_unsubscribe_names_one_subscription(params: bytes) -> None:
    with pytest.raises(BadSubscription):
        read_id(params)


def test_the_id_is_read() -> None:
    assert read_id(b'["0xabc"]') == "0xabc"
