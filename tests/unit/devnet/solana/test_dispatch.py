"""The JSON-RPC envelope: what is a request, what is answered, and with which error."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from capstan.devnet.solana.dispatch import Dispatcher


def explode(_: Any) -> Any:
    raise KeyError("a defect")


DISPATCHER = Dispatcher({"echo": lambda params: params, "explode": explode}, max_batch=3)


def handle(body: Any) -> Any:
    reply = DISPATCHER.handle(body if isinstance(body, bytes) else msgspec.json.encode(body))
    return None if reply is None else msgspec.json.decode(reply)


def request(method: str, **fields: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method} | fields


@pytest.mark.parametrize("identifier", [1, "x", None, 2**70, -1])
def test_the_id_comes_back_as_it_was(identifier: Any) -> None:
    reply = handle(request("echo", id=identifier, params=[1]))
    assert reply == {"jsonrpc": "2.0", "result": [1], "id": identifier}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"id": 1e999}'])
def test_unreadable_json_is_a_parse_error(body: bytes) -> None:
    assert handle(body) == {"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": None}


@pytest.mark.parametrize(
    "body",
    [
        1,
        "x",
        None,
        [],
        {"id": 1, "method": "echo"},
        request("echo", id=[1]),
        request("echo", id=True),
        {"jsonrpc": "2.0", "id": 1},
    ],
)
def test_what_is_not_a_request_is_refused(body: Any) -> None:
    assert handle(body) == {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid request"}, "id": None}


def test_an_unknown_method_is_not_found() -> None:
    reply = handle(request("getVoteAccounts", id=7))
    assert reply == {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": 7}


def test_a_batch_answers_each_in_order_and_notifications_not_at_all() -> None:
    replies = handle([request("echo", id=1, params=["a"]), request("echo", params=["b"]), request("nope", id=2)])
    assert [reply["id"] for reply in replies] == [1, 2]
    assert replies[0]["result"] == ["a"]
    assert replies[1]["error"]["code"] == -32601


def test_only_notifications_get_no_reply() -> None:
    assert handle(request("echo", params=[])) is None
    assert handle([request("echo", params=[])]) is None


def test_a_batch_has_a_bound() -> None:
    reply = handle([request("echo", id=number) for number in range(4)])
    assert reply["error"]["code"] == -32600
    assert "more than 3" in reply["error"]["message"]


def test_a_defect_is_answered_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    reply = handle(request("explode", id=1))
    assert reply["error"] == {"code": -32603, "message": "Internal error"}
    assert "a defect" in capsys.readouterr().err
