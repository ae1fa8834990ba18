"""A scripted canonical stream and a socket that keeps what is sent: the surroundings of the feed in unit tests."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry

from capstan.access.models import ALL_SCOPES, NO_OVERRIDES, Caller, Scope
from capstan.chain.follower.models import Applied, Block, Delta, Demand, Log, PendingTransaction, Reverted
from capstan.core.clock import SystemClock
from capstan.core.frames import FrameReader, Message
from capstan.core.ids import RequestIds
from capstan.feed.hub import Hub
from capstan.feed.meter import PushMeter
from capstan.feed.models import FeedLimits
from capstan.feed.session import Session, Surroundings
from capstan.feed.subscriptions import EvmSubscriptions
from capstan.limits.models import Decision, Limits

ADDRESS = "0x" + "aa" * 20
TOPIC = "0x" + "01" * 32


def log_at(block_hash: str, index: int, address: str = ADDRESS, topics: tuple[str, ...] = (TOPIC,)) -> Log:
    """A log that can be told from every other."""
    raw = {"address": address, "topics": topics, "logIndex": hex(index), "blockHash": block_hash, "removed": False}
    return Log(address, topics, index, "0x" + "ee" * 32, json.dumps(raw, separators=(",", ":")).encode())


def block_at(number: int, branch: str = "a", parent: str = "a", *, logs: int | None = 1, **log: Any) -> Block:
    """Block `number` of a branch; its hash says which."""
    name = f"0x{branch}{number}"
    header = json.dumps({"number": hex(number), "hash": name}, separators=(",", ":")).encode()
    told = None if logs is None else tuple(log_at(name, index, **log) for index in range(logs))
    return Block(number, name, f"0x{parent}{number - 1}", 1_700_000_000 + number, header, None, None, told)


class ScriptedStream:
    """A stream whose changes the test makes."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.halted: str | None = None
        self.consumers: dict[object, tuple[Callable[[Delta], None], Demand]] = {}
        self.pending = ScriptedPending()

    @property
    def head(self) -> Block | None:
        return self.blocks[-1] if self.blocks else None

    @property
    def demands(self) -> list[Demand]:
        return sorted(demand for _, demand in self.consumers.values())

    def head_number(self) -> int | None:
        return self.blocks[-1].number if self.blocks else None

    def subscribe(self, consumer: Callable[[Delta], None], demand: Demand) -> Callable[[], None]:
        key = object()
        self.consumers[key] = (consumer, demand)
        return lambda: (self.consumers.pop(key, None), None)[1]

    async def replay(
        self,
        number: int,
        consumer: Callable[[Delta], None],
        demand: Demand,
        *,
        pace: Callable[[], Awaitable[None]] | None = None,
    ) -> Callable[[], None]:
        told: list[Block] = []
        while not told or self.head is not told[-1]:
            if told and told[-1] not in self.blocks:
                consumer(Reverted(told.pop()))
                continue
            following = told[-1].number + 1 if told else number
            found = [block for block in self.blocks if block.number == following]
            if found:
                told.append(found[0])
                consumer(Applied(found[0]))
            if pace is not None:
                await pace()
        return self.subscribe(consumer, demand)

    def apply(self, *blocks: Block) -> None:
        for block in blocks:
            self.blocks.append(block)
            self._tell(Applied(block))

    def revert(self, depth: int = 1) -> None:
        for _ in range(depth):
            self._tell(Reverted(self.blocks.pop()))

    def _tell(self, delta: Delta) -> None:
        for consumer, _ in list(self.consumers.values()):
            consumer(delta)


class ScriptedPending:
    """Pending transactions that the test makes."""

    def __init__(self) -> None:
        self.consumers: dict[object, tuple[Callable[[PendingTransaction], None], bool]] = {}

    def subscribe(self, consumer: Callable[[PendingTransaction], None], full: bool) -> Callable[[], None]:
        key = object()
        self.consumers[key] = (consumer, full)
        return lambda: (self.consumers.pop(key, None), None)[1]

    def tell(self, transaction: PendingTransaction, *, full: bool) -> None:
        for consumer, wants in list(self.consumers.values()):
            if wants is full:
                consumer(transaction)


