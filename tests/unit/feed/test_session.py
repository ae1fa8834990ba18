"""What a socket answers: limits, scopes, batches, malformed messages, and the bound on calls under way."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from capstan.access.models import Scope
from capstan.core import jsonrpc
from capstan.core.errors import Forbidden, InvalidRequest, UpstreamError, UpstreamTimeout
from capstan.core.jsonrpc import Call, Item
from capstan.feed.session import Session
from tests.support.feed import Feed, block_at, caller


class _Prepared(msgspec.Struct, frozen=True):
    items: tuple[Item, ...]
    is_batch: bool
    units: int


class _Reply(msgspec.Struct, frozen=True):
    body: bytes


class Gateway:
    """A gateway that answers by name: `now` at once, `later` when the test says so, others with their failure."""

    def __init__(self) -> None:
        self._parser = jsonrpc.RequestParser(max_items=10)
        self.go = asyncio.Event()
        self.failures: dict[str, Exception] = {}
        self.faults: set[str] = set()
        self.asked = 0

    def prepare(self, network: Any, body: bytes) -> _Prepared:
        self._break("prepare")
        try:
            request = self._parser.parse(body)
        except jsonrpc.Malformed as error:
            raise InvalidRequest(error.message) from None
        return _Prepared(request.items, request.is_batch, len(request.items))

    def _break(self, where: str) -> None:
        if where in self.faults:
            raise TypeError("unhashable type: 'dict'")

    def answer_now(self, who: Any, network: Any, prepared: _Prepared, started: float) -> bytes | None:
        self._break("answer_now")
        call = prepared.items[0]
        if isinstance(call, Call) and call.method == "now" and call.id is not None:
            return jsonrpc.result_reply(call.id, b'"now"')
        return None

    async def answer(self, who: Any, network: Any, prepared: _Prepared, **options: Any) -> _Reply:
        self.asked += 1
        replies = []
        for call in prepared.items:
            assert isinstance(call, Call)
            if call.method == "later":
                await self.go.wait()
            if call.method in self.failures:
                raise self.failures[call.method]
            if call.id is not None:
                replies.append(jsonrpc.result_reply(call.id, b'"done"'))
        if prepared.is_batch:
            return _Reply(jsonrpc.batch_reply(replies) if replies else b"")
        return _Reply(replies[0] if replies else b"")


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def send(session: Session, *calls: dict[str, Any], batch: bool = False) -> None:
    session.receive(json.dumps(list(calls) if batch else calls[0]).encode())


def call(method: str, *params: Any, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": list(params)}


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_call_is_answered_at_once_or_later_and_each_is_charged(gateway: Gateway) -> None:
    feed = Feed(gateway)
    socket, session = feed.connect()
    send(session, call("later", id="a"))
    send(session, call("now", id="b"))
    assert [message["id"] for message in socket.messages] == ["b"]
    gateway.go.set()
    await settle()
    assert [message["id"] for message in socket.messages] == ["b", "a"]
    assert feed.limiter.taken == [(1, 1), (1, 1)]


async def test_the_reply_to_a_subscription_comes_before_its_first_notification(gateway: Gateway) -> None:
    feed = Feed(gateway)
    socket, session = feed.connect()
    send(session, call("eth_subscribe", "newHeads", id=5))
    feed.stream.apply(block_at(1))
    assert socket.messages[0]["id"] == 5
    assert socket.results(socket.messages[0]["result"])[0]["number"] == "0x1"
    assert feed.usage.calls == [("eth_subscribe", 1)]


async def test_a_batch_mixes_calls_and_subscriptions(gateway: Gateway) -> None:
    feed = Feed(gateway)
    socket, session = feed.connect()
    calls = [call("eth_subscribe", "newHeads", id=1), call("later", id=2), call("eth_subscribe", "nothing", id=3)]
    send(session, *calls, {"method": "now"}, batch=True)
    await settle()
    feed.stream.apply(block_at(1))
    # Nobody is told of what it has no id for yet.
    assert socket.messages == []
    gateway.go.set()
    await settle()
    [reply] = socket.messages
    assert [item["id"] for item in reply] == [1, 2, 3], "in the order of the calls"
    found = {item["id"]: item for item in reply}
    assert found[3]["error"]["code"] == -32601
    feed.stream.apply(block_at(2))
    assert [head["number"] for head in socket.results(found[1]["result"])] == ["0x2"]
    assert feed.limiter.taken == [(4, 4)]


async def test_a_batch_of_subscriptions_alone_asks_no_gateway(gateway: Gateway) -> None:
    feed = Feed(gateway)
    socket, session = feed.connect()
    send(session, call("eth_subscribe", "newHeads"), call("eth_subscribe", "logs", {}, id=2), batch=True)
    await settle()
    assert len(socket.messages[0]) == 2
    assert gateway.asked == 0


async def test_notifications_get_no_reply(gateway: Gateway) -> None:
    feed = Feed(gateway)
    socket, session = feed.connect()
    send(session, {"method": "other"})
    send(session, {"method": "eth_subscribe", "params": ["newHeads"]})
    send(session, {"method": "other"}, {"method": "eth_subscribe", "params": ["newHeads"]}, batch=True)
    await settle()
    assert socket.messages == []
    assert len(feed.hub) == 0


@pytest.mark.parametrize("slow", [False, True])
async def test_over_a_limit_the_call_is_refused_and_the_socket_stays(gateway: Gateway, slow: bool) -> None:
    feed = Feed(gateway)
    feed.limiter.slow = slow
    socket, session = feed.connect()
    feed.limiter.requests = 1
    send(session, call("now", id="a"))
    await settle()
    send(session, call("now", id="b"))
    send(session, call("now", id="c"), call("now", id="d"), {"method": "now"}, batch=True)
    await settle()
    passed, refused, batch = socket.messages
    assert passed["result"] == "now"
    assert refused["id"] == "b"
    assert refused["error"]["code"] == -32005
    assert refused["error"]["data"] == {"retryAfter": 1}
    assert [item["error"]["code"] for item in batch] == [-32005, -32005]
    assert socket.close_code() is None


async def test_a_client_that_does_not_stop_is_closed_with_4429(gateway: Gateway) -> None:
    feed = Feed(gateway, refusals=5)
    socket, session = feed.connect()
    feed.limiter.requests = 0
    for _ in range(4):
        send(session, call("now"))
    assert socket.close_code() is None
    feed.limiter.requests = 1
    send(session, call("now"))
    for _ in range(4):
        send(session, call("now"))
    assert socket.close_code() is None
    send(session, call("now"))
    assert socket.close_code() == 4429
    assert feed.ended == [session]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[]", -32600),
        (b"nonsense", -32700),
        (b"[" + b"1," * 20 + b"1]", -32600),
    ],
)
async def test_garbage_is_answered_and_counted_and_does_not_close(gateway: Gateway, message: bytes, code: int) -> None:
    feed = Feed(gateway)
    socket, session = feed.connect()
    session.receive(message)
    await settle()
    assert socket.messages[0]["error"]["code"] == code
    assert socket.messages[0]["id"] is None
    assert socket.close_code() is None
    assert feed.limiter.taken == [(1, 0)]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Forbidden("no scope"), -32003),
        (UpstreamError("all failed"), -32603),
        (UpstreamTimeout("too late"), -32002),
        (InvalidRequest("no call"), -32600),
        (RuntimeError("a mistake"), -32603),
    ],
)
async def test_what_http_says_with_a_status_is_an_error_here(gateway: Gateway, failure: Exception, code: int) -> None:
    feed = Feed(gateway)
    socket, session = feed.connect()
    gateway.failures["bad"] = failure
    send(session, call("bad", id=9))
    await settle()
    assert socket.messages[0]["id"] == 9
    assert socket.messages[0]["error"]["code"] == code
    assert "a mistake" not in socket.messages[0]["error"]["message"]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("where", "id"), [("prepare", None), ("answer_now", 9)])
async def test_a_fault_at_once_is_an_error_and_the_socket_stays(
    gateway: Gateway, where: str, id: int | None, slow: bool
) -> None:
    feed = Feed(gateway)
    feed.limiter.slow = slow
    socket, session = feed.connect()
    gateway.faults.add(where)
    send(session, call("now", id=9))
    await settle()
    [answered] = socket.messages
    assert answered["id"] == id
    assert answered["error"]["code"] == -32603
    assert "unhashable" not in answered["error"]["message"]
    gateway.faults.clear()
    send(session, call("now", id=10))
    await settle()
    assert socket.messages[1]["result"] == "now"
    assert socket.close_code() is None


async def test_a_fault_of_a_subscription_is_an_error_of_its_item(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = Feed(gateway)
    socket, session = feed.connect()
    answer = session.subscriptions.answer

    async def late() -> Any:
        raise TypeError("a mistake")

    def breaks(method: str, params: bytes, call_id: bytes) -> Any:
        if params == b'["at once"]':
            raise TypeError("a mistake")
        return late() if params == b'["late"]' else answer(method, params, call_id)

    monkeypatch.setattr(session.subscriptions, "answer", breaks)
    calls = [
        call("eth_subscribe", "newHeads", id=1),
        call("eth_subscribe", "at once", id=2),
        call("eth_subscribe", "late", id=3),
        call("other", id=4),
    ]
    send(session, *calls, batch=True)
    send(session, calls[1])
    send(session, calls[2])
    await settle()
    singles, batches = [each for each in socket.messages if isinstance(each, dict)], socket.messages[-1]
    assert [(each["id"], each["error"]["code"]) for each in singles] == [(2, -32603), (3, -32603)]
    found = {item["id"]: item for item in batches}
    assert "result" in found[1]
    assert [found[place]["error"]["code"] for place in (2, 3)] == [-32603, -32603]
    assert found[4]["result"] == "done"
    feed.stream.apply(block_at(1))
    assert len(socket.results(found[1]["result"])) == 1


async def test_subscribing_needs_the_scope_to_read(gateway: Gateway) -> None:
    feed = Feed(gateway)
    socket, session = feed.connect(who=caller(Scope.RPC_WRITE))
    send(session, call("eth_subscribe", "newHeads"))
    assert socket.messages[0]["error"]["code"] == -32003
    assert len(feed.hub) == 0


async def test_calls_under_way_are_bounded_and_the_rest_wait_their_turn(gateway: Gateway) -> None:
    feed = Feed(gateway, calls_in_flight=3)
    socket, session = feed.connect()
    for number in range(10):
        send(session, call("later", id=number))
    await settle()
    assert gateway.asked == 3
    assert socket.paused
    gateway.go.set()
    await settle()
    assert sorted(message["id"] for message in socket.messages) == list(range(10))
    assert not socket.paused


async def test_the_end_of_a_socket_ends_everything_of_it(gateway: Gateway) -> None:
    feed = Feed(gateway, calls_in_flight=2)
    socket, session = feed.connect()
    send(session, call("eth_subscribe", "newHeads"))
    for number in range(5):
        send(session, call("later", id=number))
    await settle()
    session.end()
    session.end()
    gateway.go.set()
    await settle()
    assert feed.ended == [session]
    assert len(feed.hub) == 0
    assert gateway.asked == 2
    assert len(socket.messages) == 1


async def test_an_unknown_subscription_cannot_be_ended(gateway: Gateway) -> None:
    feed = Feed(gateway)
    mine, session = feed.connect()
    other, other_session = feed.connect()
    send(other_session, call("eth_subscribe", "newHeads"))
    send(session, call("eth_unsubscribe", other.messages[0]["result"]))
    assert mine.messages[0]["error"] == {"code": -32000, "message": "subscription not found"}
    send(other_session, call("eth_unsubscribe", other.messages[0]["result"]))
    assert other.messages[1]["result"] is True
    feed.stream.apply(block_at(1))
    assert len(other.messages) == 2
