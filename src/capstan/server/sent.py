"""A JSON-RPC request whose call was sent to an upstream, and which no task looks after as long as all goes well.

Made by the fast path, handed to the protocol, which says which connection the response goes to. It is told by the RPC
service how the call went on. When it did not go the plain way, a task carries it on: the same that requests have which
are not sent at once.

To uvicorn it is the cycle of the connection, so that pipelined requests queue up behind it, and, once its connection is
lost or the server stops, one of the server's tasks, so that the stop waits for it.
"""

import asyncio
from typing import Any, ClassVar, Protocol

import structlog
from msgspec import Raw

from capstan.access.models import Caller
from capstan.chain.registry import Network
from capstan.limits.models import Decision
from capstan.rpc.cache.gateway import Plan
from capstan.rpc.errands import Errand
from capstan.rpc.preparing import PreparedRead
from capstan.server.heads import RequestHead

log = structlog.get_logger(__name__)


class Nobody:
    """Stands for the event with which uvicorn wakes a waiting ASGI application; here none waits."""

    def set(self) -> None:
        """There is nobody to wake."""


class Underway:
    """Stands in for uvicorn's cycle while a task of the fast path looks for an answer: pipelined requests queue up."""

    response_started = False
    message_event = Nobody()

    __slots__ = ("disconnected", "keep_alive", "response_complete")

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False


class Sender(Protocol):
    """Who made it, and finishes it: the fast path."""

    def respond(self, sent: "Sent", result: Raw) -> bytes:
        """The response with a result that came."""
        ...

    def regret(self, sent: "Sent") -> bytes:
        """The response that says that something went wrong on our side."""
        ...

    async def carry_on(self, sent: "Sent") -> bytes:
        """The response by the longer way."""
        ...

    def abandon(self, sent: "Sent") -> None:
        """Nobody wants the reply any more."""
        ...


class Connection(Protocol):
    """Where the response goes."""

    def answered_later(self, underway: Any, response: bytes | None) -> None:
        """The request has this response; None means that there is none, through a mistake of ours."""
        ...


class Sent(Errand):
    """One request under way: the errand of its call, and what its response needs."""

    # Set before anything can arrive, and taken away again when it has done its part.
    connection: Connection | None = None
    task: asyncio.Task[bytes] | None = None
    # Whether nobody has seen to the end of what was sent.
    open = True
    # What uvicorn looks at.
    disconnected = False
    response_complete = False
    response_started: ClassVar[bool] = False
    message_event: ClassVar[Nobody] = Nobody()

    def __init__(
        self,
        caller: Caller,
        network: Network,
        read: PreparedRead,
        plan: Plan,
        began: float,
        head: RequestHead,
        client: str,
        decision: Decision,
        keep_alive: bool,
        sender: Sender,
    ) -> None:
        # As the errand does, without a call.
        self.caller: Caller = caller
        self.network = network
        self.read = read
        self.plan = plan
        self.began = began
        self.head = head
        self.client = client
        self.decision = decision
        self.keep_alive = keep_alive
        self.sender = sender

    def answered(self, result: Raw) -> None:
        """The result came."""
        self.open = False
        try:
            response = self.sender.respond(self, result)
        except Exception:
            # It must not hurt the connection to the upstream, in whose callback we are.
            log.exception("fast_path_failed")
            response = self.sender.regret(self)
        connection = self.connection
        if connection is not None:
            self.connection = None
            connection.answered_later(self, response)

    def carry_on(self) -> None:
        """The reply needs the longer way."""
        self.task = asyncio.get_running_loop().create_task(self.sender.carry_on(self))
        self.task.add_done_callback(self._ended)

    def cancel(self, msg: str | None = None) -> None:
        """The server stops and waits no longer."""
        if self.task is not None:
            self.task.cancel()
        elif self.take():
            self.sender.abandon(self)
            # Not now: whoever cancels is going through all requests.
            asyncio.get_running_loop().call_soon(self._hand_over, None)

    def take(self) -> bool:
        """Take over what was sent, for the task that carries it on. Whoever gets True sees to its end."""
        was_open, self.open = self.open, False
        return was_open

    def _ended(self, task: asyncio.Task[bytes]) -> None:
        self.task = None
        if self.take():
            # The task was cancelled before it ran.
            self.sender.abandon(self)
        if task.cancelled():
            self._hand_over(None)
            return
        error = task.exception()
        if error is not None:
            # The fast path answers its own faults; whatever gets past it must not leave the client waiting.
            log.error("fast_path_failed", exc_info=error)
        self._hand_over(None if error is not None else task.result())

    def _hand_over(self, response: bytes | None) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.answered_later(self, response)