class KeptSocket:
    """A socket that keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.closed: tuple[int, str] | None = None
        self.paused = False
        self.room = True
        self.session: Session | None = None

    def send_text(self, text: bytes) -> None:
        if self.closed is None:
            self.messages.append(json.loads(text))

    def send_frame(self, frame: bytes) -> None:
        if self.closed is None:
            self.messages += [json.loads(message.data) for message in read_server_frames(frame)]

    def close(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = (code, reason)
            if self.session is not None:
                self.session.end()

    def close_code(self) -> int | None:
        return None if self.closed is None else self.closed[0]

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    async def drain(self, below: int) -> bool:
        while not self.room and self.closed is None:
            await asyncio.sleep(0)
        return self.closed is None

    def results(self, subscription: str) -> list[Any]:
        """What was pushed to one subscription."""
        pushed = [message["params"] for message in self.messages if _is_push(message)]
        return [params["result"] for params in pushed if params["subscription"] == subscription]


def _is_push(message: Any) -> bool:
    return isinstance(message, dict) and message.get("method") == "eth_subscription"


def read_server_frames(data: bytes) -> list[Message]:
    """Messages of the server, which are not masked: read as a client's with a mask of zeros."""
    found: list[Message] = []
    position = 0
    while position < len(data):
        length, head = data[position + 1], 2
        if length == 126:
            length, head = int.from_bytes(data[position + 2 : position + 4]), 4
        elif length == 127:
            length, head = int.from_bytes(data[position + 2 : position + 10]), 10
        start, end = position + head, position + head + length
        prefix = bytes((data[position], data[position + 1] | 0x80)) + data[position + 2 : start]
        found += FrameReader(max_message_bytes=1 << 30).feed(prefix + bytes(4) + data[start:end])
        position = end
    return found


class CountingLimiter:
    """A limiter with a budget of units and requests that the test sets. `slow` makes it ask shared counters."""

    def __init__(self) -> None:
        self.units: float = float("inf")
        self.requests: float = float("inf")
        self.taken: list[tuple[int, int]] = []
        self.refunded = 0
        self.slow = False

    def take_now(self, subject: str, limits: Limits, requests: int = 1, units: int = 1) -> Decision | None:
        return None if self.slow else self._take(requests, units)

    async def take(self, subject: str, limits: Limits, *, requests: int = 1, units: int = 1) -> Decision:
        await asyncio.sleep(0)
        return self._take(requests, units)

    async def peek(self, subject: str, limits: Limits) -> Decision:
        return Decision(True, 0, 0, 0, 0, "")

    async def refund(self, subject: str, limits: Limits, *, units: int, stamp: float = 0.0) -> None:
        self.refunded += units

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def _take(self, requests: int, units: int) -> Decision:
        if requests > self.requests or units > self.units:
            reason = "requests_per_second" if requests > self.requests else "units_per_second"
            return Decision(False, 10, 0, 0, 1, reason)
        self.requests -= requests
        self.units -= units
        self.taken.append((requests, units))
        return Decision(True, 10, 0, 0, 0, "", False, 1.0)


class UsageLog:
    """What was recorded."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.pushes: list[tuple[str, int, int]] = []

    def record(self, *, method: str, units: int, **_: Any) -> None:
        self.calls.append((method, units))

    def record_pushes(self, *, method: str, count: int, units: int, **_: Any) -> None:
        self.pushes.append((method, count, units))


def caller(*scopes: Scope) -> Caller:
    """Somebody with these scopes, or with all."""
    allowed = frozenset(scopes) if scopes else ALL_SCOPES
    return Caller("acc_1", "key_1", "test", "free", NO_OVERRIDES, allowed)


class Feed:
    """One hub with sessions of the test's own."""

    def __init__(self, calls: Any = None, **limits: Any) -> None:
        self.stream = ScriptedStream()
        self.hub = Hub(self.stream, self.stream.head_number)
        self.limiter = CountingLimiter()
        self.usage = UsageLog()
        self.limits = Limits(10, 0, 200)
        self.feed_limits = FeedLimits(**limits)
        self.meter = PushMeter(
            self.limiter,
            self.usage,
            limits_of=lambda _: self.limits,
            price=lambda: 1,
            grace_seconds=self.feed_limits.grace_seconds,
        )
        self.around = Surroundings(
            calls=calls,
            limiter=self.limiter,
            usage=self.usage,
            meter=self.meter,
            clock=SystemClock(),
            request_ids=RequestIds(),
            limits_of=lambda _: self.limits,
            price=lambda method: 1,
            limits=self.feed_limits,
        )
        self.ended: list[Session] = []
        self.registry = CollectorRegistry()

    def connect(self, network: Any = None, who: Caller | None = None) -> tuple[KeptSocket, Session]:
        """A socket and its session."""
        socket = KeptSocket()
        known: Any = network or _Network()
        session = Session(socket, who or caller(), known, self.around, on_end=self.ended.append)
        session.subscriptions = EvmSubscriptions(
            self.hub, socket, self.feed_limits, push=session.push, may_subscribe=session.may_subscribe
        )
        socket.session = session
        return socket, session


class _Network:
    """As much of a network as a session looks at."""

    name = "ethereum/devnet"


def subscribe(session: Session, *params: Any) -> str:
    """The id of a new subscription."""
    return str(_answer(session, params)["result"])


def refusal(session: Session, *params: Any) -> tuple[int, str]:
    """The error that a subscription gets."""
    error = _answer(session, params)["error"]
    return int(error["code"]), str(error["message"])


def _answer(session: Session, params: tuple[Any, ...]) -> Any:
    reply = session.subscriptions.answer("eth_subscribe", json.dumps(params).encode(), b"1")
    assert isinstance(reply, bytes)
    return json.loads(reply)
